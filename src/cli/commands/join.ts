// Owns `tierkv join`: one line, made on the vault's machine, lets this one in.
import type { Call, Registrar } from "../call.ts";
import { decodeJoinCode } from "../join-code.ts";

export function addJoin({ program, action }: Registrar): void {
  program
    .command("join")
    .argument("[code]", "as `tierkv vault` or `tierkv invite` printed it; `-`: from standard input")
    .summary("let this machine into a vault")
    .description(
      "Run it on the engine's machine. Connects to the vault that the code names, makes sure that it is that vault before\n" +
        "it shows the token, keeps certificate and token (mode 0600), and writes the vault's address into tierkv.toml.\n" +
        "A sidecar that runs takes it up when it is started again.",
    )
    .addHelpText("after", "\nExample:\n  tierkv join tkv1.EjE5Mi4xNjguMS4xMDo1MDA1...")
    .action(action(joinVault));
}

async function joinVault(call: Call): Promise<number> {
  const config = call.loadConfig();
  const invitation = decodeJoinCode(await codeOf(call));
  const { address } = invitation;
  const { askClasses, certificateOf, keep, writeAddress } = await import("../joining.ts");
  const caPem = await certificateOf(invitation);
  const classes = await askClasses(invitation, caPem);
  const folder = keep(config, invitation, caPem);
  const written = writeAddress(call, config, address, classes);
  const keys = classes.map((name) => `${name}_cold = "${address}"`);
  const lines = [
    `joined the ${classes.join(" and ")} vault at ${address}; certificate and token are in ${folder}`,
    written.isDone
      ? `${written.path}: ${keys.join(", ")}`
      : `${written.path} could not be edited surely: write below [cluster] in it: ${keys.join(", ")}`,
    "a sidecar that runs takes it up when it is started again",
  ];
  call.print({ event: "joined", address, classes, ...written }, lines);
  return written.isDone ? 0 : 1;
}

async function codeOf({ args, io }: Call): Promise<string> {
  const [given] = args;
  if (given !== undefined && given !== "-") return given;
  return await io.ask("Join code:");
}
