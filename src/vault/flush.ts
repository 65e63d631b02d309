// Owns the Flush call: logged first, then dropped in memory and on disk, then sent to every sidecar.
import { className, toNamespace } from "../block.ts";
import { TierkvError } from "../errors.ts";
import { NAME_BYTES_MAX } from "../limits/general.ts";
import { storeFlush, storeForgetFlushes, storeNoteFlush } from "../native.ts";
import { isTenant } from "../tenant.ts";
import type * as m from "../wire/messages.ts";
import { shortHash } from "./audit.ts";
import type { VaultContext } from "./context.ts";
import type { FlushScope } from "./flush-log.ts";
import type { Caller } from "./gate.ts";

const EVERY_CLASS = 0;

export async function flush(
  vault: VaultContext,
  request: m.FlushRequest,
  { peer, role }: Caller,
): Promise<m.FlushReply> {
  const scope = scopeOf(vault, request);
  const { number, isKept } = vault.flushes.begin(scope);
  const dropped = await carryOut(vault, number, scope).finally(() =>
    vault.flushes.carriedOut(number),
  );
  if (!dropped.volatile) vault.flushes.end(number);
  const sidecars = await vault.watchers.tell(number);
  const total = { ...dropped, volatile: dropped.volatile || !isKept, number, sidecars };
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
): Promise<Pick<m.FlushReply, "records" | "bytes" | "diskBytes" | "volatile">> {
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
