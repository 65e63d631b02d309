// Owns `tierkv invite`: prints the line that lets another machine into the vault of this one.
import { Option } from "commander";
import { TierkvError } from "../../errors.ts";
import { ROLES } from "../../roles.ts";
import type { Role } from "../../roles.ts";
import type { Call, Registrar } from "../call.ts";

interface InviteOptions {
  role: Role;
  address?: string;
  listen?: string;
}

export function addInvite({ program, action }: Registrar): void {
  program
    .command("invite")
    .summary("print the `tierkv join` line of this machine's vault")
    .description(
      "Run it on a vault's machine, as the vault's user. Prints the line that lets another machine into the vault: it holds\n" +
        "a token, so show it to nobody else. A vault prints it by itself at its first start.",
    )
    .addOption(
      new Option("--role <role>", "what the other machine may do").choices(ROLES).default("write"),
    )
    .option("--address <host:port>", "where the other machine reaches this vault")
    .option("--listen <address>", "instead of [vault] listen")
    .addHelpText("after", "\nExample:\n  tierkv invite --role admin")
    .action(action(invite));
}

async function invite(call: Call<InviteOptions>): Promise<number> {
  const { role, address = null, listen } = call.options;
  const given = { option: "--listen", section: "vault", name: "listen" };
  const { vault } = call.loadConfig(listen === undefined ? [] : [{ ...given, text: listen }]);
  if (address !== null && !/^.+:\d{1,5}$/.test(address)) {
    throw new TierkvError("USAGE", {
      reason: `--address ${address.slice(0, 100)}: expected host:port`,
    });
  }
  const { joinLine } = await import("../invitation.ts");
  const line = joinLine(vault, vault.listen, role, address);
  call.print({ event: "invitation", run: line }, [line]);
  return 0;
}
