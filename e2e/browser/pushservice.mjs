// A browser vendor's push service on loopback, and the browser's half of a
// subscription: it checks what a real one checks and opens what only the browser
// can open.

import { execFileSync } from "node:child_process";
import { createDecipheriv, createECDH, createPublicKey, hkdfSync, randomBytes, verify } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:https";
import { join } from "node:path";

const b64 = (b) => Buffer.from(b).toString("base64url");

/** A certificate for 127.0.0.1 under an authority of its own: the authority's file. */
const certificate = (dir) => {
  const file = (n) => join(dir, n);
  const openssl = (...args) => execFileSync("openssl", args, { stdio: ["ignore", "ignore", "pipe"] });
  const ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
  openssl("req", "-x509", ...ec, "-subj", "/CN=Test authority", "-days", "2", "-keyout", file("ca.key"), "-out", file("ca.pem"));
  openssl("req", ...ec, "-subj", "/CN=push", "-keyout", file("push.key"), "-out", file("push.csr"));
  writeFileSync(file("push.ext"), "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth\n");
  openssl("x509", "-req", "-in", file("push.csr"), "-CA", file("ca.pem"), "-CAkey", file("ca.key"), "-CAcreateserial", "-days", "2", "-extfile", file("push.ext"), "-out", file("push.pem"));
  return { ca: file("ca.pem"), key: readFileSync(file("push.key")), cert: readFileSync(file("push.pem")) };
};

export class PushService {
  /** What came, oldest first: text, topic, ttl, urgency, bytes, at. */
  messages = [];
  /** The status of every answer. */
  status = 201;
  #browser = createECDH("prime256v1");
  #auth = randomBytes(16);
  #made = 0;

  static async start(scene) {
    const s = new PushService();
    const { ca, key, cert } = certificate(scene.dir);
    s.ca = ca;
    s.#browser.generateKeys();
    const server = createServer({ key, cert }, (req, res) => {
      const parts = [];
      req.on("data", (d) => parts.push(d));
      req.on("end", () => {
        // A subscription that another has replaced: the machine may not know it yet.
        const [, n] = /^\/send\/(\d+)$/.exec(req.url) ?? [];
        if (+n < s.#made) return res.writeHead(410).end();
        try {
          s.#take(req, Buffer.concat(parts));
        } catch (e) {
          s.fault = e;
        }
        res.writeHead(s.status).end();
      });
    });
    await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
    s.url = `https://127.0.0.1:${server.address().port}`;
    scene.later(() => {
      server.closeAllConnections();
      server.close();
      if (s.fault) throw s.fault;
    });
    return s;
  }

  /** Puts this service in the place of the browser's own, which nobody reaches from here. */
  async install(context) {
    await context.exposeFunction("__subscribe", (key) => {
      this.key = key;
      return `${this.url}/send/${++this.#made}`;
    });
    await context.addInitScript(
      ([p256dh, auth]) => {
        if (!self.PushManager || location.protocol == "about:") return;
        const bytes = (s) => Uint8Array.from(atob(s.replace(/-/g, "+").replace(/_/g, "/")), (c) => c.charCodeAt(0)).buffer;
        const text = (b) => btoa(String.fromCharCode(...new Uint8Array(b))).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
        const kept = () => JSON.parse(localStorage.getItem("test.push") ?? "null");
        const object = (k) => ({
          endpoint: k.endpoint,
          options: { userVisibleOnly: true, applicationServerKey: bytes(k.key) },
          toJSON: () => ({ endpoint: k.endpoint, expirationTime: null, keys: { p256dh, auth } }),
          unsubscribe: async () => (localStorage.removeItem("test.push"), true),
        });
        PushManager.prototype.subscribe = async (o) => {
          if (!o.userVisibleOnly) throw new DOMException("silent push is not allowed", "NotAllowedError");
          const key = text(o.applicationServerKey);
          const k = { key, endpoint: await self.__subscribe(key) };
          localStorage.setItem("test.push", JSON.stringify(k));
          return object(k);
        };
        PushManager.prototype.getSubscription = async () => (kept() ? object(kept()) : null);
      },
      [b64(this.#browser.getPublicKey()), b64(this.#auth)],
    );
  }

  #take(req, body) {
    const h = req.headers;
    const check = (ok, what) => {
      if (!ok) throw new Error(`push service: ${what}: ${req.method} ${req.url} ${JSON.stringify(h)}`);
    };
    check(req.method == "POST" && req.url == `/send/${this.#made}`, "not the subscription");
    check(h["content-encoding"] == "aes128gcm" && +h.ttl > 0 && /^[\w-]{1,32}$/.test(h.topic), "headers");
    const [, token, key] = /^vapid t=([\w.-]+), k=([\w-]+)$/.exec(h.authorization) ?? [];
    check(key == this.key, "signed with another key than the subscription was made for");
    const [head, claims, signature] = token.split(".");
    const point = Buffer.from(key, "base64url");
    const jwk = { kty: "EC", crv: "P-256", x: b64(point.subarray(1, 33)), y: b64(point.subarray(33)) };
    check(verify("sha256", Buffer.from(`${head}.${claims}`), { key: createPublicKey({ key: jwk, format: "jwk" }), dsaEncoding: "ieee-p1363" }, Buffer.from(signature, "base64url")), "signature");
    const { aud, exp, sub } = JSON.parse(Buffer.from(claims, "base64url"));
    const left = exp - Date.now() / 1000;
    check(aud == this.url && left > 0 && left <= 86_400 && sub.startsWith("https://"), "claims");
    this.messages.push({ text: this.#open(body), topic: h.topic, ttl: +h.ttl, urgency: h.urgency, bytes: body.length, at: Date.now() });
  }

  /** RFC 8291, the receiver's half. */
  #open(body) {
    const salt = body.subarray(0, 16);
    const theirs = body.subarray(21, 21 + body[20]);
    const sealed = body.subarray(21 + body[20]);
    const info = Buffer.concat([Buffer.from("WebPush: info\0"), this.#browser.getPublicKey(), theirs]);
    const ikm = hkdfSync("sha256", this.#browser.computeSecret(theirs), this.#auth, info, 32);
    const key = hkdfSync("sha256", Buffer.from(ikm), salt, "Content-Encoding: aes128gcm\0", 16);
    const nonce = hkdfSync("sha256", Buffer.from(ikm), salt, "Content-Encoding: nonce\0", 12);
    const d = createDecipheriv("aes-128-gcm", Buffer.from(key), Buffer.from(nonce));
    d.setAuthTag(sealed.subarray(-16));
    const plain = Buffer.concat([d.update(sealed.subarray(0, -16)), d.final()]);
    const end = plain.lastIndexOf(2);
    return plain.subarray(0, end).toString();
  }
}

/** Hands messages to the page's service worker, as the browser does. */
export const deliverer = async (cdp) => {
  let registration;
  cdp.on("ServiceWorker.workerRegistrationUpdated", ({ registrations }) => (registration = registrations.find((r) => !r.isDeleted) ?? registration));
  await cdp.send("ServiceWorker.enable");
  return async (text) => {
    const { registrationId, scopeURL } = registration;
    await cdp.send("ServiceWorker.deliverPushMessage", { origin: new URL(scopeURL).origin, registrationId, data: text });
  };
};
