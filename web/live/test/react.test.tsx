// The hook and the example's button, rendered without a browser.

import assert from "node:assert/strict";
import { test } from "node:test";
import { StrictMode } from "react";
import { act, create, type ReactTestRenderer } from "react-test-renderer";

import { Inbox } from "../examples/acknowledge.js";
import { createSite } from "./fake.js";

(globalThis as any).IS_REACT_ACT_ENVIRONMENT = true;

const texts = (r: ReactTestRenderer) => r.root.findAllByType("p").map((p) => p.children.filter((c) => typeof c == "string").join(""));
const button = (r: ReactTestRenderer) => r.root.findByType("button");

test("the button shows what the receipt says", (t) => {
  t.mock.method(console, "error", (m: unknown) => assert.match(String(m), /react-test-renderer is deprecated/));
  const site = createSite();
  let page!: ReactTestRenderer;
  act(() => {
    page = create(<Inbox {...site.options} />);
  });
  assert.deepEqual(texts(page), ["connecting"]);
  act(() => site.socket.open());
  act(() => site.socket.message({ inbox: [{ id: "n1", data: "hello" }] }));
  assert.match(texts(page)[0]!, /^live$/);
  assert.deepEqual(button(page).children, ["Acknowledge"]);

  // The link is lost: pressed now, it waits.
  act(() => site.socket.end());
  act(() => site.clock.advance(10));
  assert.match(texts(page)[0]!, /^reconnecting, last heard of at /);
  act(() => button(page).props.onClick());
  assert.deepEqual(button(page).children, ["waiting for the connection"]);
  assert.equal(button(page).props.disabled, true);
  act(() => site.clock.advance(3_000));
  act(() => site.socket.open());
  act(() => site.socket.message({ inbox: [{ id: "n1", data: "hello" }, { id: "n2", data: "more" }] }));
  const first = page.root.findAllByType("button")[0]!;
  assert.deepEqual(first.children, ["sent, not confirmed yet"]);
  assert.deepEqual(site.socket.sent, ['{"op":"acknowledge","id":"n1"}']);
  act(() => site.socket.message({ inbox: [{ id: "n2", data: "more" }] }));
  assert.deepEqual(button(page).children, ["Acknowledge"], "n1 is gone from the list");
  act(() => page.unmount());
  assert.ok(site.socket.closed);
  assert.equal(site.clock.pending > 0, true, "the closed socket is waited for");
  site.clock.advance(120_000);
  assert.equal(site.clock.pending, 0);
});

test("under StrictMode and with another context there is one live socket", (t) => {
  t.mock.method(console, "error", (m: unknown) => assert.match(String(m), /react-test-renderer is deprecated/));
  const site = createSite();
  let page!: ReactTestRenderer;
  const show = (context: string) => (
    <StrictMode>
      <Inbox {...site.options} context={context} />
    </StrictMode>
  );
  act(() => {
    page = create(show("a"));
  });
  act(() => site.clock.advance(300));
  const open = () => site.sockets.filter((s) => !s.closed);
  assert.equal(open().length, 1);
  act(() => page.update(show("b")));
  act(() => site.clock.advance(300));
  assert.equal(open().length, 1);
  act(() => page.unmount());
  assert.equal(open().length, 0);
});
