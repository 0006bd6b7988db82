// The words of the app in the person's language, from one catalogue. English is
// always there; another one is fetched before the first screen.

import { prefs } from "../store/prefs.js";
import { createStore, useStore } from "../store/state.js";
import { en, type Words } from "./en.js";

const words = createStore<Words>(en);

const wanted = (): "en" | "ja" => prefs.value.language || (navigator.languages?.some((l) => /^(en|ja)\b/i.test(l)) && /^ja\b/i.test(navigator.languages.find((l) => /^(en|ja)\b/i.test(l))!) ? "ja" : "en");

/** Fetches the words of the language that is set, and keeps to it when it changes. */
export const startWords = async (): Promise<void> => {
  const load = async () => {
    const language = wanted();
    document.documentElement.lang = language;
    words.set(language == "ja" ? (await import("./ja.js")).ja : en);
  };
  prefs.subscribe(() => void load());
  await load().catch(() => undefined);
};

export type Key = keyof Words;

/** The text of a key, with its {names} filled in. */
export const t = (key: Key, values?: Record<string, string | number>): string => {
  const text = words.value[key];
  return values ? text.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole)) : text;
};

/** Has a component drawn again when the language changes. */
export const useWords = (): typeof t => {
  useStore(words);
  return t;
};

/** How long ago, in words. */
export const ago = (then: number, now = Date.now()): string => {
  const s = Math.max(0, Math.round((now - then) / 1000));
  if (s < 2) return t("now");
  if (s < 100) return t("secondsAgo", { n: s });
  if (s < 100 * 60) return t("minutesAgo", { n: Math.round(s / 60) });
  if (s < 48 * 3600) return t("hoursAgo", { n: Math.round(s / 3600) });
  return new Date(then).toLocaleDateString(document.documentElement.lang);
};

export const clock = (at: number): string => new Date(at).toLocaleTimeString(document.documentElement.lang, { hour: "2-digit", minute: "2-digit" });
