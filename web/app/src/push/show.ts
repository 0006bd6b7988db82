// What the service worker does with a push message: it shows whom the machine
// calls for, in words of this device, and takes back what was answered.
//
// Every message shows something, since browsers take the right away from pages
// that are silent: where a call is taken back, a quiet "answered" stands in its
// place until the app is opened or something else begins to wait.

import { pushEn } from "../i18n/push/en.js";
import { pushJa } from "../i18n/push/ja.js";
import { keptList } from "../sessions/kept.js";
import type { Session } from "../sessions/model.js";
import { oneLine } from "../sessions/plain.js";
import { counts, keepCount, keepShown, pushLanguage, pushMachines } from "./kept.js";
import { namer, readMessage, type PushMessage } from "./message.js";

export interface Shown {
  as: string;
  /** The session's name in messages; "" where the notification is of none. */
  name: string;
  /** It calls for nobody any more. */
  done: boolean;
  /** Where a tap leads: the fragment of the page's address. */
  hash: string;
}

/** So many notifications of one message stand by themselves. */
const MAX_SHOWN = 4;

interface Registration {
  showNotification(title: string, o: Record<string, unknown>): Promise<void>;
  getNotifications(): Promise<{ title: string; tag: string; data: unknown; close(): void }[]>;
}

/** What a person calls a session. */
const titleOf = (s: Session): string => oneLine((s.tool && s.conversation && s.title) || s.name).slice(0, 80);

export const show = async (registration: Registration, text: string | undefined, badge: (n: number) => void): Promise<void> => {
  const language = (await pushLanguage().catch(() => undefined)) || globalThis.navigator?.language || "en";
  const words = /^ja\b/i.test(language) ? pushJa : pushEn;
  const say = (key: keyof typeof pushEn, values: Record<string, string | number> = {}): string => words[key].replace(/\{(\w+)\}/g, (_, n: string) => String(values[n] ?? ""));
  const m = readMessage(text);
  // Without an icon: the browser would fetch it first, and show nothing for as long
  // as the path to the page's server is dead.
  const put = (title: string, body: string, tag: string, data: Shown, quiet = false) =>
    registration.showNotification(title, { body, tag, data, lang: words == pushJa ? "ja" : "en", renotify: !quiet, silent: quiet, timestamp: Date.now() });
  if (!m) return put("Holdfast", say("pushSome"), "holdfast", { as: "", name: "", done: false, hash: "#/" });

  const machine = (await pushMachines().catch(() => [])).find((x) => x.as == m.as);
  const name = machine ? oneLine(machine.name) : "Holdfast";
  if (m.test) {
    await put(name, say("pushTest", { machine: name }), `test ${m.as}`, { as: m.as, name: "", done: true, hash: "#/notifications" });
    if (machine) await keepShown(machine.id).catch(() => undefined);
    return;
  }

  // The names are found before anything is shown, so that nothing flickers.
  const sessions = machine ? await known(machine.id, m) : new Map<string, Session>();
  const there = (await registration.getNotifications()).filter((n) => (n.data as Shown | null)?.as == m.as);
  const left = there.filter((n) => !(n.data as Shown).done && (n.data as Shown).name && !m.open.includes((n.data as Shown).name));
  const fresh = m.open.slice(0, m.fresh);
  if (fresh.length) {
    for (const n of there) if ((n.data as Shown).done || left.includes(n)) n.close();
    for (const one of fresh.slice(0, MAX_SHOWN).reverse()) {
      const s = sessions.get(one);
      const hash = machine && s ? `#/m/${machine.id}/s/${encodeURIComponent(s.id)}` : "#/";
      await put(s ? titleOf(s) : name, s ? say("pushWaitsOn", { machine: name }) : say("pushSome"), `call ${m.as} ${one}`, { as: m.as, name: one, done: false, hash });
    }
    const more = fresh.length - MAX_SHOWN + m.more;
    if (fresh.length > MAX_SHOWN) await put(name, say("pushMore", { n: more }), `more ${m.as}`, { as: m.as, name: "", done: false, hash: "#/" });
  } else {
    // The last one that was taken back stays, with other words.
    const last = left[0];
    for (const n of there) if (n != last && (left.includes(n) || (n.data as Shown).done || (!m.open.length && !(n.data as Shown).name))) n.close();
    const was = last?.data as Shown | undefined;
    await put(last ? last.title : name, say(last || m.open.length ? "pushAnswered" : "pushNobody"), last ? last.tag : `done ${m.as}`, { as: m.as, name: was?.name ?? "", done: true, hash: was?.hash ?? "#/" }, true);
  }
  if (!machine) return;
  await keepShown(machine.id).catch(() => undefined);
  await keepCount(machine.id, m.open.length + m.more).catch(() => undefined);
  badge((await counts().catch(() => [])).reduce((a, b) => a + b, 0));
};

/** The sessions that a message names, as far as this device has heard of them. */
const known = async (machine: string, m: PushMessage): Promise<Map<string, Session>> => {
  const found = new Map<string, Session>();
  const kept = await keptList(machine).catch(() => undefined);
  if (!kept) return found;
  const nameOf = await namer(m.as);
  const wanted = new Set(m.open);
  for (const s of kept.sessions) {
    if (found.size == wanted.size) break;
    const n = await nameOf(s.id);
    if (wanted.has(n)) found.set(n, s);
  }
  return found;
};
