// The sentences of notifications: all that the service worker says.

export const pushEn = {
  pushWaits: "Waits for you",
  pushWaitsOn: "Waits for you on {machine}",
  pushSome: "A session waits for you",
  pushMore: "{n} more sessions wait for you",
  pushAnswered: "Answered",
  pushNobody: "Nobody waits for you any more",
  pushTest: "Notifications from {machine} arrive here.",
} as const;

export type PushWords = { [K in keyof typeof pushEn]: string };
