// Owns a sidecar's metrics for Prometheus.
import { armedFailpoints } from "../base/failpoint.ts";
import { storeCounts } from "../base/store-counts.ts";
import type { SidecarStatus, VaultStatus } from "../sidecar/status.ts";
import type { ByOutcome } from "../sidecar/trace/reuse.ts";
import { counterFamilies, histogramFamily } from "./counters.ts";
import type { CounterFamily } from "./counters.ts";
import { SIDECAR_HELP } from "./help.ts";
import { processFamilies } from "./process.ts";
import { counter, FAILPOINTS_HELP, gauge } from "./text.ts";
import type { Family, Sample } from "./text.ts";

const GROUPED: readonly CounterFamily[] = [
  {
    prefix: "dropped_",
    name: "blocks_dropped",
    label: "reason",
    help: "Blocks that an engine offered and no vault stored, by reason.",
  },
  {
    prefix: "miss_",
    name: "misses",
    label: "reason",
    help: "Requests with a missing block, by the reason for the first one.",
  },
  {
    prefix: "decided_",
    name: "decisions",
    label: "decision",
    help: "Requests by decision (local, loaded or recomputed) and its reason.",
  },
  {
    prefix: "plan_",
    name: "restores_ended",
    label: "reason",
    help: "Restores by the reason for their end.",
  },
  {
    prefix: "shim_",
    name: "shim",
    label: "what",
    help: "Counts from the engines' shims, by name.",
  },
];

const TIMES: Readonly<Record<string, string>> = {
  lookup: "Time from a request's arrival to the end of its look-up, in seconds.",
  fetch: "Time from the decision to restore until the last block lay in shared memory, in seconds.",
  load: "Time from the last block in shared memory until the engine had copied all, in seconds.",
};

export function sidecarFamilies(status: SidecarStatus): Family[] {
  const own = "tierkv_sidecar";
  const { arenaBytes, slots, slotsFree, saves, engines } = status;
  return [
    gauge(`${own}_info`, "Version of the running sidecar; the value is always 1.", [
      { labels: { version: status.version }, value: 1 },
    ]),
    gauge(
      `${own}_uptime_seconds`,
      "Time since the sidecar started, in seconds.",
      status.uptimeMs / 1000,
    ),
    gauge(`${own}_failpoints`, FAILPOINTS_HELP, armedFailpoints()),
    gauge(`${own}_engines`, "Connected engines.", engines.length),
    gauge(
      `${own}_engine_kinds`,
      "Connected engines by kind: vllm, sglang or mlx-lm.",
      countBy(engines).map(([kind, value]) => ({ labels: { kind }, value })),
    ),
    gauge(`${own}_arena_bytes`, "Shared memory for all engines, in bytes.", arenaBytes),
    gauge(`${own}_slots`, "Slots in all arenas.", slots),
    gauge(`${own}_slots_free`, "Empty slots in all arenas.", slotsFree),
    gauge(`${own}_save_queue_blocks`, "Blocks waiting to be stored.", saves.queuedBlocks),
    gauge(
      `${own}_save_queue_bytes`,
      "Bytes of the blocks waiting to be stored.",
      saves.queuedBytes,
    ),
    gauge(
      `${own}_vault_up`,
      "1 while the vault answers, 0 while it does not; absent until the first call, and once it has left the pool.",
      ofVaults(status, ({ state, hasLeft }) =>
        state === "unknown" || hasLeft === true ? null : state,
      ),
    ),
    gauge(
      `${own}_vault_lanes_up`,
      "1 while records travel on lanes to the vault.",
      ofVaults(status, ({ tier, lanes, hasLeft }) =>
        tier === "shared" || hasLeft === true ? null : lanes,
      ),
    ),
    gauge(
      `${own}_vault_share`,
      "Approximate share of its class's blocks that the vault owns; 0 after it left the pool.",
      eachVault(status, ({ share }) => share),
    ),
    ...(["holes", "moved"] as const).map((name) =>
      counter(
        `${own}_vault_${name}`,
        OF_VAULTS[name],
        eachVault(status, (vault) => vault[name]),
      ),
    ),
    ...Object.entries(OF_STORES).map(([name, { prefix, label, help }]) => ({
      ...counter(`${own}_${name}`, help, ofStores(status, prefix, label)),
      label,
    })),
    ...Object.entries(status.times).map(([name, times]) =>
      histogramFamily(`${own}_${name}_seconds`, TIMES[name] ?? name, [{ of: times }]),
    ),
    ...ledgerFamilies(status),
    ...reuseFamilies(status),
    ...counterFamilies(own, status.counters, SIDECAR_HELP, GROUPED),
    ...processFamilies(),
  ];
}

