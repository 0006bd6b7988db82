// Pairing: the link that the page was opened with, one that is pasted, or a code
// that the camera sees.

import { useEffect, useRef, useState } from "preact/hooks";
import { clock, useWords, type Key } from "../i18n/index.js";
import { pairByLink } from "../machines.js";
import { foreignRelay, parseLink } from "../pairing/link.js";
import { go, openedWith } from "../route.js";
import { useStore } from "../store/state.js";
import type { PairStep, Tell } from "../worker/messages.js";
import { Coded } from "./coded.js";
import { Bar, Fact } from "./parts.js";
import { faultWords } from "./words.js";

const steps: Record<PairStep, Key> = { key: "pairKey", redeem: "pairRedeem", connect: "pairConnect", prove: "pairProve" };

/** What this device is called until the person says otherwise. */
export const guessName = (ua = navigator.userAgent): string => {
  const what = /iPhone/.test(ua) ? "iPhone" : /iPad/.test(ua) ? "iPad" : /Android/.test(ua) ? "Android" : /Mac/.test(ua) ? "Mac" : /Windows/.test(ua) ? "Windows" : /CrOS/.test(ua) ? "Chromebook" : /Linux/.test(ua) ? "Linux" : "browser";
  const by = /Firefox/.test(ua) ? "Firefox" : /Edg\//.test(ua) ? "Edge" : /Chrome/.test(ua) ? "Chrome" : /Safari/.test(ua) ? "Safari" : "";
  return by ? `${what}, ${by}` : what;
};

/** Added to a home screen: storage of its own, which is not wiped after a week. */
const installed = () => matchMedia("(display-mode: standalone)").matches || (navigator as { standalone?: boolean }).standalone === true;
const ios = () => /iPhone|iPad|Mac.*Mobile/.test(navigator.userAgent);

export const PairScreen = () => {
  const t = useWords();
  const opened = useStore(openedWith);
  const [link, setLink] = useState("");
  const [name, setName] = useState(guessName());
  const [step, setStep] = useState<PairStep>();
  const [fault, setFault] = useState<Extract<Tell, { op: "notPaired" }>>();
  const [scanning, setScanning] = useState(false);

  /** A link of another relay than this page's, until the person has said whether it is meant. */
  const [foreign, setForeign] = useState<{ link: string; relay: string; machine: string }>();

  const question = useRef<HTMLElement>(null);
  // It takes the place of the form, in which the focus was.
  useEffect(() => question.current?.focus(), [foreign]);

  const begin = async (text: string) => {
    setFault(undefined);
    // One that cannot be read is told apart where it is used.
    const link = await parseLink(text).catch(() => undefined);
    if (link && foreignRelay(link.relay, location.origin)) return setForeign({ link: text, relay: link.relay, machine: link.machine });
    await run(text);
  };

  const run = async (text: string) => {
    setForeign(undefined);
    setFault(undefined);
    setStep("key");
    const result = await pairByLink(text, name.trim() || guessName(), setStep);
    setStep(undefined);
    if (result.op == "notPaired") return setFault(result);
    // The browser may keep what is stored here, or say that it may not.
    await navigator.storage?.persist?.().catch(() => false);
    go({ at: "machine", id: result.machine }, true);
  };

  // A link that the page was opened with: the person has scanned it to pair.
  useEffect(() => {
    if (!opened) return;
    openedWith.set("");
    if (ios() && !installed()) setLink(opened);
    else void begin(opened);
  }, [opened]);

  return (
    <>
      <Bar title={t("pairTitle")} back={{ at: "home" }} />
      <main class="page">
        {fault && (
          <section class="note bad" role="alert" data-fault={fault.fault}>
            <p>
              <Coded>{faultWords(fault.fault, { text: fault.text ?? "", time: fault.expires ? clock(fault.expires) : "" })}</Coded>
            </p>
            {fault.shown && (
              <dl>
                <Fact name={t("whyHostKeyPinned")}>
                  {fault.pinned?.map((p) => (
                    <code key={p}>{p}</code>
                  ))}
                </Fact>
                <Fact name={t("whyHostKeyShown")}>
                  <code>{fault.shown}</code>
                </Fact>
              </dl>
            )}
          </section>
        )}
        {foreign && (
          <section class="note" role="alert" data-relay={foreign.relay} tabIndex={-1} ref={question}>
            <p>
              <strong>{t("pairForeign")}</strong>
            </p>
            <p>
              <code class="break">{foreign.relay}</code>
            </p>
            <p>{t("pairForeignWhat", { machine: foreign.machine, page: location.host })}</p>
            <div class="row">
              <button class="grow" onClick={() => void run(foreign.link)}>
                {t("pairGo")}
              </button>
              <button class="quiet" onClick={() => setForeign(undefined)}>
                {t("pairForeignNot")}
              </button>
            </div>
          </section>
        )}
        {foreign ? null : step ? (
          <p class="busy" role="status">
            {t(steps[step])}
          </p>
        ) : (
          <>
            {ios() && !installed() && <p class="note">{t("pairInstall")}</p>}
            <form
              onSubmit={(e) => {
                e.preventDefault();
                const text = link;
                setLink("");
                void begin(text);
              }}
            >
              <label>
                {t("pairPaste")}
                <textarea class="link" rows={4} value={link} onInput={(e) => setLink(e.currentTarget.value)} placeholder={t("pairPasteHint")} autocapitalize="off" autocomplete="off" spellcheck={false} />
              </label>
              <p class="dim">
                <Coded>{t("pairWhere")}</Coded>
              </p>
              <label>
                {t("pairName")}
                <input value={name} maxLength={64} onInput={(e) => setName(e.currentTarget.value)} />
              </label>
              <div class="row">
                <button class="grow" disabled={!link.trim()}>
                  {t("pairGo")}
                </button>
                {canScan() && (
                  <button type="button" class="second" onClick={() => setScanning(!scanning)}>
                    {t(scanning ? "pairScanStop" : "pairScan")}
                  </button>
                )}
              </div>
            </form>
            {scanning ? (
              <Scanner
                onFound={(text) => {
                  setScanning(false);
                  void begin(text);
                }}
              />
            ) : (
              !canScan() && <p class="dim">{t("pairNoScanner")}</p>
            )}
          </>
        )}
      </main>
    </>
  );
};

