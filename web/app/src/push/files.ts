// What of an origin belongs to this page. Pages of one origin share all caches,
// and a service worker sees all its windows; two of them may be exports of this
// app at different paths, others may be a stranger's.

/** The beginning of the names of the caches that hold its files. */
const ours = (root: string): string => `holdfast ${root} `;

/** root: the address of the page's folder, with its last slash. */
export const cacheOf = (root: string, version: string): string => ours(root) + version;

/** Those that an older version of this very page has left. */
export const left = (names: readonly string[], root: string, version: string): string[] => names.filter((n) => n.startsWith(ours(root)) && n != cacheOf(root, version));

/** The windows that show this very page. */
export const windowsOf = <W extends { url: string }>(all: readonly W[], root: string): W[] => all.filter((w) => [root, `${root}index.html`].includes(w.url.split(/[?#]/)[0]!));
