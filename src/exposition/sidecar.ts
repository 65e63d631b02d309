// Owns a sidecar's metrics for Prometheus.
import { armedFailpoints } from "../failpoint.ts";
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
    help: "Blocks an engine offered that were not stored, by reason.",
  },
  {
    prefix: "miss_",
    name: "misses",
    label: "reason",
    help: "Requests by why the first block that was not held was missed.",
  },
  {
    prefix: "decided_",
    name: "decisions",
    label: "decision",
    help: "Requests by what was decided (local, loaded, recomputed) and why.",
  },
  {
    prefix: "plan_",
    name: "restores_ended",
    label: "reason",
    help: "Restores by why nothing more was placed.",
  },
  { prefix: "shim_", name: "shim", label: "what", help: "What the engines' shims counted." },
];

const TIMES: Readonly<Record<string, string>> = {
  lookup: "From a request's arrival until it was known what the vaults hold.",
  fetch: "From the decision to restore until all of it lay in shared memory.",
  load: "From there until the engine had copied it.",
};

export function sidecarFamilies(status: SidecarStatus): Family[] {
  const own = "tierkv_sidecar";
  const { arenaBytes, slots, slotsFree, saves, engines } = status;
  return [
    gauge(`${own}_info`, "The version that runs.", [
      { labels: { version: status.version }, value: 1 },
    ]),
    gauge(`${own}_uptime_seconds`, "Since the start.", status.uptimeMs / 1000),
    gauge(`${own}_failpoints`, FAILPOINTS_HELP, armedFailpoints()),
    gauge(`${own}_engines`, "Engines connected.", engines.length),
    gauge(`${own}_arena_bytes`, "Shared memory of all engines.", arenaBytes),
    gauge(`${own}_slots`, "Slots of all arenas.", slots),
    gauge(`${own}_slots_free`, "Slots of all arenas that hold nothing.", slotsFree),
    gauge(`${own}_save_queue_blocks`, "Blocks waiting to be stored.", saves.queuedBlocks),
    gauge(`${own}_save_queue_bytes`, "Their bytes.", saves.queuedBytes),
    gauge(
      `${own}_vault_up`,
      "1 while a vault answers, 0 while it does not; absent before it was first asked.",
      ofVaults(status, ({ state }) => (state === "unknown" ? null : state)),
    ),
    gauge(
      `${own}_vault_lanes_up`,
      "1 while records travel on lanes.",
      ofVaults(status, ({ tier, lanes }) => (tier === "shared" ? null : lanes)),
    ),
    gauge(
      `${own}_vault_share`,
      "About which part of its class's blocks a vault owns; 0: it has left the pool.",
      eachVault(status, ({ share }) => share),
    ),
    ...(["holes", "moved"] as const).map((name) =>
      counter(
        `${own}_vault_${name}`,
        OF_VAULTS[name],
        eachVault(status, (vault) => vault[name]),
      ),
    ),
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
    ["restores", "Requests of which an engine loaded something.", restores],
    ["restored_tokens", "Prompt tokens that engines loaded and did not compute.", tokens],
    [
      "restored_unpriced_tokens",
      "Of those, the tokens whose cost was not known yet: they are in no seconds.",
      unpricedTokens,
    ],
    [
      "spared_prefill_seconds",
      "What computing those tokens would have taken, as the cost model estimates it.",
      prefillS,
    ],
    ["restoring_seconds", "What looking them up, fetching and loading took.", restoreS],
    ["spared_joules", "Energy of the computing that was spared, at [ledger] watts.", joules],
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
      "From a block's last use until a request asks for it again, of one block in 16, by whether it is still held.",
      outcomes(reuse.gapS),
    ),
    histogramFamily(
      "tierkv_sidecar_reuse_stored_bytes",
      "Record bytes that this sidecar stored between the two: a vault of that size would have kept the block.",
      outcomes(reuse.storedBytes),
    ),
  ];
}

const OF_VAULTS = {
  holes:
    "Blocks that a vault was asked for and did not hold, though a block behind them was held: nothing behind a hole is restored.",
  moved: "Blocks that were found with a vault though another one owns them since the pool changed.",
};

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
