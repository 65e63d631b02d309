// Owns `tierkv vaults`: lists the pools' vaults as this machine's sidecar sees them, drains or weighs one, and edits lists.
import { Option } from "commander";
import type { RecordClass } from "../../base/block.ts";
import { DISCOVER_MS } from "../../base/limits/pool.ts";
import {
  NONE,
  showBytes,
  showMs,
  showRate,
  showShare,
  table,
  tableWithin,
} from "../../base/text.ts";
import type { Candidate } from "../../cluster/mdns.ts";
import { askSidecar, statusSeen } from "../../control/ask-sidecar.ts";
import type { VaultStatus } from "../../sidecar/status.ts";
import type { Call, Outcome } from "../shell/call.ts";
import type { Command } from "../shell/command.ts";
import { SpokenProgress, whileWaiting } from "../shell/progress.ts";
import type { DrainFlags } from "../vaults/drain-command.ts";

export function addVaults(program: Command): void {
  const vaults = program
    .command("vaults")
    .summary("show the vaults of the pools and change their members")
    .description(
      "Shows the vaults of each pool as this machine's sidecar sees them, and changes the pool's members.",
    )
    .example("tierkv vaults ls");
  vaults
    .command("ls")
    .summary("list the vaults of each pool with their shares and contents")
    .description(
      "Asks this machine's sidecar for each vault of its pools: share of the blocks, fill, read and write rates, and\n" +
        "state. A vault that has left its pool owns no blocks, and sidecars look up its remaining records for an hour.\n" +
        "A share counts the vault's weight (x0.1), and follows it within seconds. Since the sidecar's start, gaps counts\n" +
        "blocks that were missing in the vault although later ones were held, and misplaced those found there although\n" +
        "another vault owned them. A bucket behind a vault or a Valkey owns no blocks: it is asked for blocks that the first\n" +
        "place lacks. Exit code 1 if there is no vault.",
    )
    .example("tierkv vaults ls --json")
    .does(list);
  vaults
    .command("drain")
    .argument("<address>", "address of the vault, as `tierkv vaults ls` shows it")
    .summary("move a vault's records to the other vaults of its pool")
    .description(
      "Stops new records to the vault, and copies its records to the vaults that will own them, with records that other\n" +
        "vaults of the pool hold in the wrong place. The vault serves its records meanwhile. Needs admin tokens of all\n" +
        "vaults of the pool. After an interruption, run it again; records already moved stay moved. Then remove the address from [cluster] on all machines and stop the vault. A restart of\n" +
        "the vault, or --end, lets it take records again. Exit code 1 if another run may move more.",
    )
    .option("--rate <bytes>", "most bytes per second to move (default: pauses half of the time)")
    .option("--end", "stop draining; the vault takes records again")
    .example("tierkv vaults drain 192.168.1.20:50051 --rate 50MB")
    .does(drain);
  vaults
    .command("weight")
    .argument("<address>", "address of the vault, as `tierkv vaults ls` shows it")
    .argument("<number>", "factor of its capacity, 1 for its own share")
    .summary("give a vault a larger or a smaller share of its pool")
    .description(
      "Multiplies the vault's capacity by the number when the pool places blocks. 0.1 suits a slow vault: restores wait\n" +
        "less for it, and it holds fewer records. All sidecars apply the weight at once, and it survives a restart. Needs\n" +
        "the vault's admin token.",
    )
    .example("tierkv vaults weight 192.168.1.20:50051 0.1")
    .does(weigh);

  vaults
    .command("discover")
    .summary("list vaults that announce themselves on this network")
    .description(
      "Lists vaults with [vault] announce = true, found by multicast DNS, with class, capacity and certificate\n" +
        "fingerprint. Any machine on the network can send such an answer, so the list is not proof of identity. `tierkv\n" +
        "join` verifies the vault with a code from the vault's machine. Exit code 1 if no vault answers.",
    )
    .example("tierkv vaults discover --json")
    .does(listAnnounced);
  addEdits(vaults);
}

function addEdits(vaults: Command): void {
  for (const change of ["add", "remove"] as const) {
    const isAdded = change === "add";
    vaults
      .command(change)
      .argument("<address>", isAdded ? "HOST:PORT of a vault" : "address of a vault in the list")
      .summary(
        isAdded ? "add a vault to this machine's list" : "remove a vault from this machine's list",
      )
      .description(
        `${isAdded ? "Adds the vault to" : "Removes the vault from"} [cluster] kv_cold (or ssm_cold) in tierkv.toml. Prints the share of blocks that changes its owner.\n` +
          `${isAdded ? "Use `tierkv join` for a vault that this machine has not joined." : "Run `tierkv vaults drain` first to move its records."} ` +
          "All machines that share the vaults\nneed the same list.",
      )
      .addOption(
        new Option(
          "--class <class>",
          isAdded
            ? "record class (default: kv)"
            : "record class (default: each list that names it)",
        ).choices(["kv", "ssm"]),
      )
      .example(`tierkv vaults ${change} 192.168.1.20:50051`)
      .does(async (call: Call<{ class?: RecordClass }>) => await edit(call, isAdded));
  }
}

