// Owns the shape of the configuration as the program sees it: typed, complete and frozen.
import type { Coherence, Sleeper } from "../base/hosts.ts";
import type { LogLevel } from "../base/log.ts";

/** `cold`: a vault for records of both classes. */
export type Role = "inference" | "kv_cold" | "ssm_cold" | "cold";

/** A TCP address; `text` is `host:port`, with brackets round an IPv6 host. Or a socket: `text` is `unix:/path`, no host, port 0. */
export interface Address {
  readonly host: string;
  readonly port: number;
  readonly text: string;
}

/** A pool's protection against the loss of a vault. */
export type Redundancy = "none" | "copies:2";

export interface ClusterConfig {
  readonly role: Role;
  /** The vaults of each class; empty: none. */
  readonly kvCold: readonly Address[];
  readonly ssmCold: readonly Address[];
  readonly redundancy: Redundancy;
  /** Cache coherence of memory that sidecars share. */
  readonly coherence: Coherence;
  /** This machine's number among those with the same `shm:` memory; null: it is the only one. */
  readonly host: number | null;
  /** Group whose users have `shm:` memory, by name or number; null: this user alone. */
  readonly group: string | null;
  /** Directory where `tierkv join` stores each vault's certificate and token. */
  readonly credentials: string;
  /** Machines that are woken when their vault is needed. */
  readonly wake: readonly Sleeper[];
  /** Credentials for vaults that were not joined; null: none. */
  readonly tlsCa: string | null;
  readonly tlsCert: string | null;
  readonly tlsKey: string | null;
  readonly token: string | null;
  /** Whether vaults of other machines that were not joined may be used without TLS. */
  readonly insecureLan: boolean;
  /** Time to live of records in a store that others run; null: the store's own rules. */
  readonly storeTtlS: number | null;
  /** Before all keys in Valkey. */
  readonly storePrefix: string;
  /** Whether replicas of Valkey are read. */
  readonly storeReplicas: boolean;
  /** User of Valkey, and file of the password; null: the environment's, or none. */
  readonly storeUser: string | null;
  readonly storePassword: string | null;
  /** Trust and identity for `valkeys://`; null: the system's authorities, and no certificate. */
  readonly storeTlsCa: string | null;
  readonly storeTlsCert: string | null;
  readonly storeTlsKey: string | null;
}

/** The form in which recurrent states are stored. */
export type StateForm = "raw" | "bf16" | "int8";

/** How attention KV is stored; `auto` follows `[turbo_quant] enabled`, and where that is unset the model's certificate. */
export type KvCodec = "auto" | "raw" | "lossless" | "int8" | "int8-mean-had";

export interface CodecConfig {
  readonly kv: KvCodec;
  /** Largest divergence with which a certificate counts, nats a token. */
  readonly maxKld: number;
  /** Folder of certificates. */
  readonly certificates: string;
}

export interface TurboQuantConfig {
  /** null: as `[codec] kv` says. */
  readonly enabled: boolean | null;
  /** Checked against the engine's head dim; null: not checked. */
  readonly kvDim: number | null;
  readonly states: StateForm;
}

/** When a record on disk becomes durable: as its file fills, soon after it is accepted, or before the answer. */
export type Durability = "none" | "group" | "sync";

export interface VaultConfig {
  readonly listen: Address;
  /** null: a share of the memory free at start. */
  readonly maxBytes: number | null;
  /** Bytes of memory guaranteed to each tenant; null: tenants are not distinguished. */
  readonly tenantBytes: number | null;
  /** Share of the memory that sessions may keep, percent. */
  readonly keptPercent: number;
  /** null: nothing is kept on disk. */
  readonly dataDir: string | null;
  /** null: a share of the room on that disk at start. */
  readonly diskBytes: number | null;
  readonly durability: Durability;
  /** null: until the disk is full. */
  readonly diskTtlS: number | null;
  /** URL that full files are copied to; null: none. */
  readonly archive: string | null;
  /** null: a multiple of the disk's. */
  readonly archiveBytes: number | null;
  /** Longest wait of a record for the archive, seconds. */
  readonly archiveAfterS: number;
  /** Whether the vault stops serving while a person uses this machine. */
  readonly yieldToUser: boolean;
  /** Seconds without a sign of use after which the machine counts as unused. */
  readonly yieldIdleS: number;
  /** Seconds of use after which the vault releases its memory. */
  readonly yieldGraceS: number;
  /** Whether this machine stays awake while its vault is used. */
  readonly keepAwake: boolean;
  /** Whether other machines get in without TLS and without a token. */
  readonly insecureLan: boolean;
  /** Holds the certificate and the tokens that the vault makes itself. */
  readonly stateDir: string;
  /** null: the vault makes one. */
  readonly tlsCert: string | null;
  readonly tlsKey: string | null;
  /** CA whose client certificates open the vault; null: none. */
  readonly tlsClientCa: string | null;
  /** null: the file in `stateDir`, unless client certificates open the vault. */
  readonly tokens: string | null;
  /** null: beside the tokens, if other machines get in. */
  readonly auditLog: string | null;
  /** Further addresses of this machine, which clients learn. */
  readonly addresses: readonly Address[];
  /** Whether the vault announces itself on the network. */
  readonly announce: boolean;
  /** The file with the key that the vaults of a pool share; null: they keep no list. */
  readonly poolKey: string | null;
  /** Vaults of the pool that are queried first. */
  readonly peers: readonly Address[];
  /** Listen address for Prometheus; null: none. */
  readonly metricsListen: Address | null;
  /** Whether that may be an address that other machines reach. */
  readonly metricsLan: boolean;
  /** The collector that spans are sent to, without `/v1/traces`; null: none. */
  readonly otlpEndpoint: string | null;
}

