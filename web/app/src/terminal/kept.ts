// Names of what a tab keeps of its terminals' screens, for one that is reloaded.

const PREFIX = "holdfast.screen.";

/** What tells a terminal from the others of this tab. */
export const keyOf = (machine: string, program: unknown): string => JSON.stringify([machine, program]);

export const keptName = (key: string): string => PREFIX + key;

/** Whether a name of the tab's storage is that of a screen of this machine. */
export const keptOf = (name: string, machine: string): boolean => name.startsWith(`${PREFIX}[${JSON.stringify(machine)},`);

/** No screen of this machine is kept any more. */
export const dropScreens = (machine: string): void => {
  try {
    for (const name of Object.keys(sessionStorage)) if (keptOf(name, machine)) sessionStorage.removeItem(name);
  } catch {
    // Without storage nothing was kept.
  }
};
