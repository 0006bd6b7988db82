// How the legs of a byte stream are judged, for programs that carry one (SSH in
// a page, with its own keep-alive as the probe). Not part of a channel's client.

import { BYTE, PROTOCOL, type JudgeConfig } from "./judge.js";

/** A data connection: 15 s is the shortest idle limit of a known CDN. */
export const data: JudgeConfig = {
  handshake: 1e4,
  keepalive: 15e3,
  tracks: [{ probe: PROTOCOL, counts: BYTE, idle: 15e3, window: 1e4 }],
};

/** The same on the leg of a person who types: dead 5 s after the first unanswered key. */
export const typing: JudgeConfig = { ...data, typing: { quiet: 1e3, maxBytes: 256, idle: 2e3, window: 3e3 } };
