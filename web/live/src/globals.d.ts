/**
 * Set by the build. False in the page's core: channels of pages have no typing
 * rule, no beat, no drain and no unattended agent, so what only those need is
 * left out there. True everywhere else.
 */
declare const FULL: boolean;
