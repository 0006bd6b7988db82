// Passes the test's orders on to the Worker.

const worker = new Worker("/worker.js", { type: "module" });
const waiting = new Map<number, (answer: [unknown, unknown]) => void>();
worker.onmessage = ({ data: [id, error, value] }) => waiting.get(id)?.([error, value]);
let last = 0;

Object.assign(globalThis, {
  order: (...order: unknown[]) =>
    new Promise((resolve, reject) => {
      const id = ++last;
      waiting.set(id, ([error, value]) => (error ? reject(new Error(error as string)) : resolve(value)));
      worker.postMessage([id, ...order]);
    }),
});
