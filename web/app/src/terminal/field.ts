// The visible text field that a person types into, and its events: what comes
// out is bytes for the terminal. The order of these events differs between
// keyboards and browsers; the text of the field does not lie.

import { control, keyBytes, modified, type KeyModes, type Modifiers } from "./keys.js";
import { createMirror, PAD } from "./mirror.js";

export interface FieldOptions {
  /** Bytes for the program, in order. False: nobody takes them. */
  send(bytes: string): boolean;
  paste(text: string): void;
  modes(): KeyModes;
  /** The key row's sticky modifiers, used up by the next key. */
  sticky(): Modifiers;
  used(): void;
}

export interface Field {
  /** A key of the key row or a paste went past the field: its line is another one. */
  reset(): void;
  dispose(): void;
}

const mac = typeof navigator != "undefined" && /Mac|iPhone|iPad/.test(navigator.platform);

export const bindField = (el: HTMLTextAreaElement, o: FieldOptions): Field => {
  const mirror = createMirror();
  let composing = false;

  const show = () => {
    if (composing) return;
    if (el.value != mirror.value) el.value = mirror.value;
    // A caret within the pad would type before the text.
    if (el.selectionStart == el.selectionEnd && el.selectionStart < PAD.length) el.setSelectionRange(el.value.length, el.value.length);
  };
  const reset = () => {
    mirror.reset();
    show();
  };
  const flush = () => {
    if (composing) return;
    const out = mirror.changed(el.value);
    const sticky = o.sticky();
    if (out && (sticky.ctrl || sticky.alt) && !out.startsWith("\x7f")) {
      o.send(modified(out, sticky));
      o.used();
      mirror.reset();
    } else if (out && !o.send(out)) mirror.reset();
    show();
  };
  /** A key that is no text: sent as it is, and the line is another one. */
  const key = (bytes: string) => {
    flush();
    o.send(bytes);
    o.used();
    reset();
  };

  const keydown = (e: KeyboardEvent) => {
    // 229: the keyboard works on the text, and Enter confirms a composition.
    // Safari sends that one after the composition has ended.
    if (e.isComposing || composing || e.keyCode == 229) return;
    // Copy and paste of the system.
    if (e.metaKey || (e.ctrlKey && e.shiftKey && /^[cv]$/i.test(e.key))) return;
    const sticky = o.sticky();
    const m = { shift: e.shiftKey || !!sticky.shift, alt: e.altKey || !!sticky.alt, ctrl: e.ctrlKey || !!sticky.ctrl };
    // AltGr types characters and claims to be Ctrl and Alt; Option does on a Mac.
    const types = e.key.length == 1 && (e.getModifierState("AltGraph") || (mac && e.altKey && !e.ctrlKey));
    if (e.key.length == 1 || types) {
      if (types || (!m.ctrl && !m.alt)) return;
      const c = m.ctrl ? control(e.key) : e.key;
      if (c === undefined) return;
      e.preventDefault();
      return key((m.alt ? "\x1b" : "") + c);
    }
    // The field deletes, so that it and the line stay alike.
    if (e.key == "Backspace" && !m.ctrl && !m.alt) return;
    const bytes = keyBytes(e.key, m, o.modes());
    if (bytes === undefined) return;
    e.preventDefault();
    key(bytes);
  };
  const beforeinput = (e: InputEvent) => {
    if (composing || e.isComposing) return;
    if (e.inputType == "insertLineBreak" || e.inputType == "insertParagraph") {
      e.preventDefault();
      key("\r");
    } else if (e.inputType == "deleteWordBackward" && mirror.empty) {
      // The pad looks like a word of eight characters.
      e.preventDefault();
      key("\x17");
    } else if ((e.inputType == "deleteSoftLineBackward" || e.inputType == "deleteHardLineBackward") && mirror.empty) {
      e.preventDefault();
      key("\x15");
    } else if (e.inputType == "insertFromPaste" || e.inputType == "insertFromDrop") {
      const text = e.data ?? e.dataTransfer?.getData("text/plain");
      if (text) {
        e.preventDefault();
        o.paste(text);
        reset();
      }
    }
  };
  const input = (e: Event) => {
    if (!(e as InputEvent).isComposing) flush();
  };
  const compositionstart = () => {
    composing = true;
  };
  const compositionend = () => {
    composing = false;
    flush();
  };
  const pasted = (e: ClipboardEvent) => {
    e.preventDefault();
    flush();
    const text = e.clipboardData?.getData("text/plain");
    if (text) o.paste(text);
    reset();
  };
  const select = () => {
    if (document.activeElement == el) show();
  };
  // A field that loses the focus within a composition gets no end of it.
  const blur = () => {
    if (composing) compositionend();
  };

  const events: [string, EventListener][] = [
    ["keydown", keydown as EventListener],
    ["beforeinput", beforeinput as EventListener],
    ["input", input],
    ["compositionstart", compositionstart],
    ["compositionend", compositionend],
    ["paste", pasted as EventListener],
    ["blur", blur],
    ["focus", show],
  ];
  for (const [name, f] of events) el.addEventListener(name, f);
  document.addEventListener("selectionchange", select);
  reset();
  return {
    reset,
    dispose() {
      for (const [name, f] of events) el.removeEventListener(name, f);
      document.removeEventListener("selectionchange", select);
    },
  };
};
