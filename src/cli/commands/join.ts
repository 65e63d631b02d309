// Owns `tierkv join`: lets this machine into the vault that printed the line.
import { TierkvError } from "../../base/errors.ts";
import { JOIN_CODE_CHARS_MAX } from "../../base/limits/access.ts";
import { RESTART_SIDECAR } from "../../base/text.ts";
import { decodeJoinCode } from "../join/join-code.ts";
import type { Call } from "../shell/call.ts";
import type { Command } from "../shell/command.ts";
import { whileWaiting } from "../shell/progress.ts";

export function addJoin(program: Command): void {
  program
    .command("join")
    .argument(
      "[code]",
      "code printed by `tierkv vault` or `tierkv invite`; `-` reads it from standard input",
    )
    .summary("give this machine access to a vault")
    .description(
      "Connects to the code's vault, and verifies the vault's identity before it sends the code. Stores the credential\n" +
        "that the vault issues (mode 0600), and writes the vault's address into tierkv.toml, which it makes where there is\n" +
        "none. A pool that keeps its own list takes the place of its vaults there. Run it on the engine's machine. A\n" +
        "running sidecar uses the vault after its next start.",
    )
    .example("tierkv join tkv1.EjE5Mi4xNjguMS4xMDo1MDA1...")
    .does(joinVault);
}

async function joinVault(call: Call): Promise<boolean> {
  const config = call.loadOrNewConfig();
  const invitation = decodeJoinCode(await codeOf(call));
  const { address } = invitation;
  const joining = await import("../join/joining.ts");
  const { listOf } = await import("../vaults/vault-lists.ts");
  const { askClasses, askPooled, certificateOf, entryOf, redeem, writeAddress } = joining;
  const { checkKeeping, formerDigests, keepJoined, shareToken } =
    await import("../../cluster/credentials.ts");
  checkKeeping(config, address);
  const vault = (): string => `the vault at ${address}`;
  const caPem = await whileWaiting(call.io, vault, () => certificateOf(invitation));
  const formers = formerDigests(config);
  const credential = await whileWaiting(call.io, vault, () => redeem(invitation, caPem, formers));
  // Kept before any other step can fail, because the join has used up the code.
  const folder = keepJoined(config, address, caPem, credential.token);
  const classes = await askClasses(credential, caPem);
  const pooled = await askPooled(credential, caPem);
  // A vault that was taken out knows the new token alone once it belongs to the pool again.
  const { vaults = [], left = [] } = pooled ?? {};
  shareToken(config, [...vaults, ...left], credential.token);
  const isKnown = classes.every((name) =>
    listOf(config, name).includes(entryOf(config, name, address, pooled)),
  );
  const { path, isDone, line, moved } = writeAddress(call, config, address, { classes, pooled });
  const lines = [
    `joined the ${classes.join(" and ")} vault at ${address} as ${credential.name}; certificate and token are in ${folder}`,
    line,
    ...moved,
    isKnown
      ? "a running sidecar uses the new token when it next connects, within seconds"
      : `a sidecar that runs now uses the vault once it starts again: ${RESTART_SIDECAR}`,
  ];
  call.print({ event: "joined", address, name: credential.name, classes, path, isDone }, lines);
  return isDone;
}

async function codeOf({ args, io }: Call): Promise<string> {
  const [given] = args;
  if (given === "-") return await io.readAll(JOIN_CODE_CHARS_MAX);
  if (given !== undefined) return given;
  if (io.isInteractive) return await io.ask("Join code:");
  const reason = "the code is missing: give it as an argument, or - to read it from standard input";
  throw new TierkvError("USAGE", { reason });
}
