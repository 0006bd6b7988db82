// Where in the app one is: the part of the address behind the '#', so that any
// static host can serve the page. A pairing link is a fragment too: it is taken
// out of the address bar before anything else happens.

import { createStore } from "./store/state.js";
import { looksLikeLink } from "./pairing/link.js";

export type Route =
  /** start: with the form for a new session open. */
  | { at: "home"; start?: boolean }
  | { at: "pair" }
  | { at: "machine"; id: string }
  | { at: "session"; id: string; session: string; agent?: string }
  /** The session's terminal. */
  | { at: "raw"; id: string; session: string; fit: boolean }
  | { at: "shell"; id: string }
  | { at: "tmux"; id: string; name: string; target: string | undefined; fit: boolean }
  | { at: "devices" }
  | { at: "notifications" }
  | { at: "about" };

const idOk = (id: string | undefined): id is string => !!id && /^[\w-]{1,64}$/.test(id);

export const parseRoute = (hash: string): Route => {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").map((p) => {
    try {
      return decodeURIComponent(p);
    } catch {
      return "";
    }
  });
  const [first, id, what, name] = parts;
  const asked = new URLSearchParams(query);
  if (first == "m" && idOk(id)) {
    if ((what == "s" || what == "raw") && name && /^[\w:%-]{1,64}$/.test(name)) {
      if (what == "raw") return { at: "raw", id, session: name, fit: asked.has("fit") };
      const agent = asked.get("agent");
      return { at: "session", id, session: name, ...(agent && { agent }) };
    }
    if (what == "shell") return { at: "shell", id };
    if (what == "tmux" && name) return { at: "tmux", id, name, target: asked.get("id") ?? undefined, fit: asked.has("fit") };
    return { at: "machine", id };
  }
  if (first == "pair" || first == "devices" || first == "notifications" || first == "about") return { at: first };
  return first == "new" ? { at: "home", start: true } : { at: "home" };
};

export const href = (r: Route): string => {
  switch (r.at) {
    case "home":
      return r.start ? "#/new" : "#/";
    case "machine":
      return `#/m/${r.id}`;
    case "session":
      return `#/m/${r.id}/s/${encodeURIComponent(r.session)}${r.agent ? `?agent=${encodeURIComponent(r.agent)}` : ""}`;
    case "raw":
      return `#/m/${r.id}/raw/${encodeURIComponent(r.session)}${r.fit ? "?fit" : ""}`;
    case "shell":
      return `#/m/${r.id}/shell`;
    case "tmux": {
      const q = [r.target && `id=${encodeURIComponent(r.target)}`, r.fit && "fit"].filter(Boolean).join("&");
      return `#/m/${r.id}/tmux/${encodeURIComponent(r.name)}${q && "?" + q}`;
    }
    default:
      return `#/${r.at}`;
  }
};

export const route = createStore<Route>({ at: "home" });
/** A link that the page was opened with, until it is taken. */
export const openedWith = createStore("");

/** Reads the address bar; a pairing link is removed from it and from the history at once. */
const read = () => {
  const { hash } = location;
  if (looksLikeLink(hash.slice(1))) {
    const link = location.href;
    history.replaceState(null, "", location.pathname + location.search + "#/pair");
    openedWith.set(link);
    route.set({ at: "pair" });
    return;
  }
  route.set(parseRoute(hash));
};

export const startRouting = (): void => {
  read();
  addEventListener("hashchange", read);
};

/** Goes there; back leads here again, unless instead is set. */
export const go = (r: Route, instead = false): void => {
  if (instead) {
    history.replaceState(null, "", href(r));
    route.set(r);
  } else location.hash = href(r);
};
