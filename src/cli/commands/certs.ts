// Owns `tierkv certs`: makes a CA, and certificates for vaults and clients, for users with their own CA.
import { existsSync } from "node:fs";
import { join, resolve } from "node:path";
import { Option } from "commander";
import { TierkvError } from "../../base/errors.ts";
import { readPrivate, writePrivate } from "../../base/private-file.ts";
import { ROLES } from "../../base/roles.ts";
import type { Role } from "../../base/roles.ts";
import type { Call } from "../shell/call.ts";
import type { Command } from "../shell/command.ts";

interface CertsOptions {
  dir: string;
  host: string[];
  role: Role;
}

const CA_NAME = "tierKV CA";
const DIR_KEY = "--dir";

export function addCerts(program: Command): void {
  program
    .command("certs")
    .helpCommand(false)
    .summary("make your own CA and certificates")
    .description("Makes a CA, and certificates for vaults and their clients.")
    .example("tierkv certs init --host 192.168.1.10")
    .command("init")
    .summary("make a CA, a server and a client certificate")
    .description(
      "Makes a CA, a server certificate for the given hosts, and a client certificate with a role. Further runs in the\n" +
        "same directory use its CA to sign more certificates. Prints the lines for tierkv.toml. Keep ca-key.pem off the\n" +
        "machines that serve.",
    )
    .option("--dir <path>", "directory for the files", "./tierkv-certs")
    .requiredOption("--host <host...>", "names and addresses of the vault's machine")
    .addOption(new Option("--role <role>", "rights of the client").choices(ROLES).default("write"))
    .example("tierkv certs init --host vault1.lan --host 192.168.1.10")
    .does(init);
}

async function init(call: Call<CertsOptions>): Promise<void> {
  const { host: hosts, role } = call.options;
  const dir = resolve(call.options.dir);
  const { certify } = await import("../../vault/access/identity.ts");
  const file = (name: string): string => join(dir, `${name}.pem`);
  const keep = (name: string, { certPem, keyPem }: { certPem: string; keyPem: string }): void => {
    writePrivate(file(`${name}-key`), keyPem, DIR_KEY);
    writePrivate(file(name), certPem, DIR_KEY);
  };
  const isCaKept = existsSync(file("ca"));
  if (!isCaKept) keep("ca", certify({ usage: "ca", commonName: CA_NAME, hosts: [] }));
  if (!existsSync(file("ca-key"))) {
    const fix = "put the CA's key there, or give another --dir";
    throw new TierkvError("CREDENTIALS", { path: file("ca-key"), reason: "it is gone", fix });
  }
  const ca = { commonName: CA_NAME, keyPem: readPrivate(file("ca-key"), DIR_KEY) };
  const [first = "vault"] = hosts;
  const [server, client] = [`server-${plain(first)}`, `client-${role}`];
  const again = [server, client].filter((name) => existsSync(file(name)));
  keep(server, certify({ usage: "server", commonName: first, hosts }, ca));
  keep(
    client,
    certify({ usage: "client", commonName: "tierKV client", hosts: [], unit: role }, ca),
  );
  const [vault, engine] = [
    `[vault]\n${keys(file, server, "tls_client_ca")}`,
    `[cluster]\n${keys(file, client, "tls_ca")}`,
  ];
  call.print(
    {
      event: "certificates",
      dir,
      isCaKept,
      again,
      ca: file("ca"),
      server: file(server),
      client: file(client),
    },
    [
      ...(isCaKept ? [describeKept(dir, [server, client], again)] : []),
      "on the vault's machine, in tierkv.toml:",
      vault,
      "on the engine's machine, in tierkv.toml:",
      engine,
      "for a gateway on the machine of these hosts, in place of [vault]:",
      `[gateway]\n${pairOf(file, server)}`,
    ],
  );
}

/** Says what a further run left and what it replaced. */
function describeKept(dir: string, made: readonly string[], again: readonly string[]): string {
  const fresh = made.filter((name) => !again.includes(name));
  const said = [
    `${dir}: the CA is kept`,
    ...(fresh.length === 0 ? [] : [`${fresh.join(" and ")} made`]),
    ...(again.length === 0
      ? []
      : [`${again.join(" and ")} made anew, with new keys (copies of the old ones still work)`]),
  ];
  return said.join("; ");
}

function keys(file: (name: string) => string, name: string, ca: string): string {
  return `${pairOf(file, name)}\n${ca} = "${file("ca")}"`;
}

function pairOf(file: (name: string) => string, name: string): string {
  return `tls_cert = "${file(name)}"\ntls_key = "${file(`${name}-key`)}"`;
}

function plain(host: string): string {
  return host.replaceAll(/[^\w.-]/g, "_");
}
