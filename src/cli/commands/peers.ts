// Owns `tierkv peers` and `tierkv revoke`: which machines joined the vault of this one, and how one of them is shut out.
import { TierkvError } from "../../errors.ts";
import type { Peer } from "../../wire/messages.ts";
import type { Call, Registrar } from "../call.ts";
import { table } from "../text.ts";

interface OwnerOptions {
  listen?: string;
}

export function addPeers({ program, action }: Registrar): void {
  program
    .command("peers")
    .summary("list the machines that joined this machine's vault")
    .description(
      "Run it on a vault's machine, as the vault's user, while the vault runs. Lists each machine that joined: its role, and\n" +
        "when and from where it was seen last.",
    )
    .option("--listen <address>", "instead of [vault] listen")
    .addHelpText("after", "\nExample:\n  tierkv peers --json")
    .action(action(listPeers));
}

export function addRevoke({ program, action }: Registrar): void {
  program
    .command("revoke")
    .argument("<name>", "as `tierkv peers` shows it")
    .summary("shut a machine out of this machine's vault")
    .description(
      "Run it on a vault's machine, as the vault's user, while the vault runs. The machine's credential opens nothing any\n" +
        "more, and what it has open is closed. What it stored stays. `tierkv invite` lets it in again.",
    )
    .option("--listen <address>", "instead of [vault] listen")
    .addHelpText("after", "\nExample:\n  tierkv revoke gpu-box")
    .action(action(revoke));
}

async function listPeers(call: Call<OwnerOptions>): Promise<number> {
  const { loadOwn, ownerOf } = await import("../owner.ts");
  const { askOnce } = await import("../../client/ask.ts");
  const { vaultService } = await import("../../wire/service.ts");
  const { peers } = await askOnce(ownerOf(loadOwn(call)), vaultService.Peers, {});
  const rows = peers.map(row);
  const none = "no machine has joined: `tierkv invite` prints the line to run there";
  call.print({ peers: peers.map(shown) }, rows.length === 0 ? [none] : table([HEAD, ...rows]));
  return 0;
}

async function revoke(call: Call<OwnerOptions>): Promise<number> {
  const [name = ""] = call.args;
  const { loadOwn, ownerOf } = await import("../owner.ts");
  const { askOnce } = await import("../../client/ask.ts");
  const { vaultService } = await import("../../wire/service.ts");
  const { revoked } = await askOnce(ownerOf(loadOwn(call)), vaultService.Revoke, { name });
  if (!revoked) {
    const reason = `no machine ${name.slice(0, 100)} has joined: \`tierkv peers\` lists them`;
    throw new TierkvError("USAGE", { reason });
  }
  call.print({ event: "revoked", name }, [
    `${name} is shut out, and what it had open was closed; what it stored stays`,
  ]);
  return 0;
}

const HEAD = ["name", "role", "joined", "last seen", "address"];
const timeOf = (ms: number): string => (ms === 0 ? "never" : new Date(ms).toISOString());

function row({ name, role, joinedMs, seenMs, address }: Peer): string[] {
  return [name, role, timeOf(joinedMs), timeOf(seenMs), address === "" ? "-" : address];
}

function shown({ name, role, joinedMs, seenMs, address }: Peer): object {
  const seen = seenMs === 0 ? null : timeOf(seenMs);
  return { name, role, joined: timeOf(joinedMs), seen, address: address === "" ? null : address };
}
