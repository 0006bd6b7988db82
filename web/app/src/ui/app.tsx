// The screens, by where one is.

import type { FunctionComponent } from "preact";
import { useEffect, useState } from "preact/hooks";
import { useWords } from "../i18n/index.js";
import { connectionOf } from "../machines.js";
import { route, type Route } from "../route.js";
import { useStore } from "../store/state.js";
import { Coded } from "./coded.js";
import { Home } from "./home.js";
import { MachineScreen } from "./machine.js";
import { PairScreen } from "./pair.js";
import type { TerminalProps } from "./terminal.js";
import { terminalPart } from "./terminalpart.js";

/** Parts that come when they are needed. */
const lazy = <P extends object>(load: () => Promise<FunctionComponent<P>>): FunctionComponent<P> => {
  let got: FunctionComponent<P> | undefined;
  return (props: P) => {
    const t = useWords();
    const [View, set] = useState<FunctionComponent<P> | undefined>(() => got);
    const [fault, setFault] = useState("");
    useEffect(() => {
      if (!View) load().then((v) => set(() => (got = v)), (e) => setFault(String(e)));
    }, []);
    return View ? <View {...props} /> : <p class="plain">{fault || t("loading")}</p>;
  };
};
/** The terminal is half of the bytes: it comes when it is needed, or soon will be. */
const TerminalPart = lazy(() => terminalPart().then((m) => m.TerminalScreen));
const LazyTerminal = (props: TerminalProps) => {
  // Connecting waits for no bytes of the page.
  useEffect(() => connectionOf(props.id).look(), [props.id]);
  return <TerminalPart {...props} />;
};
const LazySession = lazy(() => import("./session.js").then((m) => m.SessionScreen));
const About = lazy(() => import("./about.js").then((m) => m.About));
const Devices = lazy(() => import("./devices.js").then((m) => m.Devices));
const LazyRaw = lazy(() => import("./raw.js").then((m) => m.RawScreen));
const LazyNotifications = lazy(() => import("./notifications.js").then((m) => m.Notifications));

/** From here on the list stands beside the session. */
const WIDE = "(min-width: 64rem)";
const useWide = (): boolean => {
  const [wide, set] = useState(() => matchMedia(WIDE).matches);
  useEffect(() => {
    const m = matchMedia(WIDE);
    const look = () => set(m.matches);
    m.addEventListener("change", look);
    return () => m.removeEventListener("change", look);
  }, []);
  return wide;
};

const screen = (r: Route) => {
  switch (r.at) {
    case "home":
      return <Home start={r.start} />;
    case "pair":
      return <PairScreen />;
    case "machine":
      return <MachineScreen key={r.id} id={r.id} />;
    case "session":
      return <LazySession key={`${r.id} ${r.session} ${r.agent ?? ""}`} id={r.id} session={r.session} {...(r.agent && { agent: r.agent })} />;
    case "raw":
      return <LazyRaw key={`${r.id} ${r.session} ${r.fit}`} id={r.id} session={r.session} fit={r.fit} />;
    case "shell":
      return <LazyTerminal key={`${r.id} shell`} id={r.id} program={{ kind: "shell" }} />;
    case "tmux":
      return <LazyTerminal key={`${r.id} ${r.name} ${r.fit}`} id={r.id} program={{ kind: "tmux", name: r.name, ...(r.target && { target: r.target }), fit: r.fit }} />;
    case "devices":
      return <Devices />;
    case "notifications":
      return <LazyNotifications />;
    case "about":
      return <About />;
  }
};

export const App = () => {
  const now = useStore(route);
  const wide = useWide();
  const t = useWords();
  useEffect(() => scrollTo(0, 0), [now]);
  if (wide && (now.at == "home" || now.at == "session"))
    return (
      <div class="panes">
        <aside class="pane" aria-label={t("sessions")}>
          <Home beside chosen={now.at == "session" ? `${now.id} ${now.session}` : undefined} start={now.at == "home" && now.start} />
        </aside>
        {now.at == "session" ? (
          <div class="pane main">{screen(now)}</div>
        ) : (
          <main class="pane main">
            <p class="plain dim">{t("pickSession")}</p>
          </main>
        )}
      </div>
    );
  return screen(now);
};

/** Without https a browser gives a page neither cryptography nor a place for keys. */
export const Insecure = () => {
  const t = useWords();
  return (
    <main class="page">
      <h1>{t("insecureTitle")}</h1>
      <p>
        <Coded>{t("insecureText", { host: location.host })}</Coded>
      </p>
    </main>
  );
};
