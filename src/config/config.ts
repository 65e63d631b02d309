// Owns the shape of the configuration as the program sees it: typed, complete and frozen.
import type { Coherence, Sleeper } from "../hosts.ts";
import type { LogLevel } from "../log.ts";

/** `cold`: a vault for records of both classes. */
export type Role = "inference" | "kv_cold" | "ssm_cold" | "cold";

/** A TCP address; `text` is `host:port`, with brackets round an IPv6 host. Or a socket: `text` is `unix:/path`, no host, port 0. */
export interface Address {
  readonly host: string;
  readonly port: number;
  readonly text: string;
}

/** What a pool of vaults does against the loss of one. */
export type Redundancy = "none" | "parity" | "copies:2";

export interface ClusterConfig {
  readonly role: Role;
  /** The vaults of each class; empty: none. */
  readonly kvCold: readonly Address[];
  readonly ssmCold: readonly Address[];
  readonly redundancy: Redundancy;
  /** Of memory that sidecars share. */
  readonly coherence: Coherence;
  /** Which of several machines that have the same `shm:` memory this is; null: no other has it. */
  readonly host: number | null;
  /** Whose users have `shm:` memory, by name or number; null: this user alone. */
  readonly group: string | null;
  /** What `tierkv join` stores: certificate and token of each vault. */
  readonly credentials: string;
  /** Machines that are woken when their vault is wanted. */
  readonly wake: readonly Sleeper[];
  /** What opens vaults that were not joined. null: none. */
  readonly tlsCa: string | null;
  readonly tlsCert: string | null;
  readonly tlsKey: string | null;
  readonly token: string | null;
  /** Whether vaults of other machines that were not joined may be spoken to in the clear. */
  readonly insecureLan: boolean;
}

/** The form in which recurrent states are stored. */
export type StateForm = "raw" | "bf16" | "int8";

/** How attention KV is stored; `auto` follows `[turbo_quant] enabled`. */
export type KvCodec = "auto" | "raw" | "lossless" | "int8" | "int8-had";

export interface CodecConfig {
  readonly kv: KvCodec;
  /** Nats a token. */
  readonly maxKld: number;
}

export interface TurboQuantConfig {
  /** null: as `[codec] kv` says. */
  readonly enabled: boolean | null;
  /** Checked against the engine's head dim; null: the engine's is taken. */
  readonly kvDim: number | null;
  readonly states: StateForm;
}

/** When a record on disk is called durable: as its file fills, soon after it was accepted, or before that is answered. */
export type Durability = "none" | "group" | "sync";

export interface VaultConfig {
  readonly listen: Address;
  /** null: a share of the memory free at start. */
  readonly maxBytes: number | null;
  /** What each tenant keeps in memory whatever others store; null: tenants are not told apart. */
  readonly tenantBytes: number | null;
  /** Of the memory, what sessions may keep. */
  readonly keptPercent: number;
  /** null: nothing is kept on disk. */
  readonly dataDir: string | null;
  /** null: a share of the room on that disk at start. */
  readonly diskBytes: number | null;
  readonly durability: Durability;
  /** null: until there is no room. */
  readonly diskTtlS: number | null;
  /** Where full files go besides, a URL; null: nowhere. */
  readonly archive: string | null;
  /** null: a multiple of the disk's. */
  readonly archiveBytes: number | null;
  /** A record waits at most that long until it may go there. */
  readonly archiveAfterS: number;
  /** Nobody is served while somebody uses this machine. */
  readonly yieldToUser: boolean;
  /** Nobody uses it after so long without a sign of it. */
  readonly yieldIdleS: number;
  /** Who uses it for longer gets the vault's memory back. */
  readonly yieldGraceS: number;
  /** This machine does not sleep while its vault is used. */
  readonly keepAwake: boolean;
  /** Lets other machines in without TLS and without a token. */
  readonly insecureLan: boolean;
  /** Holds the certificate and the tokens that the vault makes itself. */
  readonly stateDir: string;
  /** null: the vault makes one. */
  readonly tlsCert: string | null;
  readonly tlsKey: string | null;
  /** Whose certificates open the vault; null: nobody's do. */
  readonly tlsClientCa: string | null;
  /** null: those in `stateDir`, where no client certificate opens it. */
  readonly tokens: string | null;
  /** null: beside the tokens, where other machines get in. */
  readonly auditLog: string | null;
  /** Further ones of this machine, which clients are told of. */
  readonly addresses: readonly Address[];
  /** Tells the network that it is there. */
  readonly announce: boolean;
  /** The file with the key that the vaults of a pool share; null: they keep no list. */
  readonly poolKey: string | null;
  /** Vaults of the pool that are asked first. */
  readonly peers: readonly Address[];
  /** Where Prometheus may scrape; null: nowhere. */
  readonly metricsListen: Address | null;
  /** Whether that may be an address that other machines reach. */
  readonly metricsLan: boolean;
  /** Where traces go; null: nowhere. */
  readonly otlpEndpoint: string | null;
}

