// The page begins here. First of all a pairing link leaves the address bar.

import { render } from "preact";
import { startWords } from "./i18n/index.js";
import { atFirst, refreshKnown, wakeAll } from "./machines.js";
import { startPush } from "./push/start.js";
import { startRouting } from "./route.js";
import { startBadge } from "./sessions/badge.js";
import { prefs } from "./store/prefs.js";
import { App, Insecure } from "./ui/app.js";
import "./ui/style.css";
import { startUpdates } from "./update.js";

startRouting();
// The database answers while the rest gets ready.
const read = refreshKnown();
/** So long the first screen waits for it, ms: one that says "loading" costs a slow phone twice as much. */
const PATIENCE = 150;

const theme = () => {
  document.documentElement.dataset["theme"] = prefs.value.theme;
};
theme();
prefs.subscribe(theme);

// The part of the window that a soft keyboard leaves. The page itself never
// scrolls under it.
const viewport = () => {
  const v = visualViewport;
  const style = document.documentElement.style;
  style.setProperty("--height", `${v ? v.height : innerHeight}px`);
  style.setProperty("--top", `${v ? v.offsetTop : 0}px`);
};
viewport();
visualViewport?.addEventListener("resize", viewport);
visualViewport?.addEventListener("scroll", viewport);
addEventListener("resize", viewport);

// Whenever the path may be another one, every connection asks.
const wake = () => document.visibilityState == "visible" && wakeAll();
document.addEventListener("visibilitychange", wake);
document.addEventListener("resume", wake);
addEventListener("pageshow", wake);
addEventListener("online", wake);

const ready = atFirst ? undefined : Promise.race([read, new Promise((r) => setTimeout(r, PATIENCE))]);
void Promise.all([startWords(), ready]).then(() => {
  render(isSecureContext ? <App /> : <Insecure />, document.getElementById("app")!);
  startUpdates();
  startBadge();
  if (isSecureContext) startPush();
});
