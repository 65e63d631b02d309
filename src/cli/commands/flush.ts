// Owns `tierkv flush`: drops records of the vaults, after a confirmation.
import { Option } from "commander";
import { toNamespace } from "../../base/block.ts";
import type { Namespace, RecordClass } from "../../base/block.ts";
import { TierkvError, toTierkvError } from "../../base/errors.ts";
import { sharedPath, storeKind } from "../../base/hosts.ts";
import { COLD_WATCH_MS } from "../../base/limits/cold.ts";
import { FLUSH_TIMEOUT_MS } from "../../base/limits/general.ts";
import { PROGRESS_EVERY_MS } from "../../base/limits/tools.ts";
import { createLogger } from "../../base/log.ts";
import { tenantOf } from "../../base/tenant.ts";
import { showBytes } from "../../base/text.ts";
import { randomId } from "../../base/time.ts";
import type { Vault } from "../../client/vault.ts";
import { VAULT_ROLES } from "../../cluster/targets.ts";
import type { VaultRole, VaultTarget } from "../../cluster/targets.ts";
import type { VaultLink } from "../../cluster/vault-link.ts";
import type { Config } from "../../config/config.ts";
import type { FlushedSidecar, FlushReply } from "../../wire/messages.ts";
import type { Call, Outcome } from "../shell/call.ts";
import type { Command } from "../shell/command.ts";
import { Progress } from "../shell/progress.ts";

interface FlushOptions {
  target?: VaultRole;
  class?: RecordClass;
  namespace?: string;
  model?: string;
  tenant?: string;
  yes?: true;
}

export function addFlush(program: Command): void {
  program
    .command("flush")
    .summary("drop records from the vaults")
    .description(
      "Drops every record of the configured vaults, or only the selected ones, in memory and on disk. Drops their\n" +
        "copies and pending saves in all connected sidecars too. Engines compute those blocks again. An engine's own GPU\n" +
        "cache stays; POST /reset_prefix_cache to the engine clears it. A bucket's objects are removed, but not by model or\n" +
        "tenant, which it does not tell apart. Exit code 1 if nothing matched the named model, namespace or tenant, or a\n" +
        "vault did not answer or could not record the flush; 3 if all was flushed but a bucket.",
    )
    .addOption(
      new Option(
        "--target <role>",
        "flush only vaults of this role; --class selects their records",
      ).choices(VAULT_ROLES),
    )
    .addOption(
      new Option("--class <class>", "drop only records of this class").choices(["kv", "ssm"]),
    )
    .option("--model <name>", "drop only records of this model, by the name given to the engine")
    .option("--namespace <hex>", "drop only records of this namespace: 64 hexadecimal digits")
    .option(
      "--tenant <salt>",
      "drop only records of requests with this cache_salt; combines with the other options",
    )
    .option("--yes", "do not ask for confirmation")
    .remark(
      "If [sidecar] record_keys is set, run --tenant on a machine with the keys,\n" +
        "because the tenant's name is derived from them.",
    )
    .example("tierkv flush --target kv_cold --yes")
    .does(flush);
}

/** Exit code where all was flushed but what a bucket's own tools must remove. */
const EXIT_BY_HAND = 3;

