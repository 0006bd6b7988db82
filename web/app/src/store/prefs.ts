// What the person has set on this device. No secret is ever here.

import { createStore } from "./state.js";

export interface Prefs {
  /** Of the terminal; CSS px. */
  fontSize: number;
  /** "": the system's. */
  language: "" | "en" | "ja";
  theme: "" | "light" | "dark";
  /** The key row: by the kind of device, or as the person wants. */
  keys: "" | "on" | "off";
  screenReader: boolean;
}

export const MIN_FONT = 8;
export const MAX_FONT = 28;

const defaults: Prefs = { fontSize: 0, language: "", theme: "", keys: "", screenReader: false };
const NAME = "holdfast.prefs";

const load = (): Prefs => {
  try {
    const kept = JSON.parse(localStorage.getItem(NAME) ?? "{}");
    const p = { ...defaults };
    for (const k of Object.keys(defaults) as (keyof Prefs)[]) if (typeof kept[k] == typeof defaults[k]) (p as any)[k] = kept[k];
    return p;
  } catch {
    return { ...defaults };
  }
};

export const prefs = createStore<Prefs>(load());

export const setPrefs = (change: Partial<Prefs>): void => {
  prefs.set((p) => ({ ...p, ...change }));
  try {
    localStorage.setItem(NAME, JSON.stringify(prefs.value));
  } catch {
    // A private window: it lasts as long as the page does.
  }
};