async function listAnnounced(call: Call): Promise<boolean> {
  const config = call.loadConfig();
  const { discover } = await import("../../cluster/mdns.ts");
  new SpokenProgress(call.io).step(
    `listening for vaults that announce themselves, for about ${showMs(DISCOVER_MS)}`,
  );
  const found = await discover(config);
  call.print({ candidates: found }, found.length === 0 ? [NONE_ANNOUNCED] : describeFound(found));
  return found.length > 0;
}

const NONE_ANNOUNCED = "no vault announces itself here: [vault] announce = true makes one do so";

const HERE: Readonly<Record<Candidate["here"], string>> = {
  new: "not joined",
  joined: "joined",
  other: "JOINED WITH ANOTHER CERTIFICATE",
};

/** Exported for its test. */
export function describeFound(found: readonly Candidate[]): string[] {
  const rows = found.map(({ name, address, class: of, capacityBytes, certificate, here }) => [
    address,
    of,
    showBytes(capacityBytes),
    certificate?.slice(0, 16) ?? "none",
    HERE[here],
    name,
  ]);
  const head = ["address", "class", "capacity", "certificate", "here", "name"];
  return [
    ...table([head, ...rows]),
    "Anybody may announce this. To use one, run on its machine: tierkv invite",
    "and here the line that it prints (it names the certificate): tierkv join tkv1.…",
  ];
}

async function edit(call: Call<{ class?: RecordClass }>, isAdded: boolean): Promise<Outcome> {
  const { changePool, isPooled } = await import("../vaults/pooling.ts");
  const config = call.loadConfig();
  if (isPooled(config)) return await changePool(call, config, isAdded);
  const { changeList } = await import("../vaults/vault-lists.ts");
  return changeList(call, call.options.class, isAdded);
}

async function drain(call: Call<DrainFlags>): Promise<boolean> {
  const { drainVault } = await import("../vaults/drain-command.ts");
  return await drainVault(call);
}

async function weigh(call: Call): Promise<void> {
  const { weighVault } = await import("../vaults/weight-command.ts");
  await weighVault(call);
}

async function list(call: Call): Promise<boolean> {
  const { vaults } = await whileWaiting(
    call.io,
    () => "the vaults",
    () => askSidecar(call.sidecarSocket(), statusSeen),
  );
  const rows = Object.entries(vaults).flatMap(([name, all]) =>
    all.map((vault) => ({ class: name, ...vault })),
  );
  const lines = rows.length === 0 ? ["no vault is known"] : describe(rows, call.io.columns);
  call.print({ vaults: rows }, lines);
  return rows.length > 0;
}

type Row = VaultStatus & { class: string };

const HEAD = "class,address,from,state,owns,gaps,misplaced,full,memory,disk,out,in".split(",");

const UNKNOWN =
  "unknown: the sidecar has not needed it since its start, and so does not know whether it answers";

/** Exported for its test. */
export function describe(rows: readonly Row[], columns: number = Infinity): string[] {
  const lines = tableWithin(columns, [
    HEAD,
    ...rows.flatMap((row) => [rowOf(row), ...behindOf(row)]),
  ]);
  const isUnknown = rows.some(({ state, behind }) => [state, behind?.state].includes("unknown"));
  return isUnknown ? [...lines, UNKNOWN] : lines;
}

/** A bucket behind a vault or a Valkey: it owns nothing, and is asked for what that lacks. */
function behindOf({ class: name, source, behind }: Row): string[][] {
  if (behind === undefined) return [];
  const { address, state } = behind;
  return [[name, address, source, state, "behind", ...Array<string>(HEAD.length - 5).fill(NONE)]];
}

function rowOf(row: Row): string[] {
  const { class: name, address, source, tier, state, share, isDraining, hasLeft, seen } = row;
  // Shared memory owns no blocks; it may hold any vault's.
  const left = tier === "shared" ? NONE : "left";
  const weight = seen === null || seen.weight === 1 ? "" : ` x${seen.weight}`;
  const isIn = hasLeft !== true;
  const owns = isIn && isDraining ? "drains" : share === 0 ? left : `${showShare(share)}${weight}`;
  // No source names a vault that has left.
  const from = owns === "left" ? NONE : source;
  const found = [name, address, from, state, owns, String(row.holes), String(row.moved)];
  if (seen === null) return [...found, NONE, NONE, NONE, NONE, NONE];
  const { usedBytes, maxBytes, disk, outBytesPerS, inBytesPerS } = seen;
  const most = disk !== null && disk.maxBytes > maxBytes ? disk : { usedBytes, maxBytes };
  return [
    ...found,
    showShare(most.usedBytes / Math.max(1, most.maxBytes)),
    `${showBytes(usedBytes)} of ${showBytes(maxBytes)}`,
    disk === null ? NONE : `${showBytes(disk.usedBytes)} of ${showBytes(disk.maxBytes)}`,
    showRate(outBytesPerS),
    showRate(inBytesPerS),
  ];
}
