// What is used of clients that have no types of their own.
declare module "phoenix" {
  export class Socket {
    constructor(url: string);
    connect(): void;
    channel(topic: string, payload: object): { on(event: string, f: (payload: any) => void): void; join(): void };
  }
}
declare module "robust-websocket" {
  export default class RobustWebSocket {
    constructor(url: string);
    addEventListener(type: string, f: (e: any) => void): void;
  }
}
declare module "websocket-heartbeat-js" {
  const published: { default: new (options: { url: string }) => { onmessage: (e: any) => void } };
  export default published;
}
