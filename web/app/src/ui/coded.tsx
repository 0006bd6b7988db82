// Sentences of the app in which something is set as code, `so`.

/** The pieces of a sentence: every second one is code. A mark without its other stays as it is. */
export const pieces = (text: string): string[] => {
  const all = text.split("`");
  return all.length % 2 ? all : [...all.slice(0, -2), all.slice(-2).join("`")];
};

export const Coded = ({ children }: { children: string }) => <>{pieces(children).map((p, i) => (i % 2 ? <code key={i} class="in">{p}</code> : p))}</>;