/** Restores saved `spared_prefill_seconds` less `restoring_seconds`. */
function ledgerFamilies({ ledger }: SidecarStatus): Family[] {
  const { restores, tokens, prefillS, restoreS, unpricedTokens, joules } = ledger;
  const all: [name: string, help: string, value: number | null][] = [
    ["restores", "Requests for which an engine loaded blocks.", restores],
    ["restored_tokens", "Prompt tokens loaded instead of computed.", tokens],
    [
      "restored_unpriced_tokens",
      "Restored tokens of unknown compute cost, which the counters of seconds leave out.",
      unpricedTokens,
    ],
    [
      "spared_prefill_seconds",
      "Estimated time to compute the restored tokens, in seconds, from the cost model.",
      prefillS,
    ],
    [
      "restoring_seconds",
      "Time to look up, fetch and load the restored tokens, in seconds.",
      restoreS,
    ],
    [
      "spared_joules",
      "Energy saved by not computing the restored tokens, in joules, at [ledger] watts.",
      joules,
    ],
  ];
  return all.flatMap(([name, help, value]) =>
    value === null ? [] : [counter(`tierkv_sidecar_${name}`, help, value)],
  );
}

function reuseFamilies({ reuse }: SidecarStatus): Family[] {
  const outcomes = ({ held, gone }: ByOutcome): Parameters<typeof histogramFamily>[2] => [
    { labels: { outcome: "held" }, of: held },
    { labels: { outcome: "gone" }, of: gone },
  ];
  return [
    histogramFamily(
      "tierkv_sidecar_reuse_gap_seconds",
      "Time between two uses of a block, in seconds, for one block in 16, by whether it is still held.",
      outcomes(reuse.gapS),
    ),
    histogramFamily(
      "tierkv_sidecar_reuse_stored_bytes",
      "Record bytes stored between two uses of a block; a vault of that size would have kept the block.",
      outcomes(reuse.storedBytes),
    ),
  ];
}

const OF_VAULTS = {
  holes:
    "Blocks missing in the vault ahead of a held block; blocks behind the first gap are not restored.",
  moved: "Blocks found in the vault although another vault owns them since the pool changed.",
};

const OF_STORES = {
  store_refusals: {
    prefix: "refused_",
    label: "reason",
    help: "Requests that Valkey or a bucket refused, by the first word of its answer; one sample of 0 where no such store is configured.",
  },
  store_requests: {
    prefix: "requests_",
    label: "what",
    help: "Requests to a bucket (reads, writes) and their bytes (read_bytes, written_bytes); one sample of 0 where no bucket is configured.",
  },
} as const;

/** Samples of the counts with a prefix; 0 where no vault has any, so that a panel shows it. */
function ofStores({ vaults }: SidecarStatus, prefix: string, label: string): Sample[] | number {
  const samples = Object.entries(vaults).flatMap(([name, all]) =>
    storeCounts(all).flatMap(({ address, counts }) =>
      Object.entries(counts ?? {})
        .filter(([what]) => what.startsWith(prefix))
        .map(([what, value]) => ({
          labels: { class: name, address, [label]: what.slice(prefix.length) },
          value,
        })),
    ),
  );
  return samples.length === 0 ? 0 : samples;
}

function eachVault({ vaults }: SidecarStatus, valueOf: (vault: VaultStatus) => number): Sample[] {
  return Object.entries(vaults).flatMap(([name, all]) =>
    all.map((vault) => ({
      labels: { class: name, address: vault.address },
      value: valueOf(vault),
    })),
  );
}

function ofVaults(
  { vaults }: SidecarStatus,
  stateOf: (vault: VaultStatus) => string | null,
): Sample[] {
  return Object.entries(vaults).flatMap(([name, all]) =>
    all.flatMap((vault) => {
      const state = stateOf(vault);
      if (state === null) return [];
      const { address, tier } = vault;
      return [{ labels: { class: name, tier, address }, value: state === "up" ? 1 : 0 }];
    }),
  );
}

function countBy(engines: SidecarStatus["engines"]): [string, number][] {
  const counts = new Map<string, number>();
  for (const { kind } of engines) counts.set(kind, (counts.get(kind) ?? 0) + 1);
  return [...counts];
}
