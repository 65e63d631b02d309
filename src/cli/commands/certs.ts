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
  /** Left out: a client certificate alone. */
  host?: string[];
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
        "same directory use its CA to sign more certificates; without --host they sign a client certificate alone. Prints\n" +
        "the lines for tierkv.toml. Keep ca-key.pem off the machines that serve.",
    )
    .option("--dir <path>", "directory for the files", "./tierkv-certs")
    .option("--host <host...>", "all names and addresses of the vault's machine")
    .addOption(new Option("--role <role>", "rights of the client").choices(ROLES).default("write"))
    .example("tierkv certs init --host vault1.lan --host 192.168.1.10")
    .example("tierkv certs init --role admin")
    .does(init);
}

/** Where the files of one run are, and how they are written. */
interface Folder {
  dir: string;
  file(name: string): string;
  keep(name: string, pair: { certPem: string; keyPem: string }): void;
}

function folderAt(path: string): Folder {
  const dir = resolve(path);
  const file = (name: string): string => join(dir, `${name}.pem`);
  return {
    dir,
    file,
    keep(name, { certPem, keyPem }) {
      writePrivate(file(`${name}-key`), keyPem, DIR_KEY);
      writePrivate(file(name), certPem, DIR_KEY);
    },
  };
}

async function init(call: Call<CertsOptions>): Promise<void> {
  const { host: hosts = [], role } = call.options;
  const { certify } = await import("../../vault/access/identity.ts");
  const folder = folderAt(call.options.dir);
  const { dir, file, keep } = folder;
  const isCaKept = existsSync(file("ca"));
  if (!isCaKept && hosts.length === 0) throw new TierkvError("USAGE", { reason: NO_HOST });
  if (!isCaKept) keep("ca", certify({ usage: "ca", commonName: CA_NAME, hosts: [] }));
  const ca = { commonName: CA_NAME, keyPem: keyOfCa(folder) };
  const [server, client] = [serverOf(hosts), `client-${role}`];
  const made = [...(server === null ? [] : [server]), client];
  const again = made.filter((name) => existsSync(file(name)));
  if (server !== null)
    keep(server, certify({ usage: "server", commonName: hosts[0] ?? "", hosts }, ca));
  const commonName = "tierKV client";
  keep(client, certify({ usage: "client", commonName, hosts: [], unit: role }, ca));
  const result = { event: "certificates", dir, isCaKept, again, hosts, ca: file("ca") };
  call.print({ ...result, server: server === null ? null : file(server), client: file(client) }, [
    ...(isCaKept ? [describeKept(dir, made, again, hosts)] : []),
    ...describeLines(folder, server, client),
  ]);
}

/** Returns the name of the server certificate; null: none is wanted. */
function serverOf([first]: readonly string[]): string | null {
  return first === undefined ? null : `server-${plain(first)}`;
}

function keyOfCa({ file }: Folder): string {
  const path = file("ca-key");
  if (existsSync(path)) return readPrivate(path, DIR_KEY);
  const fix = "put the CA's key there, or give another --dir";
  throw new TierkvError("CREDENTIALS", { path, reason: "it is gone", fix });
}

/** Returns the lines for the configurations of the machines that use the certificates. */
function describeLines({ file }: Folder, server: string | null, client: string): string[] {
  const engine = [
    "on the engine's machine, in tierkv.toml:",
    `[cluster]\n${keys(file, client, "tls_ca")}`,
  ];
  if (server === null) return engine;
  return [
    "on the vault's machine, in tierkv.toml:",
    `[vault]\n${keys(file, server, "tls_client_ca")}`,
    ...engine,
    "for a gateway on the machine of these hosts, in place of [vault]:",
    `[gateway]\n${pairOf(file, server)}`,
  ];
}

const NO_HOST =
  "write --host with the names and addresses of the vault's machine; without it, a further client certificate is made in a directory that has a CA already";

/** Says what a further run left and what it replaced. */
function describeKept(
  dir: string,
  made: readonly string[],
  again: readonly string[],
  hosts: readonly string[],
): string {
  const fresh = made.filter((name) => !again.includes(name));
  const said = [
    `${dir}: the CA is kept`,
    ...(fresh.length === 0 ? [] : [`${fresh.join(" and ")} made`]),
    ...(again.length === 0
      ? []
      : [`${again.join(" and ")} made anew, with new keys (copies of the old ones still work)`]),
    ...(hosts.length === 0 ? [] : [`the server certificate is for ${hosts.join(", ")} alone`]),
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
