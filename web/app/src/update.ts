// The page's own files, kept so that it opens without a network. An update waits
// until no page is open any more; here it is only said that one is ready.

import { createStore, type Store } from "./store/state.js";
import { serviceWorkerUrl } from "./trusted.js";

/** A newer version of the page is there and used when the page is opened next. */
export const updateReady: Store<boolean> = createStore(false);

/** Every file is fetched then, and the first screen comes first. */
const AFTER = 5000;

/** Looks for a newer version once, some seconds after the page was opened. */
export const startUpdates = (): void => {
  if (!import.meta.env.PROD || !isSecureContext || !navigator.serviceWorker) return;
  setTimeout(async () => {
    try {
      const r = await navigator.serviceWorker.register(serviceWorkerUrl(), { updateViaCache: "none" });
      // The first version of all waits for nobody.
      const look = () => void (r.active && r.waiting && updateReady.set(true));
      look();
      r.addEventListener("updatefound", () => r.installing?.addEventListener("statechange", look));
    } catch {
      // Without it the page works while there is a network.
    }
  }, AFTER);
};
