// Owns the sources of vaults that come and go (DNS, pool, etcd): followed by a sidecar, or read once by a command.
import { createHash } from "node:crypto";
import { join } from "node:path";
import { classesOf, RECORD_CLASSES } from "../base/block.ts";
import type { RecordClass, VaultClass } from "../base/block.ts";
import { TierkvError, toTierkvError } from "../base/errors.ts";
import { namesIn, sourceOf } from "../base/hosts.ts";
import { LISTING_WAIT_MS } from "../base/limits/pool.ts";
import { silent } from "../base/log.ts";
import type { Logger } from "../base/log.ts";
import type { VaultClient } from "../client/vault/vault-client.ts";
import type { Waker } from "../client/vault/wake.ts";
import type { Address, Config } from "../config/config.ts";
import { addressesOf, systemResolver } from "../discovery/dns.ts";
import type { Resolving } from "../discovery/dns.ts";
import { EtcdSource, vaultAt } from "../discovery/etcd.ts";
import { KeptSource, readKept } from "../discovery/kept.ts";
import { PolledSource } from "../discovery/polled.ts";
import { PoolSource } from "../discovery/pool.ts";
import { firstList } from "../discovery/source.ts";
import type { ListedVault, SourceKind, VaultSource } from "../discovery/source.ts";
import type { MemberSource } from "../sidecar/vaults/pool-members.ts";
import { isJoined, securityFor } from "./credentials.ts";
import type { Reached } from "./credentials.ts";
import { etcdOptions } from "./etcd.ts";
import { CLASSES, VAULT_ROLES, vaultTargets } from "./targets.ts";
import type { VaultRole, VaultTarget } from "./targets.ts";
import { lastingClient } from "./vault-link.ts";

/** A source, and the mapping of its listed vaults to targets. */
interface Feed {
  /** Text of the source in the configuration. */
  text: string;
  source: VaultSource;
  /** null: the vault holds no class for which this source is configured. */
  targetOf(listed: ListedVault): VaultTarget | null;
}

/** Returns the configured names of one kind, by class. */
function named({ cluster }: Config, kind: SourceKind): Record<RecordClass, Address[]> {
  const of = (all: readonly Address[]): Address[] =>
    all.filter(({ text }) => sourceOf(text) === kind);
  return { kv: of(cluster.kvCold), ssm: of(cluster.ssmCold) };
}

function dnsFeeds(config: Config, resolver: Resolving, logger: Logger): Feed[] {
  const all = named(config, "dns");
  return RECORD_CLASSES.flatMap((name) =>
    all[name].map((address) => {
      const { host, port, text } = address;
      const alsoName = port === 0 ? {} : { serverName: host };
      return {
        text,
        source: new PolledSource("dns", () => addressesOf(address, resolver), logger),
        targetOf({ address: at }) {
          const target = targetFor(at, name, [name]);
          return target && { ...target, ...alsoName };
        },
      };
    }),
  );
}

/** Makes one feed for both classes, so that a pool is asked once. */
function poolFeeds(
  config: Config,
  logger: Logger,
  onRefused: (count: number) => void,
  keptOf: (text: string) => readonly ListedVault[] = () => [],
): Feed[] {
  const all = named(config, "pool");
  const asked = RECORD_CLASSES.filter((name) => all[name].length > 0);
  const seeds = [...new Set([...all.kv, ...all.ssm].map(({ text }) => namesIn(text)))];
  if (seeds.length === 0) return [];
  const via = seeds.find((seed) => isJoined(config, seed)) ?? null;
  const targetOf = ({ address, class: of, certificate }: ListedVault): VaultTarget | null => {
    const target = targetFor(address, of, asked);
    return target && { ...target, listed: { certificate, via } };
  };
  const text = [...new Set([...all.kv, ...all.ssm].map((address) => address.text))].join(", ");
  const source = new PoolSource({
    seeds,
    known: keptOf(text),
    securityFor: (listed) =>
      securityFor(
        config,
        { address: listed.address, isOwn: false, listed: { ...listed, via } },
        logger,
      ),
    logger,
    onRefused,
  });
  return [{ text, source, targetOf }];
}

