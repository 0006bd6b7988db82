// Colours of the terminal. Both sets keep every ANSI colour readable on the
// background (4.5 : 1, but for the blacks that are meant to be faint).

import type { ITheme } from "@xterm/xterm";

export const dark: ITheme = {
  background: "#101418", foreground: "#dfe5ea", cursor: "#7fd1b9", cursorAccent: "#101418", selectionBackground: "#3a5a6a",
  black: "#4b555e", red: "#ff8080", green: "#7fd17f", yellow: "#e6c35c", blue: "#7fb4ff", magenta: "#d79bff", cyan: "#5fd0d0", white: "#dfe5ea",
  brightBlack: "#8a96a1", brightRed: "#ffa3a3", brightGreen: "#a2e6a2", brightYellow: "#f5d98a", brightBlue: "#a6cbff", brightMagenta: "#e5bfff", brightCyan: "#93e4e4", brightWhite: "#ffffff",
};

export const light: ITheme = {
  background: "#fbfcfc", foreground: "#1c2329", cursor: "#00705a", cursorAccent: "#fbfcfc", selectionBackground: "#b9d9e8",
  black: "#1c2329", red: "#b3261e", green: "#1b6e2a", yellow: "#7a5b00", blue: "#1657b8", magenta: "#7d2ea8", cyan: "#006a75", white: "#69757e",
  brightBlack: "#59646c", brightRed: "#c4362d", brightGreen: "#217a33", brightYellow: "#866500", brightBlue: "#2a66c4", brightMagenta: "#8b3fb5", brightCyan: "#00737f", brightWhite: "#2b343b",
};

export const dimmed = (theme: "" | "light" | "dark"): boolean => theme == "dark" || (!theme && matchMedia("(prefers-color-scheme: dark)").matches);