export interface SidecarConfig {
  readonly socket: string;
  /** Ceiling of one engine's arena; null: derived from the free memory. */
  readonly arenaBytes: number | null;
  /** null: a sealed memfd. */
  readonly arenaDir: string | null;
  /** Whether an engine starts the sidecar when none answers on the socket. Read by the shim. */
  readonly autostart: boolean;
  /** Seconds without an engine after which such a sidecar ends. */
  readonly idleExitS: number;
  /** Lanes to each vault. */
  readonly lanes: number;
  /** IP addresses of this machine that lanes use; none: the system chooses. */
  readonly addresses: readonly string[];
  /** The file with the keys that seal records; null: not sealed. */
  readonly recordKeys: string | null;
  /** Listen address for Prometheus; null: none. */
  readonly metricsListen: Address | null;
  /** Whether that may be an address that other machines reach. */
  readonly metricsLan: boolean;
  /** The collector that spans are sent to, without `/v1/traces`; null: none. */
  readonly otlpEndpoint: string | null;
  /** Listen address of the page; null: none. */
  readonly pageListen: Address | null;
  /** null: plain HTTP. */
  readonly pageTlsCert: string | null;
  readonly pageTlsKey: string | null;
  /** The file with the token for viewers; null: open to all. */
  readonly pageToken: string | null;
}

export interface RestoreConfig {
  /** Longest time a restore may delay a request, in all. */
  readonly waitMs: number;
  /** A restore without progress for this long is given up. */
  readonly stallMs: number;
  readonly when: "faster" | "always";
  /** Restores that an idle engine checks by computing one of their blocks. */
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
  /** A name that resolves to more engines, or `etcd:engines`; null: none. */
  readonly discover: Address | null;
  /** Port of their KV-cache events; null: none. */
  readonly discoverEvents: number | null;
  /** Port of their replays; null: none. */
  readonly discoverReplays: number | null;
  /** Whether the API by sequences is served, and engines may register. */
  readonly sequences: boolean;
  /** Engines that compute prompts for the others. */
  readonly prefill: readonly Address[];
  /** Fewest tokens of such a prompt. */
  readonly prefillTokens: number;
  /** Listen address for Envoy's external processing; null: none. */
  readonly extProc: Address | null;
  /** The file with the digests of API keys; null: open to all. */
  readonly keys: string | null;
  /** null: plain HTTP. */
  readonly tlsCert: string | null;
  readonly tlsKey: string | null;
  /** File with the engines' API key; null: they ask for none. */
  readonly engineKey: string | null;
  /** File with the authority of the engines' certificates; null: plain HTTP. */
  readonly engineCa: string | null;
  /** Origins of web pages that may read answers; `*`: all. */
  readonly allowedOrigins: readonly string[];
  /** Whether an answer's headers name its engine. */
  readonly showEngine: boolean;
  /** Endpoints of each engine's KV-cache events, in the order of `engines`; empty: none. */
  readonly events: readonly Address[];
  /** Endpoints of their replays, in the same order; empty: none. */
  readonly replays: readonly Address[];
  /** null: what `events` allow. */
  readonly preset: Preset | null;
  /** Requests in flight at one engine. */
  readonly inFlightMax: number;
  /** How long a request waits for an engine with room. */
  readonly waitMs: number;
  /** Latest predicted first token, ms; null: no limit. */
  readonly ttftMs: number | null;
  /** Priorities by objective. */
  readonly objectives: ReadonlyMap<string, number>;
  /** Longest delay of a request for tokenizing its prompt. */
  readonly tokenizeMs: number;
  /** Folders with the tokenizers of models, by name. */
  readonly tokenizers: ReadonlyMap<string, string>;
  /** How long requests are taken after the signal to end, while the gateway says that it is leaving. */
  readonly leaveMs: number;
  /** How long open answers are finished after that. */
  readonly drainMs: number;
  /** Where metrics and health are served in the clear; null: only at `listen`. */
  readonly metricsListen: Address | null;
  readonly metricsLan: boolean;
  readonly socket: string;
  /** Longest wait of a decision for vaults' look-ups; 0: none are made. */
  readonly lookupMs: number;
  /** File that keeps the index of engines' blocks for the next gateway. */
  readonly indexFile: string;
}

/** The registry of vaults and engines in an existing etcd. */
export interface EtcdConfig {
  /** Empty: there is none. */
  readonly endpoints: readonly Address[];
  readonly prefix: string;
  readonly enginesPrefix: string;
  /** Host by which other machines reach this machine's engines; null: they are not registered. */
  readonly engineHost: string | null;
  /** null: without authentication. */
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
  /** Number of latest receipts that stay. */
  readonly keep: number;
}

/** The value of the computing that restores spare. */
export interface LedgerConfig {
  /** Extra power of computing over idling, W; null: no energy is shown. */
  readonly watts: number | null;
}

export interface ModelConfig {
  /** The operator's name for the engine's weights; null: their files are read. Read by the shim. */
  readonly identity: string | null;
}

export interface LogConfig {
  readonly level: LogLevel;
}

export interface Config {
  /** Its file; null: defaults only. */
  readonly path: string | null;
  readonly cluster: ClusterConfig;
  readonly turboQuant: TurboQuantConfig;
  readonly codec: CodecConfig;
  readonly model: ModelConfig;
  readonly vault: VaultConfig;
  readonly sidecar: SidecarConfig;
  readonly restore: RestoreConfig;
  readonly gateway: GatewayConfig;
  readonly etcd: EtcdConfig;
  readonly receipts: ReceiptsConfig;
  readonly ledger: LedgerConfig;
  readonly log: LogConfig;
}
