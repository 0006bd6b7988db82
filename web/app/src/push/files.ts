// Names of the caches that hold the page's files. Pages of one origin share all
// caches, and two of them may be exports of this app at different paths: the name
// says whose it is.

const ours = (root: string): string => `holdfast ${root} `;

/** root: the address of the page's folder, with its last slash. */
export const cacheOf = (root: string, version: string): string => ours(root) + version;

/** Those that an older version of this very page has left. */
export const left = (names: readonly string[], root: string, version: string): string[] => names.filter((n) => n.startsWith(ours(root)) && n != cacheOf(root, version));