async function flush(call: Call<FlushOptions>): Promise<Outcome> {
  const config = call.loadConfig();
  const { chosenTargets } = await import("../../cluster/sources.ts");
  const { listed } = await import("../shell/looking.ts");
  const chosen = await listed(call.io, () => chosenTargets(config, call.options.target, "flush"));
  const scope = await scopeOf(call.options, config);
  const inScope = chosen.filter((target) => !isBucket(target) || mayHold(target, scope));
  // A bucket does not tell models and tenants apart.
  const isByHand = scope.model !== null || scope.tenant !== 0;
  const targets = inScope.filter((target) => !isByHand || !isBucket(target));
  const asks = "flush asks before it drops records";
  const isAsked = call.options.yes !== true && targets.length > 0;
  if (isAsked && !(await call.confirms(asks, questionOf(targets, scope)))) {
    call.print({ flushed: [] }, ["nothing was dropped"]);
    return false;
  }
  const flushes = await flushAll(call, config, targets, scope);
  const isEngineNear = flushes.some(({ sidecars }) => sidecars.length > 0);
  const unknown = unmatched(scope, flushes);
  const isHeard = flushes.some((one) => one.error === null && !one.unknownModel);
  const left = inScope.filter((target) => !targets.includes(target)).map(leftInBucket);
  const lines = [
    ...flushes.flatMap(describe),
    ...(unknown === null ? [] : [unknown]),
    ...(isOfPool(config) && isHeard ? [POOL_HEARS] : []),
    ...(isEngineNear ? [OWN_CACHE] : []),
    ...left.flatMap(describeLeft),
  ];
  call.print({ flushed: [...flushes, ...left] }, lines);
  const hasFailed = flushes.some(
    ({ error, later, volatile }) => volatile || (error !== null && !later),
  );
  if (unknown !== null || hasFailed) return false;
  return left.length === 0 || EXIT_BY_HAND;
}

/**
 * Flushes buckets first, so that nothing comes back from them, then all others at once, and then what was stored in the buckets
 * meanwhile.
 */
async function flushAll(
  call: Call,
  config: Config,
  targets: readonly VaultTarget[],
  scope: Scope,
): Promise<Flushed[]> {
  const { linkTo } = await import("../../cluster/vault-link.ts");
  const logger = createLogger("flush", {
    level: config.log.level === "debug" ? "debug" : "silent",
  });
  const progress = new Progress(call.io);
  let done = 0;
  // The pool's vaults then know it as one flush.
  const id = randomId(16);
  const ticker = setInterval(
    () => progress.at(done, targets.length, "vaults, and the sidecars that hold copies"),
    PROGRESS_EVERY_MS,
  );
  const flushed = new Map<VaultTarget, Flushed>();
  const flushEach = async (some: readonly VaultTarget[]): Promise<void> => {
    const each = some.map(async (target) => {
      const now = await flushOne(() => linkTo(config, target, logger, 0), target, scope, id);
      const records = (flushed.get(target)?.records ?? 0) + now.records;
      flushed.set(target, { ...now, records });
      done = flushed.size;
    });
    await Promise.all(each);
  };
  try {
    const buckets = targets.filter(isBucket);
    await flushEach(buckets);
    await flushEach(targets.filter((target) => !isBucket(target)));
    await flushEach(buckets.filter((bucket) => flushed.get(bucket)?.error === null));
  } finally {
    clearInterval(ticker);
  }
  const isTold = targets.some(
    (target) => target.listed !== undefined && flushed.get(target)?.error === null,
  );
  return targets.flatMap((target) => {
    const one = flushed.get(target);
    if (one === undefined) return [];
    const { listed: inPool } = target;
    return [{ ...one, later: isTold && one.later && inPool !== undefined }];
  });
}

const isBucket = ({ address }: VaultTarget): boolean => storeKind(address) === "s3";

function mayHold({ classes }: VaultTarget, { recordClass }: Scope): boolean {
  return recordClass === null || classes.includes(recordClass);
}

function leftInBucket({ name, address }: VaultTarget): Flushed {
  const byHand = `aws s3 rm --recursive ${address.replace(/\/*$/, "/")}`;
  return { target: name, address, ...NOTHING, byHand, error: null, later: false };
}

function describeLeft({ target, address, byHand }: Flushed): string[] {
  return [
    `${target} at ${address}: its objects stay, and engines may restore them: a bucket does not tell models and tenants apart. Flush it with --namespace, or remove all its objects and flush again:`,
    `  ${byHand}`,
  ];
}

