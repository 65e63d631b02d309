// Owns what is said and heard by multicast DNS: that there is a vault. Nothing that is heard is trusted; a join says who a vault is.
import { readFileSync } from "node:fs";
import { isIPv4 } from "node:net";
import { hostname } from "node:os";
import { Bonjour } from "bonjour-service";
import type { Service } from "bonjour-service";
import { isVaultClass } from "../block.ts";
import type { VaultClass } from "../block.ts";
import { fingerprintOf } from "../client/certificate.ts";
import type { Config } from "../config/config.ts";
import { splitAddress } from "../hosts.ts";
import { ownInterfaces } from "../interfaces.ts";
import type { Running } from "../lifecycle.ts";
import { NAME_BYTES_MAX } from "../limits/general.ts";
import { DISCOVER_ASK_MS, DISCOVER_MS, DISCOVER_VAULTS_MAX } from "../limits/pool.ts";
import type { Logger } from "../log.ts";
import { printable } from "../printable.ts";
import { sleep } from "../time.ts";
import { isJoined, joinedFiles } from "./credentials.ts";
import { isEverywhere } from "./targets.ts";

const TYPE = "tierkv";
/** Where multicast DNS is heard: a socket at an interface's own address would not hear it. */
const GROUP = "224.0.0.251";

/** What a vault says of itself. */
export interface Announcement {
  /** Where it listens, with its real port. */
  address: string;
  class: VaultClass;
  capacityBytes: number;
  /** PEM; null: it has none. */
  certificate: Buffer | null;
}

/** Says it until closed, then that it is over. */
export function announce(said: Announcement, logger: Logger): Running {
  const { host, port } = splitAddress(said.address);
  const isOne = isIPv4(host) && !isEverywhere(host);
  const daemons = (isOne ? [host] : ownAddresses(false)).map((address) =>
    open(address, (reason) =>
      logger.warn({ address, reason }, "[vault] announce: multicast DNS does not work here"),
    ),
  );
  const { certificate } = said;
  const own = certificate === null ? {} : { cert: printOf(certificate) };
  const txt = { class: said.class, bytes: String(said.capacityBytes), ...own };
  const name = `${hostname()} ${port}`;
  // The name is this vault's own: it is the same on every network.
  for (const daemon of daemons) daemon.publish({ name, type: TYPE, port, txt, probe: false });
  logger.info({ type: `_${TYPE}._tcp.local`, ...txt }, "the vault is announced to the network");
  return {
    close: async () => {
      const goodbyes = daemons.map(
        (daemon) => new Promise<void>((resolve) => daemon.unpublishAll(() => resolve())),
      );
      await Promise.all(goodbyes);
      await closed(daemons);
    },
  };
}

export interface Candidate {
  /** As it calls itself. */
  name: string;
  /** From where it answered. */
  address: string;
  class: string;
  capacityBytes: number;
  /** SHA-256 of its certificate, as it says; null: it has none. */
  certificate: string | null;
  /** other: this machine joined one of another certificate under that address. */
  here: "new" | "joined" | "other";
}

/** Those that answer on any network of this machine within DISCOVER_MS. */
export async function discover(config: Config): Promise<Candidate[]> {
  const found = new Map<string, Candidate>();
  const onService = (service: Service): void => {
    const candidate = candidateOf(config, service);
    if (candidate === null || found.size >= DISCOVER_VAULTS_MAX) return;
    found.set(`${candidate.address} ${candidate.name}`, candidate);
  };
  const daemons = ownAddresses(true).map((address) => open(address, () => {}));
  const browsers = daemons.map((daemon) => daemon.find({ type: TYPE }, onService));
  // A packet that was lost is asked for again.
  for (let ms = 0; ms < DISCOVER_MS; ms += DISCOVER_ASK_MS) {
    await sleep(DISCOVER_ASK_MS);
    for (const browser of browsers) browser.update();
  }
  await closed(daemons);
  return [...found.values()].toSorted((a, b) => (a.address < b.address ? -1 : 1));
}

/** null for what no vault says. */
function candidateOf(config: Config, { name, port, txt, referer }: Service): Candidate | null {
  const said = (txt ?? {}) as Record<string, unknown>;
  const [of, bytes, cert] = [said["class"], Number(said["bytes"]), said["cert"]];
  if (!isVaultClass(of)) return null;
  if (!Number.isSafeInteger(bytes) || bytes < 0 || referer === undefined) return null;
  const certificate = typeof cert === "string" && /^[0-9a-f]{64}$/.test(cert) ? cert : null;
  const address = `${referer.address}:${port}`;
  const known = isJoined(config, address)
    ? printOf(readFileSync(joinedFiles(config, address).ca))
    : null;
  return {
    name: printable(name.slice(0, NAME_BYTES_MAX)),
    address,
    class: of,
    capacityBytes: bytes,
    certificate,
    here: known === null ? "new" : known === certificate ? "joined" : "other",
  };
}

function printOf(pem: Buffer): string {
  return fingerprintOf(pem).toString("hex");
}

function ownAddresses(isWithInternal: boolean): string[] {
  return ownInterfaces()
    .filter(({ family, internal }) => family === "IPv4" && (isWithInternal || !internal))
    .map(({ address }) => address);
}

async function closed(daemons: readonly Bonjour[]): Promise<void> {
  const ends = daemons.map(
    (daemon) => new Promise<void>((resolve) => daemon.destroy(() => resolve())),
  );
  await Promise.all(ends);
}

/** On the network of that address alone. */
function open(address: string, onError: (reason: string) => void): Bonjour {
  // What its types leave out goes on to the socket.
  const way = { interface: address, bind: GROUP };
  const options = way as ConstructorParameters<typeof Bonjour>[0];
  return new Bonjour(options, (error: Error) => onError(error.message));
}
