// Owns `tierkv invite`: prints the line that lets another machine into this machine's vault.
import { Option } from "commander";
import { INVITATION_S_DEFAULT, INVITATION_S_MAX, MEMBERS_MAX } from "../../base/limits/access.ts";
import { ROLES } from "../../base/roles.ts";
import type { Role } from "../../base/roles.ts";
import { wallClockMs } from "../../base/time.ts";
import { tcpOnly } from "../../config/addresses.ts";
import { duration, integer } from "../../config/kinds.ts";
import { optionOr } from "../../config/override.ts";
import type { Call } from "../shell/call.ts";
import type { Command } from "../shell/command.ts";

interface InviteOptions {
  role: Role;
  address?: string;
  listen?: string;
  for?: string;
  uses?: string;
}

export function addInvite(program: Command): void {
  program
    .command("invite")
    .summary("print a `tierkv join` line of this machine's vault")
    .description(
      "Prints a line with which another machine joins the vault, by default one machine within a day. Keep the line\n" +
        "secret, because anyone with it can join. Run it on the vault's machine as the vault's user, while the vault\n" +
        "runs. A vault prints such a line at its first start.",
    )
    .addOption(
      new Option("--role <role>", "rights of the other machine").choices(ROLES).default("write"),
    )
    .option("--for <time>", "time until the line expires: 30m, 2h, 7d (default: 24h)")
    .option("--uses <count>", "number of machines that may join with it (default: 1)")
    .option("--address <host:port>", "address of this vault as the other machine reaches it")
    .option("--listen <address>", "address of the running vault (default: [vault] listen)")
    .example("tierkv invite --for 2h | ssh engine tierkv join -")
    .does(invite);
}

async function invite(call: Call<InviteOptions>): Promise<void> {
  const { role, address, for: time, uses: count } = call.options;
  const from = tcpOnly("192.168.1.10:50051", 1);
  const given = optionOr(from, "--address", address, null);
  const forS = optionOr(duration(INVITATION_S_MAX), "--for", time, INVITATION_S_DEFAULT);
  const uses = optionOr(integer(1, MEMBERS_MAX), "--uses", count, 1);
  const { askOwn, loadOwn } = await import("../vaults/owner.ts");
  const config = loadOwn(call);
  const { secret } = await askOwn(call, config, ({ Invite }) => Invite, { role, forS, uses });
  const { joinLine } = await import("../join/invitation.ts");
  const line = joinLine(config.vault, config.vault.listen, secret, given?.text ?? null);
  const until = new Date(wallClockMs() + forS * 1000).toISOString();
  call.print({ event: "invitation", run: line, role, uses, until }, [line]);
  // Only the line goes to stdout, because it may be piped on.
  if (!call.isJson) {
    call.io.err(`good until ${until}, for ${uses === 1 ? "one machine" : `${uses} machines`}`);
  }
}