/** Returns a line if vaults answered, and nothing matched what was named; null: it did, or nothing was named. */
function unmatched(
  { model, namespace, tenant }: Scope,
  results: readonly Flushed[],
): string | null {
  if (results.length === 0) return null;
  if (model !== null) {
    const unknown = unknownModel(model, results);
    if (unknown !== null) return unknown;
  }
  // A store that others run does not say how many records it drops.
  const isStore = results.some(({ address }) => storeKind(address) !== null);
  if (isStore || !results.every(isNothing)) return null;
  if (tenant !== 0) return NOTHING_OF_TENANT;
  return namespace === null ? null : NOTHING_OF_NAMESPACE;
}

/** Returns a line if vaults answered, and none knows a model of that name; shared memory knows no names. */
function unknownModel(model: string, results: readonly Flushed[]): string | null {
  const answered = results.filter(
    ({ error, address }) => error === null && sharedPath(address) === null,
  );
  if (answered.length === 0 || !answered.every((one) => one.unknownModel)) return null;
  const known = new Set(answered.flatMap(({ models }) => models));
  const names = known.size === 0 ? "no model" : [...known].join(", ");
  return `no vault knows a model ${JSON.stringify(model)}, by the name given to its engine; they know ${names}`;
}

/** Records to drop; null: any. */
interface Scope {
  namespace: Namespace | null;
  recordClass: RecordClass | null;
  model: string | null;
  /** Tenant number in the vaults; 0: every tenant. */
  tenant: number;
}

async function scopeOf(options: FlushOptions, config: Config): Promise<Scope> {
  const { namespace, class: recordClass = null, model = null } = options;
  const tenant = options.tenant === undefined ? 0 : await tenantOfSalt(options.tenant, config);
  if (namespace === undefined) return { namespace: null, recordClass, model, tenant };
  if (model !== null) {
    throw new TierkvError("USAGE", { reason: "--namespace and --model: give one of the two" });
  }
  if (!/^[0-9a-f]{64}$/i.test(namespace)) {
    const reason = `--namespace ${namespace.slice(0, 100)}: expected 64 hexadecimal digits`;
    throw new TierkvError("USAGE", { reason });
  }
  return { namespace: toNamespace(Buffer.from(namespace, "hex")), recordClass, model, tenant };
}

async function tenantOfSalt(salt: string, config: Config): Promise<number> {
  const { loadRecordKeys } = await import("../../config/conditions.ts");
  const { recordKeysTenant } = await import("../../base/native.ts");
  await loadRecordKeys(config);
  return recordKeysTenant(tenantOf(salt));
}

function questionOf(
  targets: readonly VaultTarget[],
  { namespace, recordClass, model, tenant }: Scope,
): string {
  const list = targets.map(({ name, address }) => `${name} at ${address}`).join(" and ");
  const records = recordClass === null ? "record" : `${recordClass} record`;
  const ofModel = model === null ? "" : ` of model ${model}`;
  const of =
    namespace === null ? ofModel : ` in namespace ${namespace.toString("hex").slice(0, 8)}`;
  const ofTenant = tenant === 0 ? "" : " of this tenant";
  return `Drop every ${records}${ofTenant}${of} of ${list}?`;
}

interface Flushed extends FlushReply {
  target: string;
  address: string;
  /** Command that removes all of a bucket's objects; null: nothing is left to be done. */
  byHand: string | null;
  error: string | null;
  /** True: the vault did not answer, and drops the records once it does: another vault of its pool tells it. */
  later: boolean;
}

/** Errors of a vault that is away, and has refused nothing. */
const AWAY: ReadonlySet<string> = new Set(["VAULT_UNREACHED", "VAULT_DOWN", "VAULT_DEADLINE"]);

const NOTHING: FlushReply = {
  records: 0,
  bytes: 0,
  diskBytes: 0,
  volatile: false,
  number: 0,
  unknownModel: false,
  models: [],
  sidecars: [],
};