function etcdFeeds(config: Config, logger: Logger): Feed[] {
  const all = named(config, "etcd");
  const asked = RECORD_CLASSES.filter((name) => all[name].length > 0);
  if (asked.length === 0) return [];
  const source = new EtcdSource(etcdOptions(config, logger), vaultAt);
  const targetOf = (listed: ListedVault): VaultTarget | null =>
    targetFor(listed.address, listed.class, asked);
  return [{ text: "etcd:vaults", source, targetOf }];
}

/** null: the vault holds none of the `asked` classes. */
function targetFor(
  address: string,
  of: VaultClass | null,
  asked: readonly RecordClass[],
): VaultTarget | null {
  const held = asked.filter((name) => classesOf(of ?? "both").includes(name));
  const [first] = held;
  if (first === undefined) return null;
  const role = held.length === 2 ? "cold" : (`${first}_cold` as const);
  return { name: role, role, classes: CLASSES[role], address, isOwn: false };
}

/** Resolves the configured names to vaults. Throws NAMES_UNRESOLVED. */
export async function namedTargets(
  config: Config,
  resolver: Resolving = systemResolver(),
): Promise<VaultTarget[]> {
  const lists = await Promise.all(namedLists(config, resolver));
  return lists.flatMap(({ targets, failure, isName }) => {
    // A command must not miss a vault that a name has now.
    if (failure !== null && (isName || targets.length === 0)) throw failure;
    return targets;
  });
}

/** A configured name and its vaults. */
interface NamedList {
  isName: boolean;
  targets: VaultTarget[];
  /** Why there is no list now, so that `targets` are those of the list that this machine's sidecar kept; null: there is one. */
  failure: TierkvError | null;
}

/** Begins to resolve each configured name. */
function namedLists(config: Config, resolver: Resolving): Promise<NamedList>[] {
  const { kv, ssm } = named(config, "dns");
  const byName = new Map([...kv, ...ssm].map((address) => [address.text, address]));
  const feeds = [
    ...dnsFeeds(config, resolver, silent),
    ...poolFeeds(
      config,
      silent,
      () => {},
      (text) => readKept(keptAt(config, text), silent),
    ),
    ...etcdFeeds(config, silent),
  ];
  return feeds.map(async ({ text, source, targetOf }) => {
    const address = byName.get(text);
    const of = (list: readonly ListedVault[], failure: TierkvError | null): NamedList => {
      const targets = list.flatMap((listed) => targetOf(listed) ?? []);
      return { isName: address !== undefined, targets, failure };
    };
    try {
      // Resolved here first, because the feed would hide a name's error.
      if (address !== undefined) await addressesOf(address, resolver);
      const list = (await firstList(source, LISTING_WAIT_MS)) ?? [];
      if (list.length > 0) return of(list, null);
      const { failure = "" } = source;
      const why = failure === "" ? "" : `: ${failure}`;
      const reason = `no list came within ${LISTING_WAIT_MS} ms${why}`;
      const fix =
        source.kind === "etcd"
          ? "look whether etcd answers at [etcd] endpoints, and whether a vault registers there"
          : "look whether one of these vaults runs, and whether this machine has joined it";
      throw new TierkvError("NAMES_UNRESOLVED", { address: text, reason, fix });
    } catch (error) {
      return of(readKept(keptAt(config, text), silent), toTierkvError(error));
    }
  });
}

/** Returns every vault known now. Throws NAMES_UNRESOLVED. */
export async function allTargets(config: Config): Promise<VaultTarget[]> {
  return eachOnce([...vaultTargets(config), ...(await namedTargets(config))]);
}

/** A vault that is written down and also stands behind a name is one: the name tells more of it. */
function eachOnce(targets: readonly VaultTarget[]): VaultTarget[] {
  return [...new Map(targets.map((target) => [target.address, target])).values()];
}

export interface Known {
  targets: VaultTarget[];
  /** Errors of names that stand for no vault. */
  failures: TierkvError[];
  /** Errors of names for which the last list stays in use. */
  outdated: TierkvError[];
}

