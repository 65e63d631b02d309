// Owns `tierkv join`: makes sure of a vault, keeps its certificate and token, and writes its address into the configuration.
import {
  existsSync,
  readFileSync,
  realpathSync,
  renameSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { homedir } from "node:os";
import { dirname, join } from "node:path";
import { connect } from "node:tls";
import { vaultClassName } from "../../block.ts";
import type { RecordClass } from "../../block.ts";
import { checkConfig } from "../../config/check.ts";
import type { Config } from "../../config/config.ts";
import { setText } from "../../config/edit.ts";
import { makeDirectory } from "../../directory.ts";
import { TierkvError, toTierkvError } from "../../errors.ts";
import { JOIN_TIMEOUT_MS } from "../../limits-access.ts";
import { createLogger } from "../../log.ts";
import { randomId } from "../../time.ts";
import { ALPN, TLS_MIN_VERSION, VAULT_SERVER_NAME } from "../../wire/security.ts";
import type { Call, Registrar } from "../call.ts";
import { joinedFiles, keepJoined } from "../credentials.ts";
import { fingerprintOf } from "../invitation.ts";
import { decodeJoinCode } from "../join-code.ts";
import type { Invitation } from "../join-code.ts";

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
    .addHelpText("after", "\nExample:\n  tierkv join tkv1.DTE5Mi4xNjguMS4xMDo1MDA1...")
    .action(action(joinVault));
}

async function joinVault(call: Call): Promise<number> {
  const config = call.loadConfig();
  const invitation = decodeJoinCode(await codeOf(call));
  const { address } = invitation;
  const caPem = await certificateOf(invitation);
  const classes = await askClasses(invitation, caPem);
  keepJoined(config, address, caPem, invitation.token);
  const written = writeAddress(call, config, address, classes);
  const keys = classes.map((name) => `${name}_cold = "${address}"`);
  const lines = [
    `joined the ${classes.join(" and ")} vault at ${address}; certificate and token are in ${joinedFiles(config, address).folder}`,
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

/** The vault's certificate, when it is the one of the code. Nothing is sent to anybody else. Throws FINGERPRINT or VAULT_DOWN. */
async function certificateOf({ address, fingerprint }: Invitation): Promise<string> {
  const split = address.lastIndexOf(":");
  const host = address.slice(0, split).replace(/^\[(.*)\]$/, "$1");
  const socket = connect({
    host,
    port: Number(address.slice(split + 1)),
    servername: VAULT_SERVER_NAME,
    // Its fingerprint is what says who it is.
    rejectUnauthorized: false,
    minVersion: TLS_MIN_VERSION,
    ALPNProtocols: [...ALPN],
  });
  const fail = (reason: string): TierkvError =>
    new TierkvError("VAULT_DOWN", { name: "the", address, reason });
  try {
    const raw = await new Promise<Buffer>((resolve, reject) => {
      socket.setTimeout(JOIN_TIMEOUT_MS, () => reject(fail(`silent for ${JOIN_TIMEOUT_MS} ms`)));
      socket.once("error", (error) => reject(fail(toTierkvError(error).message)));
      socket.once("secureConnect", () => resolve(socket.getPeerCertificate().raw));
    });
    const seen = fingerprintOf(raw);
    if (!seen.equals(fingerprint)) {
      const short = (bytes: Buffer): string => bytes.toString("hex").slice(0, 16);
      throw new TierkvError("FINGERPRINT", {
        address,
        seen: short(seen),
        wanted: short(fingerprint),
      });
    }
    return pemOf(raw);
  } finally {
    socket.destroy();
  }
}

function pemOf(raw: Buffer): string {
  const lines = raw.toString("base64").match(/.{1,64}/g) ?? [];
  return ["-----BEGIN CERTIFICATE-----", ...lines, "-----END CERTIFICATE-----", ""].join("\n");
}

/** What the vault holds; proves that the token opens it. */
async function askClasses(invitation: Invitation, caPem: string): Promise<RecordClass[]> {
  const { VaultChannel } = await import("../../client/channel.ts");
  const { helloRequest } = await import("../../client/greeting.ts");
  const { vaultService } = await import("../../wire/service.ts");
  const { fromGrpcError } = await import("../../wire/status.ts");
  const { address, token } = invitation;
  const channel = new VaultChannel(address, {
    caPem: Buffer.from(caPem),
    serverName: VAULT_SERVER_NAME,
    certPem: null,
    keyPem: null,
    token: () => token,
  });
  try {
    const options = { timeoutMs: JOIN_TIMEOUT_MS, signal: new AbortController().signal };
    const hello = await channel.unary(vaultService.Hello, helloRequest("kv"), options);
    const held = vaultClassName(hello.recordClass);
    return held === "both" ? ["kv", "ssm"] : [held];
  } catch (error) {
    const context = { name: "the", address, call: "Hello", timeoutMs: JOIN_TIMEOUT_MS };
    throw fromGrpcError(error, context);
  } finally {
    channel.close();
  }
}

interface Written {
  path: string;
  isDone: boolean;
}

function writeAddress(
  { configPath, io }: Call,
  config: Config,
  address: string,
  classes: readonly RecordClass[],
): Written {
  const home = io.env["HOME"] ?? homedir();
  const path = config.path ?? configPath ?? join(home, ".config", "tierkv", "tierkv.toml");
  const before = existsSync(path) ? readFileSync(path, "utf8") : "";
  const after = classes.reduce<string | null>(
    (text, name) => (text === null ? null : setText(text, "cluster", `${name}_cold`, address)),
    before,
  );
  if (after === null || checkConfig(after, path, io.env).config === null) {
    return { path, isDone: false };
  }
  try {
    replace(path, after);
    return { path, isDone: true };
  } catch (error) {
    createLogger("join", { level: config.log.level }).debug({ err: error }, "not written");
    return { path, isDone: false };
  }
}

/** In one step; a link goes on pointing where it did, and the mode stays. */
function replace(path: string, text: string): void {
  makeDirectory(dirname(path));
  const isThere = existsSync(path);
  const real = isThere ? realpathSync(path) : path;
  const mode = isThere ? statSync(real).mode & 0o777 : 0o644;
  const fresh = `${real}.${randomId(4)}`;
  writeFileSync(fresh, text, { mode });
  renameSync(fresh, real);
}
