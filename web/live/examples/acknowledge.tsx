// A button that tells the truth: what it shows comes from the receipt, never
// from the fact that it was pressed.

import { useState, useSyncExternalStore } from "react";

import type { Live, LiveOptions, Receipt } from "@holdfast/live";
import { useLive } from "@holdfast/live/react";

const says: Record<Receipt["state"], string> = {
  queued: "waiting for the connection",
  sent: "sent, not confirmed yet",
  confirmed: "done",
  expired: "not sent: too old",
  dropped: "not sent",
};

/** The state of a receipt, as it changes. */
const useReceipt = (live: Live, receipt: Receipt | undefined) => useSyncExternalStore(live.subscribe, () => receipt?.state, () => receipt?.state);

export function AcknowledgeButton({ live, id }: { live: Live; id: string }) {
  const [receipt, setReceipt] = useState<Receipt>();
  const state = useReceipt(live, receipt);
  // Again only where it is certain that nothing was sent.
  const open = !state || state == "expired" || state == "dropped";
  return (
    <button
      disabled={!open}
      onClick={() =>
        setReceipt(
          live.send(
            { op: "acknowledge", id },
            // The server answers with all that is unread; a reconnect brings the same.
            { confirm: (m) => Array.isArray(m.inbox) && !m.inbox.some((n: { id: string }) => n.id == id) },
          ),
        )
      }
    >
      {state ? says[state] : "Acknowledge"}
    </button>
  );
}

export function Inbox(options: LiveOptions) {
  const [unread, setUnread] = useState<{ id: string; data: string }[]>([]);
  const { live, status } = useLive({ ...options, message: (m) => m.inbox && setUnread(m.inbox) });
  return (
    <section>
      <p>
        {status.state}
        {status.state != "live" && status.proof > 0 && `, last heard of at ${new Date(status.proof).toLocaleTimeString()}`}
      </p>
      {unread.map((n) => (
        <p key={n.id}>
          {n.data} <AcknowledgeButton live={live} id={n.id} />
        </p>
      ))}
    </section>
  );
}
