// Owns `tierkv vaults`: lists the pools' vaults as this machine's sidecar sees them, drains or weighs one, and edits lists.
import { Option } from "commander";
import type { RecordClass } from "../../block.ts";
import type { VaultStatus } from "../../sidecar/status.ts";
import { askSidecar, statusSeen } from "../ask-sidecar.ts";
import type { Call, Outcome } from "../call.ts";
import type { Command } from "../command.ts";
import type { DrainFlags } from "../drain-command.ts";
import type { Candidate } from "../mdns.ts";
import { NONE, showBytes, showRate, showShare, table } from "../text.ts";

export function addVaults(program: Command): void {
  const vaults = program
    .command("vaults")
    .summary("show the vaults of the pools, and change who belongs to them")
    .description(
      "The vaults that are one pool: what the sidecar of this machine sees of them, and who leaves.",
    )
    .example("tierkv vaults ls");
  vaults
    .command("ls")
    .summary("list them, with what each owns and holds")
    .description(
      "Asks the sidecar of this machine for each vault of its pools: which part of the blocks it owns, how full it is,\n" +
        "what it gives and takes a second, and how it is. One that has left its pool owns nothing, and is asked for what\n" +
        "it still holds for an hour. Exit code 1 when there is none.",
    )
    .example("tierkv vaults ls --json")
    .does(list);
  vaults
    .command("drain <address>")
    .summary("move what a vault holds to the other vaults of its pool")
    .description(
      "The vault takes no new records from now on, and owns nothing of its pool; what it holds is copied to the vaults that\n" +
        "own it without it, and is served meanwhile. Needs the vault's admin token. Run it again after whatever ended it: what has\n" +
        "moved does not move twice. Then take its address out of [cluster] on all machines, and stop it. A restart of the vault,\n" +
        "or --end, makes it take records again. Exit code 1 when another run may move more.",
    )
    .option("--rate <bytes>", "at most so many bytes a second (default: half of the time)")
    .option("--end", "give up: the vault takes records again")
    .example("tierkv vaults drain 192.168.1.20:50051 --rate 50MB")
    .does(drain);
  vaults
    .command("weight <address> <number>")
    .summary("give a vault a larger or a smaller share of its pool")
    .description(
      "What it has room for counts so many times: 0.1 for a slow one, so that restores wait less for it, and its room is used\n" +
        "less. Every sidecar hears of it at once, and a restart keeps it. Needs the vault's admin token.",
    )
    .example("tierkv vaults weight 192.168.1.20:50051 0.1")
    .does(weigh);

  vaults
    .command("discover")
    .summary("list vaults that announce themselves on this network")
    .description(
      "Asks by multicast DNS for vaults with [vault] announce = true: class, capacity, and the fingerprint of the certificate.\n" +
        "Anybody on the network may answer so. Nothing is trusted by it: `tierkv join`, with a code from the vault's own\n" +
        "machine, makes sure who it is. Exit code 1 when none answers.",
    )
    .example("tierkv vaults discover --json")
    .does(listAnnounced);
  for (const change of ["add", "remove"] as const) {
    const isAdded = change === "add";
    vaults
      .command(`${change} <address>`)
      .summary(
        isAdded
          ? "write a vault into this machine's list"
          : "take a vault out of this machine's list",
      )
      .description(
        `${isAdded ? "Adds it to" : "Takes it out of"} [cluster] kv_cold (or ssm_cold) in tierkv.toml, and says which share of the blocks changes its owner.\n` +
          `${isAdded ? "`tierkv join` does the same for one that this machine has not joined." : "`tierkv vaults drain` moves what it holds before."} ` +
          "All machines that share the vaults\nneed the same list.",
      )
      .addOption(new Option("--class <class>", "of records").choices(["kv", "ssm"]).default("kv"))
      .example(`tierkv vaults ${change} 192.168.1.20:50051`)
      .does(async (call: Call<{ class: RecordClass }>) => await edit(call, isAdded));
  }
}

async function listAnnounced(call: Call): Promise<boolean> {
  const config = call.loadConfig();
  const { discover } = await import("../mdns.ts");
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

async function edit(call: Call<{ class: RecordClass }>, isAdded: boolean): Promise<Outcome> {
  const { changePool, isPooled } = await import("../pooling.ts");
  const config = call.loadConfig();
  if (isPooled(config)) return await changePool(call, config, isAdded);
  const { changeList } = await import("../vault-lists.ts");
  return changeList(call, call.options.class, isAdded);
}

async function drain(call: Call<DrainFlags>): Promise<boolean> {
  const { drainVault } = await import("../drain-command.ts");
  return await drainVault(call);
}

async function weigh(call: Call): Promise<void> {
  const { weighVault } = await import("../weight-command.ts");
  await weighVault(call);
}

async function list(call: Call): Promise<boolean> {
  const { vaults } = await askSidecar(call.loadConfig().sidecar.socket, statusSeen);
  const rows = Object.entries(vaults).flatMap(([name, all]) =>
    all.map((vault) => ({ class: name, ...vault })),
  );
  call.print({ vaults: rows }, rows.length === 0 ? ["no vault is known"] : describe(rows));
  return rows.length > 0;
}

type Row = VaultStatus & { class: string };

const HEAD = "class,address,from,state,owns,holes,moved,full,memory,disk,out,in".split(",");

/** Exported for its test. */
export function describe(rows: readonly Row[]): string[] {
  return table([HEAD, ...rows.map(rowOf)]);
}

function rowOf(row: Row): string[] {
  const { class: name, address, source, tier, state, share, isDraining, seen } = row;
  // Shared memory owns no blocks; it may hold any vault's.
  const left = tier === "shared" ? NONE : "left";
  const weight = seen === null || seen.weight === 1 ? "" : ` x${seen.weight}`;
  const owns = isDraining ? "drains" : share === 0 ? left : `${showShare(share)}${weight}`;
  const found = [name, address, source, state, owns, String(row.holes), String(row.moved)];
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
