// Owns the Flush call: logged first, then dropped in memory and on disk, then sent to every sidecar.
import { className, toNamespace } from "../../base/block.ts";
import type { Namespace } from "../../base/block.ts";
import { TierkvError } from "../../base/errors.ts";
import { FLUSH_NAMES_MAX, NAME_BYTES_MAX } from "../../base/limits/general.ts";
import { storeFlush, storeForgetFlushes, storeNoteFlush } from "../../base/native.ts";
import { isTenant } from "../../base/tenant.ts";
import { randomId, wallClockMs } from "../../base/time.ts";
import { isFlushId } from "../../discovery/entry.ts";
import type { FlushEntry } from "../../discovery/entry.ts";
import type * as m from "../../wire/messages.ts";
import { shortHash } from "../access/audit.ts";
import type { Caller } from "../access/gate.ts";
import type { FlushScope } from "../flushes/flush-log.ts";
import type { VaultContext } from "./context.ts";

const EVERY_CLASS = 0;

type Dropped = Pick<m.FlushReply, "records" | "bytes" | "diskBytes" | "volatile">;

export async function flush(
  vault: VaultContext,
  request: m.FlushRequest,
  { peer, role }: Caller,
): Promise<m.FlushReply> {
  const scope = scopeOf(vault, request);
  const entry = entryOf(request);
  const { number, isKept, dropped } = await dropAll(vault, scope, entry.id);
  // Vaults that are away now find it in the pool's list.
  vault.pool?.put(entry);
  const sidecars = await vault.watchers.tell(number);
  const unknownModel = scope.model !== "" && scope.namespaces?.length === 0;
  const named = { unknownModel, models: unknownModel ? vault.models.names(FLUSH_NAMES_MAX) : [] };
  const total = { ...dropped, volatile: dropped.volatile || !isKept, number, sidecars, ...named };
  vault.counters.add("flushes");
  const { records } = total;
  const { model, recordClass, tenant } = scope;
  const namespaces = namespacesOf(scope);
  const short = namespaces.map((name) => (name === null ? "every" : shortHash(name)));
  const away = sidecars.filter(({ confirmed }) => !confirmed).length;
  const only = recordClass === EVERY_CLASS ? {} : { class: className(recordClass) };
  const said = { namespaces: short, ...only, model, tenant, records, number, away };
  vault.audit.record("admin_call", { peer, role, call: "Flush", ...said });
  const shown = namespaces.map((name) => name?.toString("hex") ?? "every");
  vault.logger.info({ ...total, namespaces: shown, model, recordClass, tenant }, "flushed");
  return total;
}

/** Drops the records of a scope; `id` names a flush that the pool's list has, or will have. */
async function dropAll(
  vault: Pick<VaultContext, "flushes" | "pool" | "store">,
  scope: FlushScope,
  id: string | null,
): Promise<{ number: number; isKept: boolean; dropped: Dropped }> {
  const { flushes, pool } = vault;
  const { number, isKept } = flushes.begin(scope);
  if (id !== null && pool !== null)
    flushes.noteOfPool([id], [id, ...pool.book.flushes.map((entry) => entry.id)]);
  const dropped = await carryOut(vault, number, scope).finally(() => flushes.carriedOut(number));
  if (!dropped.volatile) flushes.end(number);
  return { number, isKept, dropped };
}

/** Carries out a flush that the pool's list names. Sidecars are told, but not waited for. */
export async function flushMissed(
  vault: Pick<VaultContext, "counters" | "flushes" | "logger" | "pool" | "store" | "watchers">,
  scope: FlushScope,
): Promise<void> {
  const { number, dropped } = await dropAll(vault, scope, null);
  vault.counters.add("flushes");
  const { model, recordClass, tenant } = scope;
  vault.logger.info({ ...dropped, number, model, recordClass, tenant }, "flushed with the pool");
  void vault.watchers.tell(number);
}

/** A flush by model also takes what was made before it in namespaces that are named only now. */
export function flushNewcomer(
  { flushes, store }: Pick<VaultContext, "flushes" | "store">,
  namespace: Namespace,
  model: string,
): void {
  for (const { number, recordClass, tenant } of flushes.extend(model, namespace.toString("hex")))
    storeNoteFlush(store, number, namespace, recordClass, tenant);
}

function entryOf(request: m.FlushRequest): FlushEntry {
  const { id: given = "", namespace, recordClass, model = "", tenant = 0 } = request;
  if (given !== "" && !isFlushId(given)) {
    const reason = `a flush id of ${given.length} characters: expected 32 hexadecimal digits`;
    throw new TierkvError("BAD_ARGUMENT", { reason });
  }
  const id = given === "" ? randomId(16) : given;
  const isNamed = model === "" && namespace.length > 0;
  const named = isNamed ? namespace.toString("hex") : null;
  const entry = { kind: "flush", version: 1, gone: false } as const;
  return { ...entry, id, atMs: wallClockMs(), namespace: named, recordClass, model, tenant };
}

/** Runs before the vault serves: finishes flushes of an earlier run, and bars records older than a flush. */
export async function recallFlushes(
  vault: Pick<VaultContext, "flushes" | "logger" | "store">,
): Promise<void> {
  const { flushes, store, logger } = vault;
  storeForgetFlushes(store, flushes.base);
  for (const { number, recordClass, tenant, ...scope } of flushes.all) {
    for (const namespace of namespacesOf(scope)) {
      storeNoteFlush(store, number, namespace, recordClass, tenant);
    }
  }
  for (const scope of flushes.undone) {
    const dropped = await carryOut(vault, scope.number, scope);
    if (!dropped.volatile) flushes.end(scope.number);
    logger.warn({ number: scope.number, ...dropped }, "a flush of an earlier run was ended");
  }
}

async function carryOut(
  { store }: Pick<VaultContext, "store">,
  number: number,
  scope: FlushScope,
): Promise<Dropped> {
  const total = { records: 0, bytes: 0, diskBytes: 0, volatile: false };
  const { recordClass, tenant } = scope;
  for (const namespace of namespacesOf(scope)) {
    const flushed = await storeFlush(store, number, namespace, recordClass, tenant);
    total.records += flushed.records;
    total.bytes += flushed.bytes;
    total.diskBytes += flushed.diskBytes;
    total.volatile ||= !flushed.isDurable;
  }
  return total;
}

function scopeOf({ models }: VaultContext, request: m.FlushRequest): FlushScope {
  const { recordClass, model = "", namespace, tenant = 0 } = request;
  if (!isTenant(tenant)) {
    throw new TierkvError("BAD_ARGUMENT", { reason: `tenant ${tenant}: expected 48 bits` });
  }
  const bytes = Buffer.byteLength(model);
  // The log would count as damaged at the next start.
  if (bytes > NAME_BYTES_MAX) {
    const reason = `a model name of ${bytes} bytes: the limit is ${NAME_BYTES_MAX}`;
    throw new TierkvError("BAD_ARGUMENT", { reason });
  }
  if (recordClass !== EVERY_CLASS) className(recordClass);
  const of = { recordClass, model, tenant };
  if (model !== "") return { namespaces: models.namespacesOf(model), ...of };
  const named = namespace.length === 0 ? null : [toNamespace(namespace).toString("hex")];
  return { namespaces: named, ...of };
}

/** A null stands for every namespace. */
function namespacesOf({ namespaces }: Pick<FlushScope, "namespaces">): (Buffer | null)[] {
  return namespaces?.map((name) => toNamespace(Buffer.from(name, "hex"))) ?? [null];
}
