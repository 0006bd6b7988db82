// Who may enter: the devices of each account, each revocable.

import { useEffect, useState } from "preact/hooks";
import { ago, useWords } from "../i18n/index.js";
import { accounts, forget, tokenRefused } from "../machines.js";
import { listDevices, RelayError, revokeDevice, type RelayDevice } from "../relay.js";
import { machines, type Machine } from "../store/db.js";
import { useNow } from "../store/state.js";
import { Bar, Sheet } from "./parts.js";
import { whyWords } from "./words.js";

interface Group {
  of: Machine;
  devices: RelayDevice[];
  fault?: { code: number; text: string };
}

const ask = async (of: Machine): Promise<Group> => {
  try {
    return { of, devices: await listDevices(of.relay, of.token) };
  } catch (e) {
    if (e instanceof RelayError && e.code == 4401) await tokenRefused(of.token).catch(() => undefined);
    return { of, devices: [], fault: e instanceof RelayError ? { code: e.code, text: e.message } : { code: 1006, text: "" } };
  }
};

export const Devices = () => {
  const t = useWords();
  const now = useNow(30_000);
  const [groups, set] = useState<Group[]>();
  const [revoking, setRevoking] = useState<{ group: Group; device: RelayDevice }>();
  const load = async () => set(await Promise.all((await accounts()).map(ask)));
  useEffect(() => void load(), []);

  const revoke = async () => {
    const { group, device } = revoking!;
    setRevoking(undefined);
    try {
      await revokeDevice(group.of.relay, group.of.token, device.id);
      if (device.this) {
        // This device is out: what it knew of that account is of no use any more.
        for (const m of await machines()) if (m.relay == group.of.relay && m.account == group.of.account) await forget(m.id);
      }
    } catch (e) {
      const fault = e instanceof RelayError ? { code: e.code, text: e.message } : { code: 1006, text: "" };
      set((all) => all?.map((g) => (g == group ? { ...g, fault } : g)));
      return;
    }
    await load();
  };

  return (
    <>
      <Bar title={t("devicesTitle")} back={{ at: "home" }} />
      <main class="page">
        {!groups && <p>{t("loading")}</p>}
        {groups?.map((g) => (
          <section key={g.of.relay + g.of.account}>
            <h2>{t("accountAt", { account: g.of.account, relay: new URL(g.of.relay).host })}</h2>
            {g.fault && <p class="note bad" role="alert">{whyWords({ kind: "close", ...g.fault })}</p>}
            <ul class="list">
              {g.devices.map((d) => (
                <li key={d.id} class="item">
                  <span class="grow">
                    <strong>{d.name || d.id}</strong> {d.this && <span class="tag">{t("deviceThis")}</span>}
                    <small>
                      {t("deviceMade", { ago: ago(Date.parse(d.created), now) })} · {d.used ? t("deviceUsed", { ago: ago(Date.parse(d.used), now) }) : t("deviceNever")}
                    </small>
                  </span>
                  <button class="quiet danger" onClick={() => setRevoking({ group: g, device: d })}>
                    {t("revoke")}
                  </button>
                </li>
              ))}
            </ul>
          </section>
        ))}
      </main>
      {revoking && (
        <Sheet title={t("revoke")} onClose={() => setRevoking(undefined)}>
          <p>{revoking.device.this ? t("revokeThis") : t("revokeSure", { name: revoking.device.name || revoking.device.id })}</p>
          <button class="danger" onClick={() => void revoke()}>
            {t("revoke")}
          </button>
        </Sheet>
      )}
    </>
  );
};
