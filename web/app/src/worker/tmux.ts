// The commands that reach tmux on a machine, as lines for the person's own shell.

import type { Program } from "./messages.js";

/** tmux exits with this when it could not attach. */
export const TMUX_FAILED = 1;

/** Names that tmux takes as they are and that need no quoting: no colon, dot, quote or blank. */
export const tmuxNameOk = (name: string): boolean => /^[\p{L}\p{N}_-]{1,64}$/u.test(name) && !name.startsWith("-");
/** A session's own id, such as $3. */
const targetOk = (target: string): boolean => /^\$\d{1,9}$/.test(target);

// A login by SSH has no profile: where package managers of macOS put tmux is
// added. sh, since the person's own shell may be any.
const sh = (script: string): string => `exec /bin/sh -c 'PATH="$PATH:/opt/homebrew/bin:/usr/local/bin:/opt/local/bin"; export PATH; ${script}'`;

/** The command that attaches; again: a session that is gone must not be made anew, it would look like the old one. */
export const tmuxCommand = (p: Extract<Program, { kind: "tmux" }>, again: boolean): string => {
  if (p.target ? !targetOk(p.target) : !tmuxNameOk(p.name)) throw new Error("a session's name has letters, digits, - and _");
  const flags = p.fit ? "" : " -f ignore-size";
  const target = p.target ? `\\${p.target}` : `=${p.name}`;
  const attach = `exec tmux -u attach-session${flags} -t "${target}"`;
  if (p.target || again) return sh(attach);
  return sh(`tmux -u has-session -t "=${p.name}" 2>/dev/null && ${attach}; exec tmux -u new-session -s "${p.name}"`);
};

/** A word for a shell of POSIX, whatever is in it. */
const word = (text: string): string => `'${text.replaceAll("'", `'\\''`)}'`;

/** The command that shows a session as the machine told it: the same at every attach, since a pane's name is never used again. */
export const attachCommand = (p: Extract<Program, { kind: "attach" }>): string => `exec /bin/sh -c ${word(`PATH="$PATH:/opt/homebrew/bin:/usr/local/bin:/opt/local/bin"; export PATH; exec ${p.args.map(word).join(" ")}`)}`;

/** Lists the sessions of the person's tmux server: id, names of the attached clients with commas, name; blank-separated. */
export const LIST_SESSIONS = sh('tmux -u list-sessions -F "#{session_id} #{session_attached_list} #{session_name}" 2>/dev/null');

export interface TmuxSession {
  id: string;
  /** Terminals that show it. */
  attached: number;
  name: string;
}

/** Reads what LIST_SESSIONS prints. A client is called by its terminal's path; one without a terminal is a program that listens, as the machine's own agent does in every session. */
export const parseSessions = (text: string): TmuxSession[] =>
  text.split("\n").flatMap((line) => {
    const m = /^(\$\d{1,9}) ([^ ]{0,4096}) (.{1,256})$/.exec(line);
    return m ? [{ id: m[1]!, attached: m[2]!.split(",").filter((client) => client.startsWith("/")).length, name: m[3]!.replace(/[\p{Cc}\p{Cf}]/gu, "") }] : [];
  });
