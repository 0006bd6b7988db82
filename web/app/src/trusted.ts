// The only script addresses that this page ever hands to the browser. With
// `require-trusted-types-for 'script'` nothing else can become a script.

interface Policy {
  createScriptURL(url: string): string;
}
declare const trustedTypes: undefined | { createPolicy(name: string, rules: Policy): Policy };

const rules: Policy = {
  createScriptURL(url) {
    const u = new URL(url, location.href);
    if (u.origin != location.origin || !/\/(assets\/[\w.-]+|sw)\.js$/.test(u.pathname)) throw new TypeError("not a script of this page");
    return u.href;
  },
};

const policy = typeof trustedTypes == "undefined" ? rules : trustedTypes.createPolicy("holdfast", rules);

/** An address of a Worker of this page. */
export const scriptUrl = (url: string): string => policy.createScriptURL(url);

/** The address of the service worker. */
export const serviceWorkerUrl = (): string => policy.createScriptURL(new URL("sw.js", document.baseURI).href);
