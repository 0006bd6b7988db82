import type { PushWords } from "./en.js";

export const pushJa: PushWords = {
  pushWaits: "あなたを待っています",
  pushWaitsOn: "{machine} であなたを待っています",
  pushSome: "あなたを待っているセッションがあります",
  pushMore: "ほかに {n} 件のセッションが待っています",
  pushAnswered: "回答済み",
  pushNobody: "待っているセッションはもうありません",
  pushTest: "{machine} からの通知がこの端末に届きます。",
};
