// Owns `tierkv vaults`: what the sidecar of this machine sees of the pools, vault by vault.
import { VAULTS_SEEN_MS } from "../../limits-pool.ts";
import { STATUS_TIMEOUT_MS } from "../../limits.ts";
import type { SidecarStatus, VaultStatus } from "../../sidecar/status.ts";
import { nowMs, sleep } from "../../time.ts";
import type { Call, Registrar } from "../call.ts";
import type { SidecarLink } from "../sidecar-link.ts";
import { showBytes, showShare, table } from "../text.ts";

const EXIT_OK = 0;
const EXIT_NONE = 1;
const POLL_MS = 50;
const NONE = "-";

export function addVaults({ program, action }: Registrar): void {
  const vaults = program
    .command("vaults")
    .summary("show the vaults of the pools")
    .description("What the sidecar of this machine sees of the vaults that are one pool.")
    .addHelpText("after", "\nExample:\n  tierkv vaults ls");
  vaults
    .command("ls")
    .summary("list them, with what each owns and holds")
    .description(
      "Asks the sidecar of this machine for each vault of its pools: which part of the blocks it owns, how full it is,\n" +
        "what it gives and takes a second, and how it is. One that has left its pool owns nothing, and is asked for what\n" +
        "it still holds for an hour. Exit code 1 when there is none.",
    )
    .addHelpText("after", "\nExample:\n  tierkv vaults ls --json")
    .action(action(list));
}

async function list(call: Call): Promise<number> {
  const config = call.loadConfig();
  const { SidecarLink: Link } = await import("../sidecar-link.ts");
  const link = new Link(config.sidecar.socket);
  try {
    await link.hello(STATUS_TIMEOUT_MS);
    const { vaults } = await ask(link);
    const rows = Object.entries(vaults).flatMap(([name, all]) =>
      all.map((vault) => ({ class: name, ...vault })),
    );
    call.print({ vaults: rows }, rows.length === 0 ? ["no vault is known"] : describe(rows));
    return rows.length === 0 ? EXIT_NONE : EXIT_OK;
  } finally {
    link.close();
  }
}

/** The sidecar asks its vaults only while somebody looks: what it says first may be from before. */
async function ask(link: SidecarLink): Promise<SidecarStatus> {
  const endMs = nowMs() + VAULTS_SEEN_MS;
  for (;;) {
    const status = (await link.status(STATUS_TIMEOUT_MS)) as unknown as SidecarStatus;
    const all = [...status.vaults.kv, ...status.vaults.ssm];
    const isUnseen = ({ state, seen }: VaultStatus): boolean => state !== "down" && seen === null;
    if (!all.some(isUnseen) || nowMs() > endMs) return status;
    await sleep(POLL_MS);
  }
}

type Row = VaultStatus & { class: string };

const HEAD = ["class", "address", "state", "owns", "full", "memory", "disk", "out", "in"];

/** Exported for its test. */
export function describe(rows: readonly Row[]): string[] {
  return table([HEAD, ...rows.map(rowOf)]);
}

function rowOf({ class: name, address, state, share, seen }: Row): string[] {
  const owns = share === 0 ? "left" : showShare(share);
  if (seen === null) return [name, address, state, owns, NONE, NONE, NONE, NONE, NONE];
  const { usedBytes, maxBytes, disk, outBytesPerS, inBytesPerS } = seen;
  const most = disk !== null && disk.maxBytes > maxBytes ? disk : { usedBytes, maxBytes };
  return [
    name,
    address,
    state,
    owns,
    showShare(most.usedBytes / Math.max(1, most.maxBytes)),
    `${showBytes(usedBytes)} of ${showBytes(maxBytes)}`,
    disk === null ? NONE : `${showBytes(disk.usedBytes)} of ${showBytes(disk.maxBytes)}`,
    `${showBytes(outBytesPerS)}/s`,
    `${showBytes(inBytesPerS)}/s`,
  ];
}
