// Opens a database of this browser when it is first asked for, and does one act
// at a time in it. Page, Worker and service worker may have the same one open.

/** Storage that is missing or refused: a private window, or Lockdown Mode. */
export class StorageError extends Error {
  override name = "StorageError";
}

/** One act in one store, done when it is kept; fails with a StorageError. */
export type Run<Name extends string> = <T>(store: Name, mode: IDBTransactionMode, act: (s: IDBObjectStore) => IDBRequest<T>) => Promise<T>;

export const database = <Name extends string>(name: string, version: number, make: (db: IDBDatabase) => void, options?: IDBTransactionOptions): Run<Name> => {
  let opened: Promise<IDBDatabase> | undefined;
  const open = (): Promise<IDBDatabase> =>
    (opened ??= new Promise<IDBDatabase>((resolve, reject) => {
      if (!globalThis.indexedDB) return reject(new StorageError("this browser has no IndexedDB"));
      const r = indexedDB.open(name, version);
      r.onupgradeneeded = () => make(r.result);
      r.onsuccess = () => {
        // Another tab has a newer version of the page, or wiped the storage.
        r.result.onversionchange = r.result.onclose = () => {
          r.result.close();
          opened = undefined;
        };
        resolve(r.result);
      };
      r.onblocked = () => reject(new StorageError("another tab holds an older version of this page open"));
      r.onerror = () => reject(new StorageError(String(r.error)));
    }).catch((e) => {
      opened = undefined;
      throw e;
    }));
  return async <T>(store: Name, mode: IDBTransactionMode, act: (s: IDBObjectStore) => IDBRequest<T>): Promise<T> => {
    const db = await open();
    return new Promise<T>((resolve, reject) => {
      const t = db.transaction(store, mode, options);
      const r = act(t.objectStore(store));
      t.oncomplete = () => resolve(r.result);
      t.onabort = t.onerror = () => reject(new StorageError(String(t.error ?? r.error)));
    });
  };
};