/** Returns every vault known now, with those of a last list where no list comes. */
export async function knownTargets(
  config: Config,
  resolver: Resolving = systemResolver(),
): Promise<Known> {
  const targets = vaultTargets(config);
  const failures = new Map<string, TierkvError>();
  const outdated = new Map<string, TierkvError>();
  for (const { targets: list, failure } of await Promise.all(namedLists(config, resolver))) {
    targets.push(...list);
    if (failure === null) continue;
    (list.length > 0 ? outdated : failures).set(failure.message, failure);
  }
  const all = (errors: Map<string, TierkvError>): TierkvError[] => [...errors.values()];
  return { targets: eachOnce(targets), failures: all(failures), outdated: all(outdated) };
}

/** Returns the fit vaults of one role, or all. Throws USAGE if there is none; `verb`: the command's purpose. */
export async function chosenTargets(
  config: Config,
  role: VaultRole | undefined,
  verb: string,
  isFit: (target: VaultTarget) => boolean = () => true,
): Promise<VaultTarget[]> {
  const fit = (await allTargets(config)).filter(isFit);
  const chosen = fit.filter(
    ({ classes }) => role === undefined || CLASSES[role].every((name) => classes.includes(name)),
  );
  if (chosen.length > 0) return chosen;
  const key = role ?? VAULT_ROLES.join(" or ");
  const reason = `no vault to ${verb}: write [cluster] ${key} = "host:port"`;
  throw new TierkvError("USAGE", { reason });
}

/** Returns the vault at that address. Throws USAGE if the configuration has none. */
export function targetAt(targets: readonly VaultTarget[], address: string): VaultTarget {
  const found = targets.find((target) => target.address === address);
  if (found !== undefined) return found;
  const known = targets.map((target) => target.address).join(", ");
  const reason = `${address.slice(0, 100)} is no vault of this machine's configuration, which names ${known === "" ? "none" : known}`;
  throw new TierkvError("USAGE", { reason });
}

/** Path of a source's last list (exported for its test); one file per text, because a machine may use several pools. */
export function keptAt({ vault }: Config, text: string): string {
  const name = createHash("sha256").update(text).digest("hex").slice(0, 16);
  return join(vault.stateDir, `vaults-${name}.json`);
}

/** null: the configuration has no names, so the set of vaults is fixed. */
export function membersOf(
  config: Config,
  logger: Logger,
  waker: Waker,
  onRefused: (count: number) => void,
): MemberSource<VaultClient> | null {
  const pathOf = (text: string): string => keptAt(config, text);
  const feeds = [
    ...dnsFeeds(config, systemResolver(), logger),
    ...poolFeeds(config, logger, onRefused, (text) => readKept(pathOf(text), logger)),
    ...etcdFeeds(config, logger),
  ].map((feed) => ({ ...feed, source: new KeptSource(feed.source, pathOf(feed.text), logger) }));
  if (feeds.length === 0) return null;
  const lists = new Map<Feed, readonly VaultTarget[]>();
  const written = vaultTargets(config);
  const all = (): { target: VaultTarget; kind: SourceKind }[] => [
    ...[...lists].flatMap(([{ source }, list]) =>
      list.map((target) => ({ target, kind: source.kind })),
    ),
    ...written.map((target) => ({ target, kind: "static" as const })),
  ];
  return {
    follow(onList) {
      for (const feed of feeds) {
        feed.source.follow((list) => {
          const targets = list.flatMap((listed) => feed.targetOf(listed) ?? []);
          lists.set(feed, targets);
          for (const name of RECORD_CLASSES) {
            const now = all().filter(({ target }) => target.classes.includes(name));
            const of = new Map(now.map(({ target, kind }) => [target.address, kind]));
            if (of.size > 0) onList(name, of);
          }
        });
      }
    },
    connect(name, address) {
      const targetNow = (): Reached =>
        all().find(({ target }) => target.address === address)?.target ?? {
          address,
          isOwn: false,
        };
      return lastingClient(config, targetNow, name, logger, waker);
    },
    close() {
      for (const { source } of feeds) source.close();
    },
  };
}
