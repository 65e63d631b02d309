// Owns `tierkv peers` and `tierkv revoke`: lists the machines that joined this machine's vault, and shuts one out.
import { TierkvError } from "../../base/errors.ts";
import { table } from "../../base/text.ts";
import type { Peer } from "../../wire/messages.ts";
import type { Call } from "../shell/call.ts";
import type { Command } from "../shell/command.ts";

interface OwnerOptions {
  listen?: string;
}

export function addPeers(program: Command): void {
  program
    .command("peers")
    .summary("list the machines that joined this machine's vault")
    .description(
      "Lists each machine that joined, with its role and the time and address of its last contact. Run it on the\n" +
        "vault's machine as the vault's user, while the vault runs.",
    )
    .option("--listen <address>", "address of the running vault (default: [vault] listen)")
    .example("tierkv peers --json")
    .does(listPeers);
}

export function addRevoke(program: Command): void {
  program
    .command("revoke")
    .argument("<name>", "name of the machine in `tierkv peers`")
    .summary("revoke a machine's access to this machine's vault")
    .description(
      "Invalidates the machine's credential and closes its connections. Records from the machine stay. `tierkv invite`\n" +
        "gives it access again. Run it on the vault's machine as the vault's user, while the vault runs.",
    )
    .option("--listen <address>", "address of the running vault (default: [vault] listen)")
    .example("tierkv revoke gpu-box")
    .does(revoke);
}

async function listPeers(call: Call<OwnerOptions>): Promise<void> {
  const { askOwn, loadOwn } = await import("../vaults/owner.ts");
  const { peers } = await askOwn(call, loadOwn(call), ({ Peers }) => Peers, {});
  const rows = peers.map(row);
  const none = "no machine has joined: `tierkv invite` prints the line to run there";
  call.print({ peers: peers.map(shown) }, rows.length === 0 ? [none] : table([HEAD, ...rows]));
}

async function revoke(call: Call<OwnerOptions>): Promise<void> {
  const [name = ""] = call.args;
  const { askOwn, loadOwn } = await import("../vaults/owner.ts");
  const { revoked } = await askOwn(call, loadOwn(call), ({ Revoke }) => Revoke, { name });
  if (!revoked) {
    const reason = `no machine ${name.slice(0, 100)} has joined: \`tierkv peers\` lists them`;
    throw new TierkvError("USAGE", { reason });
  }
  call.print({ event: "revoked", name }, [
    `${name} is shut out, and what it had open was closed; what it stored stays`,
  ]);
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
