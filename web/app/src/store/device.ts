// The device's SSH key: P-256, which every browser has, made once and kept where
// no script can read it. A page that was tampered with can use it while it is
// open, and cannot take it away.

import { generateDeviceKey, type DeviceKey } from "@holdfast/ssh";
import { keepKey, storedKey } from "./db.js";

/** The key of this device, made where there is none yet. */
export const deviceKey = async (): Promise<DeviceKey> => (await storedKey()) ?? keepKey(await generateDeviceKey());