interface Detector {
  detect(from: HTMLVideoElement): Promise<{ rawValue: string }[]>;
}
interface Detectors {
  new (o: { formats: "qr_code"[] }): Detector;
  getSupportedFormats(): Promise<readonly string[]>;
}

const canScan = () => !!navigator.mediaDevices?.getUserMedia;

/** The browser's own reader of codes where it has one, as Chrome on Android; else one that is loaded. */
const detector = async (): Promise<Detector> => {
  const own = (globalThis as { BarcodeDetector?: Detectors }).BarcodeDetector;
  const formats: readonly string[] | undefined = await own?.getSupportedFormats().catch(() => []);
  const C: Detectors = own && formats?.includes("qr_code") ? own : (await import("qr/decode.js")).BarcodeDetector;
  return new C({ formats: ["qr_code"] });
};

/** So often a picture is looked at: a code is held still for longer. */
const LOOK = 200;

const Scanner = ({ onFound }: { onFound: (text: string) => void }) => {
  const t = useWords();
  const video = useRef<HTMLVideoElement>(null);
  const [refused, setRefused] = useState(false);
  useEffect(() => {
    let stream: MediaStream | undefined;
    let timer: ReturnType<typeof setTimeout> | undefined;
    let over = false;
    const start = async () => {
      try {
        stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
        if (over) return stop();
        video.current!.srcObject = stream;
        await video.current!.play();
        const reader = await detector();
        const look = async () => {
          const codes = await reader.detect(video.current!).catch(() => []);
          const found = codes.find((c) => c.rawValue.includes("#hf"));
          if (over) return;
          if (found) return onFound(found.rawValue);
          timer = setTimeout(look, LOOK);
        };
        await look();
      } catch {
        if (!over) setRefused(true);
      }
    };
    const stop = () => {
      over = true;
      clearTimeout(timer);
      for (const track of stream?.getTracks() ?? []) track.stop();
    };
    void start();
    return stop;
  }, []);
  return refused ? <p class="note">{t("pairCameraRefused")}</p> : <video ref={video} class="camera" muted playsInline />;
};
