// Owns the measurements of `tierkv doctor` on each rail to a vault that names several addresses.
import { measuringNamespace, PACKED_KEY_BYTES } from "../../base/block.ts";
import { toTierkvError } from "../../base/errors.ts";
import { ownInterfaces } from "../../base/interfaces.ts";
import {
  BENCH_CALL_MS,
  BENCH_PROBE_CHUNKS,
  BENCH_PROBE_CHUNKS_MAX,
  BENCH_ROUND_MS,
  BENCH_SAMPLES,
  CALL_TIMEOUT_MS,
} from "../../base/limits/general.ts";
import { silent } from "../../base/log.ts";
import type { LaneRail } from "../../base/native.ts";
import { nowMs, randomToken } from "../../base/time.ts";
import { isRemote } from "../../client/vault.ts";
import { VaultClient } from "../../client/vault/vault-client.ts";
import { securityFor } from "../../cluster/credentials.ts";
import type { VaultTarget } from "../../cluster/targets.ts";
import { linkTo } from "../../cluster/vault-link.ts";
import type { Config } from "../../config/config.ts";

/** Figures of one rail; null where it does not work. */
export interface RailBench {
  /** Address of the vault in that network. */
  address: string;
  /** Local address; null: the system chooses. */
  local: string | null;
  /** Why it could not be measured; null: it was. */
  error: string | null;
  /** Milliseconds of the fastest look-up of one key. */
  rttMs: number | null;
  /** Bytes per second from the vault; null: not measured. */
  fromBytesPerS: number | null;
  /** Bytes per second to the vault; null: not measured. */
  toBytesPerS: number | null;
  /** MTU in bytes; null: the system does not report it. */
  mtu: number | null;
}

/** Measures each rail by itself; returns nothing for a vault with a single rail. */
export async function benchRails(target: VaultTarget, config: Config): Promise<RailBench[]> {
  const { client } = await linkTo(config, target, silent, 1);
  try {
    if (!isRemote(client)) return [];
    await client.hello(CALL_TIMEOUT_MS);
    const tried = await client.rails();
    const benches: RailBench[] = [];
    for (const { isOpen, ...rail } of tried.length > 1 ? tried : []) {
      const none = { rttMs: null, fromBytesPerS: null, toBytesPerS: null, mtu: null };
      const blank = { address: rail.address, local: rail.local ?? null, error: null, ...none };
      const isOurs =
        rail.local === undefined || ownInterfaces().some(({ address }) => address === rail.local);
      const error = isOurs
        ? "it takes no connection, or another vault answers there"
        : `this machine has no address ${rail.local}: mend [sidecar] addresses`;
      benches.push(isOpen ? await benchRail(target, config, rail, blank) : { ...blank, error });
    }
    return benches;
  } finally {
    client.close();
  }
}

async function benchRail(
  target: VaultTarget,
  config: Config,
  rail: LaneRail,
  blank: RailBench,
): Promise<RailBench> {
  const { address, classes } = target;
  const [name] = classes;
  const { lanes } = config.sidecar;
  const security = securityFor(config, target, silent);
  const client = new VaultClient({ address, name, logger: silent, lanes, security, rail });
  const bench = { ...blank };
  try {
    await client.hello(CALL_TIMEOUT_MS);
    for (let sample = 0; sample < BENCH_SAMPLES; sample += 1) {
      const begunMs = nowMs();
      await client.lookup(measuringNamespace(), randomToken(PACKED_KEY_BYTES), CALL_TIMEOUT_MS);
      bench.rttMs = Math.min(bench.rttMs ?? Infinity, nowMs() - begunMs);
    }
    bench.mtu = client.mtu;
    bench.fromBytesPerS = await rateOf(client, false);
    bench.toBytesPerS = await rateOf(client, true);
  } catch (error) {
    const { message } = toTierkvError(error);
    const isMtu = bench.mtu !== null && bench.fromBytesPerS === null;
    bench.error = isMtu
      ? `${message}; do all devices on it take packets of ${bench.mtu}?`
      : message;
  } finally {
    client.close();
  }
  return bench;
}

/** Measures the rate of plain bytes, in bytes per second. */
async function rateOf(client: VaultClient, isToVault: boolean): Promise<number> {
  const first = await client.probe(BENCH_PROBE_CHUNKS, isToVault, BENCH_CALL_MS);
  const inTime = Math.floor((BENCH_PROBE_CHUNKS * BENCH_ROUND_MS) / first.ms);
  const chunks = Math.min(Math.max(inTime, BENCH_PROBE_CHUNKS), BENCH_PROBE_CHUNKS_MAX);
  const { bytes, ms } = await client.probe(chunks, isToVault, BENCH_CALL_MS);
  return (bytes / ms) * 1e3;
}
