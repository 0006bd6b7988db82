// Whether a key sends. An Enter that confirms a composition never does: Safari
// ends the composition first and marks the key with 229 alone.

export const sends = (e: { key: string; isComposing: boolean; keyCode: number; shiftKey: boolean; ctrlKey: boolean; metaKey: boolean }, keyboard: boolean): boolean => {
  if (e.key != "Enter" || e.isComposing || e.keyCode == 229) return false;
  if (e.ctrlKey || e.metaKey) return true;
  // Where the keyboard is on the screen, Enter begins a line: there is a button.
  return keyboard && !e.shiftKey;
};
