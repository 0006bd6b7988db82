// The screens, by where one is.

import type { FunctionComponent } from "preact";
import { useEffect, useState } from "preact/hooks";
import { useWords } from "../i18n/index.js";
import { route, type Route } from "../route.js";
import { useStore } from "../store/state.js";
import { About } from "./about.js";
import { Devices } from "./devices.js";
import { Home } from "./home.js";
import { MachineScreen } from "./machine.js";
import { PairScreen } from "./pair.js";
import type { TerminalProps } from "./terminal.js";

/** The terminal is half of the bytes: it comes when it is needed. */
const LazyTerminal = (props: TerminalProps) => {
  const t = useWords();
  const [View, set] = useState<FunctionComponent<TerminalProps>>();
  const [fault, setFault] = useState("");
  useEffect(() => {
    import("./terminal.js").then((m) => set(() => m.TerminalScreen)).catch((e) => setFault(String(e)));
  }, []);
  return View ? <View {...props} /> : <p class="plain">{fault || t("loading")}</p>;
};

const screen = (r: Route) => {
  switch (r.at) {
    case "home":
      return <Home />;
    case "pair":
      return <PairScreen />;
    case "machine":
      return <MachineScreen key={r.id} id={r.id} />;
    case "shell":
      return <LazyTerminal key={`${r.id} shell`} id={r.id} program={{ kind: "shell" }} />;
    case "tmux":
      return <LazyTerminal key={`${r.id} ${r.name} ${r.fit}`} id={r.id} program={{ kind: "tmux", name: r.name, ...(r.target && { target: r.target }), fit: r.fit }} />;
    case "devices":
      return <Devices />;
    case "about":
      return <About />;
  }
};

export const App = () => {
  const now = useStore(route);
  useEffect(() => scrollTo(0, 0), [now]);
  return screen(now);
};

/** Without https a browser gives a page neither cryptography nor a place for keys. */
export const Insecure = () => {
  const t = useWords();
  return (
    <main class="page">
      <h1>{t("insecureTitle")}</h1>
      <p>{t("insecureText", { host: location.host })}</p>
    </main>
  );
};