export interface SidecarConfig {
  readonly socket: string;
  /** Ceiling of one engine's arena; null: it follows from the memory that is free. */
  readonly arenaBytes: number | null;
  /** null: a sealed memfd. */
  readonly arenaDir: string | null;
  /** Whether an engine starts the sidecar when nothing answers on the socket. Read by the shim. */
  readonly autostart: boolean;
  /** A sidecar started that way ends after this long without an engine. */
  readonly idleExitS: number;
  /** Lanes to each vault. */
  readonly lanes: number;
  /** IP addresses of this machine that lanes come from; none: the system chooses. */
  readonly addresses: readonly string[];
  /** The file with the keys that records are sealed with; null: they are not. */
  readonly recordKeys: string | null;
  /** Where Prometheus may scrape; null: nowhere. */
  readonly metricsListen: Address | null;
  /** Whether that may be an address that other machines reach. */
  readonly metricsLan: boolean;
  /** The collector that spans are sent to, without `/v1/traces`; null: none. */
  readonly otlpEndpoint: string | null;
  /** Where the page is served; null: nowhere. */
  readonly pageListen: Address | null;
  /** null: plain HTTP. */
  readonly pageTlsCert: string | null;
  readonly pageTlsKey: string | null;
  /** The file with the token that lets somebody look; null: everybody may. */
  readonly pageToken: string | null;
}

export interface RestoreConfig {
  /** A restore may hold a request back for this long in all. */
  readonly waitMs: number;
  /** A restore that brought nothing for this long is given up. */
  readonly stallMs: number;
  readonly when: "faster" | "always";
  /** Which restores an idle engine checks by computing a block of them itself. */
  readonly verify: "off" | "sampled" | "every";
}

/** How the gateway chooses an engine. */
export const PRESETS = [
  "earliest-token",
  "prefix-weighted",
  "ring",
  "least-load",
  "round-robin",
] as const;
export type Preset = (typeof PRESETS)[number];

export interface GatewayConfig {
  readonly listen: Address;
  /** Whether that may be an address that other machines reach. */
  readonly lan: boolean;
  readonly engines: readonly Address[];
  /** A name whose addresses are engines, too, or `etcd:engines`; null: none. */
  readonly discover: Address | null;
  /** The port at which each of them publishes its events; null: at none. */
  readonly discoverEvents: number | null;
  /** The port at which each of them replays these; null: at none. */
  readonly discoverReplays: number | null;
  /** Whether the API by sequences is served, and engines may register. */
  readonly sequences: boolean;
  /** Those of the engines that compute prompts for the others. */
  readonly prefill: readonly Address[];
  /** Fewest tokens that they compute. */
  readonly prefillTokens: number;
  /** Where Envoy asks for an engine; null: nowhere. */
  readonly extProc: Address | null;
  /** The file with the digests of API keys; null: everybody may. */
  readonly keys: string | null;
  /** null: plain HTTP. */
  readonly tlsCert: string | null;
  readonly tlsKey: string | null;
  /** Where each engine publishes its KV-cache events, in the order of `engines`; empty: nowhere. */
  readonly events: readonly Address[];
  /** Where each replays them, in the same order; empty: nowhere. */
  readonly replays: readonly Address[];
  /** null: what `events` allow. */
  readonly preset: Preset | null;
  /** Requests in flight at one engine. */
  readonly inFlightMax: number;
  /** How long a request waits for an engine with room. */
  readonly waitMs: number;
  /** How late a first token may be predicted to come; null: as late as it is. */
  readonly ttftMs: number | null;
  /** Priorities by objective. */
  readonly objectives: ReadonlyMap<string, number>;
  /** How long turning a prompt into tokens may hold its request. */
  readonly tokenizeMs: number;
  /** Folders with the tokenizers of models, by name. */
  readonly tokenizers: ReadonlyMap<string, string>;
  readonly socket: string;
  /** How long a decision waits for what vaults hold of a prompt; 0: they are not asked. */
  readonly lookupMs: number;
  /** Where what engines hold is kept for the next gateway. */
  readonly indexFile: string;
}

/** Where vaults and engines are registered, for those who run etcd anyway. */
export interface EtcdConfig {
  /** Empty: there is none. */
  readonly endpoints: readonly Address[];
  readonly prefix: string;
  readonly enginesPrefix: string;
  /** Where other machines reach engines of this one; null: they are not registered. */
  readonly engineHost: string | null;
  /** null: nobody is asked who he is. */
  readonly user: string | null;
  /** The file with its password. */
  readonly password: string | null;
  /** null: in the clear. */
  readonly tlsCa: string | null;
  readonly tlsCert: string | null;
  readonly tlsKey: string | null;
}

/** Signed accounts of restores. */
export interface ReceiptsConfig {
  readonly when: "asked" | "always";
  readonly dir: string;
  /** The latest so many stay. */
  readonly keep: number;
}

/** What restores spare is worth. */
export interface LedgerConfig {
  /** What computing draws more than idling; null: no energy is shown. */
  readonly watts: number | null;
}

export interface LogConfig {
  readonly level: LogLevel;
}

export interface Config {
  /** The file it came from; null: defaults only. */
  readonly path: string | null;
  readonly cluster: ClusterConfig;
  readonly turboQuant: TurboQuantConfig;
  readonly codec: CodecConfig;
  readonly vault: VaultConfig;
  readonly sidecar: SidecarConfig;
  readonly restore: RestoreConfig;
  readonly gateway: GatewayConfig;
  readonly etcd: EtcdConfig;
  readonly receipts: ReceiptsConfig;
  readonly ledger: LedgerConfig;
  readonly log: LogConfig;
}