async function flushOne(
  link: () => Promise<VaultLink>,
  { name, address }: VaultTarget,
  { namespace, recordClass, model, tenant }: Scope,
  id: string,
): Promise<Flushed> {
  let client: Vault | null = null;
  try {
    const { sayHello } = await import("../../diagnosis/reach.ts");
    const linked = await link();
    ({ client } = linked);
    await sayHello(client, linked.isTls);
    const flushed = await client.flush(namespace, FLUSH_TIMEOUT_MS, recordClass, model, tenant, id);
    return { target: name, address, ...flushed, byHand: null, error: null, later: false };
  } catch (caught) {
    const known = toTierkvError(caught);
    const [error, later] = [withAdvice(known), AWAY.has(known.code)];
    return { target: name, address, ...NOTHING, byHand: null, error, later };
  } finally {
    client?.close();
  }
}

/** Returns the error's message, with advice where the role does not suffice. */
function withAdvice({ code, message }: TierkvError): string {
  if (code !== "VAULT_DENIED" && code !== "ROLE_MISSING") return message;
  return `${message}, or run \`tierkv flush\` on the vault's machine`;
}

const OWN_CACHE =
  "a flush does not empty an engine's own cache: send POST /reset_prefix_cache to a running engine, or restart it";

/** Whether this is the machine of a vault whose pool keeps a list, and so the command asked one vault of several. */
const isOfPool = ({ cluster, vault }: Config): boolean =>
  cluster.role !== "inference" && vault.poolKey !== null;

const POOL_HEARS = "the other vaults of the pool hear of it within seconds, and drop theirs, too";

const NOTHING_OF_TENANT =
  "nothing of this tenant was found: the salt must be the requests' own, and where [sidecar] record_keys is set, this machine must have the keys";

const NOTHING_OF_NAMESPACE = "nothing of this namespace was found";

function isNothing({ records, sidecars, error }: Flushed): boolean {
  const isKept = sidecars.some((one) => one.blocks + one.saves > 0 || !one.confirmed);
  return error === null && records === 0 && !isKept;
}

function describe(flushed: Flushed): string[] {
  const { target, address, records, bytes, diskBytes, error, later } = flushed;
  if (later) return [`${error}; the other vaults of its pool tell it of the flush when it is back`];
  if (error !== null)
    return [`${error}; it dropped nothing, and its records stay until it is flushed`];
  if (storeKind(address) === "s3")
    return [`${target} at ${address}: ${records} ${records === 1 ? "object" : "objects"} removed`];
  if (storeKind(address) !== null) {
    if (flushed.unknownModel) return [`${target} at ${address}: nothing dropped`];
    const seconds = Math.ceil((2 * COLD_WATCH_MS) / 1000);
    return [
      `${target} at ${address}: no client reads the flushed records any more, and Valkey removes them once they expire or it evicts; sidecars drop their copies within ${seconds} s`,
    ];
  }
  const onDisk = diskBytes === 0 ? "" : `, ${showBytes(diskBytes)} on disk`;
  const but = flushed.volatile
    ? "; the disk or the archive did not record the flush: make room there and flush again; otherwise the next start of the vault carries the flush out once more, and drops what was saved since"
    : "";
  return [
    `${target} at ${address}: ${records} ${records === 1 ? "record" : "records"} dropped, ${showBytes(bytes)} freed${onDisk}${but}`,
    ...flushed.sidecars.map(describeSidecar),
  ];
}

function describeSidecar(sidecar: FlushedSidecar): string {
  const { name, quietMs, blocks, bytes, saves } = sidecar;
  if (sidecar.confirmed) {
    return `  sidecar ${name}: ${blocks} blocks dropped from arenas (${showBytes(bytes)}), ${saves} saves`;
  }
  const since = quietMs === 0 ? "" : `, not heard of for ${Math.round(quietMs / 1000)} s`;
  return `  sidecar ${name}: not confirmed${since}; it may hold copies until it reaches this vault again`;
}
