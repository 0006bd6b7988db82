/** The page's version, set by its build. */
declare const __VERSION__: string;
