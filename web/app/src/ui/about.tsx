// What this page is, who can change it, and the settings of this device.

import { useEffect, useState } from "preact/hooks";
import { useWords } from "../i18n/index.js";
import { fingerprint } from "../pairing/key.js";
import { storedKey } from "../store/db.js";
import { prefs, setPrefs, type Prefs } from "../store/prefs.js";
import { useStore } from "../store/state.js";
import { Coded } from "./coded.js";
import { Bar, Fact } from "./parts.js";

/** Written into the page by its build: over every file of it. */
const digest = document.querySelector<HTMLMetaElement>('meta[name="holdfast-digest"]')?.content ?? "";

export const About = () => {
  const t = useWords();
  const p = useStore(prefs);
  const [key, setKey] = useState("");
  const [persisted, setPersisted] = useState<boolean>();
  useEffect(() => {
    void storedKey().then(async (k) => setKey(k ? await fingerprint(k.publicBlob) : ""), () => undefined);
    void navigator.storage?.persisted?.().then(setPersisted);
  }, []);
  return (
    <>
      <Bar title={t("aboutTitle")} back={{ at: "home" }} />
      <main class="page">
        <label>
          {t("language")}
          <select value={p.language} onChange={(e) => setPrefs({ language: e.currentTarget.value as Prefs["language"] })}>
            <option value="">{t("languageAuto")}</option>
            <option value="en">English</option>
            <option value="ja">日本語</option>
          </select>
        </label>
        <label>
          {t("theme")}
          <select value={p.theme} onChange={(e) => setPrefs({ theme: e.currentTarget.value as Prefs["theme"] })}>
            <option value="">{t("themeAuto")}</option>
            <option value="light">{t("themeLight")}</option>
            <option value="dark">{t("themeDark")}</option>
          </select>
        </label>
        <p>
          <Coded>{t("aboutTrust")}</Coded>
        </p>
        <dl>
          <Fact name={t("version")}>{__VERSION__}</Fact>
          <Fact name={t("digest")}>
            <code>{digest}</code>
          </Fact>
          {key && (
            <Fact name={t("deviceKey")}>
              <code>{key}</code>
            </Fact>
          )}
        </dl>
        <p class="dim">{persisted === undefined ? "" : t(persisted ? "persisted" : "pairPersist")}</p>
      </main>
    </>
  );
};
