// Owns announcements of vaults by multicast DNS. Answers are never trusted, because only a join verifies a vault.
import { readFileSync } from "node:fs";
import { isIPv4 } from "node:net";
import { hostname } from "node:os";
import { Bonjour } from "bonjour-service";
import type { Service } from "bonjour-service";
import { isVaultClass } from "../base/block.ts";
import type { VaultClass } from "../base/block.ts";
import { splitAddress } from "../base/hosts.ts";
import { ownInterfaces } from "../base/interfaces.ts";
import type { Running } from "../base/lifecycle.ts";
import { NAME_BYTES_MAX } from "../base/limits/general.ts";
import { DISCOVER_ASK_MS, DISCOVER_MS, DISCOVER_VAULTS_MAX } from "../base/limits/pool.ts";
import type { Logger } from "../base/log.ts";
import { printable } from "../base/printable.ts";
import { sleep } from "../base/time.ts";
import { fingerprintOf } from "../client/vault/certificate.ts";
import type { Config } from "../config/config.ts";
import { isJoined, joinedFiles } from "./credentials.ts";
import { isEverywhere } from "./targets.ts";

const TYPE = "tierkv";
/** Multicast group to bind, because a socket bound to an interface's own address receives no multicast. */
const GROUP = "224.0.0.251";

/** A vault's announcement of itself. */
export interface Announcement {
  /** Listen address, with the real port. */
  address: string;
  class: VaultClass;
  capacityBytes: number;
  /** Certificate in PEM; null: it has none. */
  certificate: Buffer | null;
}

/** Announces the vault until closed, then withdraws the announcement. */
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
  // No probing, because the name is unique to this vault and the same on every network.
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
  /** Name that it announces. */
  name: string;
  /** Source address of its answer, with the announced port. */
  address: string;
  class: string;
  capacityBytes: number;
  /** Announced SHA-256 of its certificate; null: it has none. */
  certificate: string | null;
  /** other: this machine joined a vault at that address with another certificate. */
  here: "new" | "joined" | "other";
}

/** Returns the vaults that answer on any network of this machine within DISCOVER_MS. */
export async function discover(config: Config): Promise<Candidate[]> {
  const found = new Map<string, Candidate>();
  const onService = (service: Service): void => {
    const candidate = candidateOf(config, service);
    if (candidate === null || found.size >= DISCOVER_VAULTS_MAX) return;
    found.set(`${candidate.address} ${candidate.name}`, candidate);
  };
  const daemons = ownAddresses(true).map((address) => open(address, () => {}));
  const browsers = daemons.map((daemon) => daemon.find({ type: TYPE }, onService));
  // Ask repeatedly, because packets get lost.
  for (let ms = 0; ms < DISCOVER_MS; ms += DISCOVER_ASK_MS) {
    await sleep(DISCOVER_ASK_MS);
    for (const browser of browsers) browser.update();
  }
  await closed(daemons);
  return [...found.values()].toSorted((a, b) => (a.address < b.address ? -1 : 1));
}

/** Returns null for an answer that no vault would give. */
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

/** Opens multicast DNS on the network of `address` alone. */
function open(address: string, onError: (reason: string) => void): Bonjour {
  // The library passes these to the socket, though its types lack them.
  const way = { interface: address, bind: GROUP };
  const options = way as ConstructorParameters<typeof Bonjour>[0];
  return new Bonjour(options, (error: Error) => onError(error.message));
}
