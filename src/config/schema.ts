// Owns the one table of configuration keys: kind, default and meaning; validation, example file and docs/config.md follow from it.
import {
  ARENA_BYTES_DEFAULT,
  ARENA_BYTES_MAX,
  ARENA_BYTES_MIN,
  DISK_BYTES_MAX,
  DISK_BYTES_MIN,
  DISK_TTL_S_MAX,
  IDLE_EXIT_S_DEFAULT,
  IDLE_EXIT_S_MAX,
  LANES_DEFAULT,
  LANES_MAX,
  PATH_BYTES_MAX,
  RESTORE_STALL_MS_DEFAULT,
  RESTORE_WAIT_MS_DEFAULT,
  RESTORE_WAIT_MS_MAX,
  SIDECAR_SOCKET_BYTES_MAX,
  VAULT_BYTES_MAX,
  VAULT_BYTES_MIN,
} from "../limits/general.ts";
import { POOL_VAULTS_MAX } from "../limits/pool.ts";
import { LEDGER_WATTS_MAX } from "../limits/seen.ts";
import { KEPT_PERCENT_DEFAULT, KEPT_PERCENT_MAX } from "../limits/sessions.ts";
import { SHARED_HOSTS_MAX } from "../limits/shared.ts";
import { VERIFY_SAMPLED_EVERY } from "../limits/truth.ts";
import { LOG_LEVELS } from "../log.ts";
import { address, tcpOnly, vaultAddresses } from "./addresses.ts";
import type { Config } from "./config.ts";
import type { Field } from "./field.ts";
import { boolean, bytes, choice, integer, label, path, showBytes } from "./kinds.ts";
import { ownSocket } from "./own-socket.ts";
import {
  CLUSTER_ACCESS,
  ETCD,
  METRICS_LAN,
  SIDECAR_ADDRESSES,
  otlpEndpoint,
  PAGE,
  VAULT_ACCESS,
} from "./schema-access.ts";
import { VAULT_ARCHIVE } from "./schema-archive.ts";
import { CODEC } from "./schema-codec.ts";
import { GATEWAY } from "./schema-gateway.ts";
import { RECEIPTS } from "./schema-receipts.ts";
import { VAULT_YIELD, WAKE } from "./schema-yield.ts";

export interface Section<Fields> {
  doc: string;
  fields: Fields;
}

type Snake<S> = S extends `${infer First}${infer Rest}`
  ? `${First extends Lowercase<First> ? First : `_${Lowercase<First>}`}${Snake<Rest>}`
  : "";
type SectionNames = Exclude<keyof Config, "path">;

/** Exactly one field for each value of Config, under its name in snake case: the compiler holds the two in step. */
export type Schema = {
  [S in SectionNames as Snake<S>]: Section<{
    [K in keyof Config[S] as Snake<K>]-?: Field<Config[S][K]>;
  }>;
};

export const SCHEMA: Schema = {
  cluster: {
    doc: "What this machine is, and where the vaults are.",
    fields: {
      role: {
        kind: choice(["inference", "kv_cold", "ssm_cold", "cold"]),
        doc: "This machine's part: `inference` runs the engine and a sidecar, `kv_cold` a vault for attention KV, `ssm_cold` a vault for recurrent state, `cold` a vault for both.",
        fallback: () => "inference",
        fallbackText: '`"inference"`',
        example: '"inference"',
        isShown: true,
      },
      kv_cold: {
        kind: vaultAddresses(POOL_VAULTS_MAX),
        doc: "The vault for attention KV, or several: each holds a part of every longer prompt, and they are asked at once. Machines that share them write the addresses alike. `dns:` names stand for all vaults that they are resolved to, every 10 s again, `pool:` before the address of one for all that keep a list with it (`[vault] pool_key`). `shm:/dev/shm/NAME` is memory that the sidecars of this machine share, alone or before the vaults of the list; `[vault] max_bytes` is its size. Without `kv_cold` and `ssm_cold` the sidecar starts a vault of its own on this machine.",
        fallback: () => [],
        fallbackText: "none",
        example: '"192.168.1.10:50051"',
        isShown: true,
      },
      ssm_cold: {
        kind: vaultAddresses(POOL_VAULTS_MAX),
        doc: "The vault for recurrent (SSM, linear-attention) state, or several; only hybrid models need it. May be those of `kv_cold` when their role is `cold`.",
        fallback: () => [],
        fallbackText: "none",
        example: '"192.168.1.11:50051"',
        isShown: true,
      },
      redundancy: {
        kind: choice(["none", "parity", "copies:2"]),
        doc: "What a pool of vaults does against the loss of one. `none`: each record lies on one of them, and what a lost vault held is computed again. `copies:2`: on two of them, and a restore goes on with the other; the pool holds half as much. `parity`: from three vaults of attention KV on, one more record for every two blocks, from five for every four: what one lost vault held is rebuilt from the others; states lie on two. All machines that share the vaults write the same.",
        fallback: () => "none",
        fallbackText: '`"none"`',
        example: '"none"',
      },
      wake: WAKE,
      coherence: {
        kind: choice(["hardware", "clflush"]),
        doc: "Who keeps processors' caches together where `shm:` memory is shared. `hardware`: the machine, as one does for its own memory. `clflush`: each sidecar writes its lines back and drops them before it reads, on x86-64, and is slower; for memory of which `tierkv doctor --shm PATH` says so. All sidecars of a region write the same.",
        fallback: () => "hardware",
        fallbackText: '`"hardware"`',
        example: '"hardware"',
      },
      host: {
        kind: integer(0, SHARED_HOSTS_MAX - 1),
        doc: "Which of up to 8 machines that map the same `shm:` memory this is; another number on each. A region is made for one machine or for several, and each has room for eight processes then. Their lock takes up to a millisecond, and 4 ms where nobody wanted it lately; a machine that is silent for 0.6 s counts as dead, and its sidecars start anew.",
        fallback: () => null,
        fallbackText: "no other machine maps it",
        example: "0",
      },
      group: {
        kind: label(64),
        doc: "The group of users, by name or number, whose sidecars share `shm:` memory: its file is made with that group and mode 0660, and one of another group or mode is refused. All of them write the same.",
        fallback: () => null,
        fallbackText: "this user alone, mode 0600",
        example: '"tierkv"',
      },
      ...CLUSTER_ACCESS,
    },
  },
  turbo_quant: {
    doc: "Compression of attention KV. The one line `turbo_quant = false` at the top of the file means the same.",
    fields: {
      enabled: {
        kind: boolean,
        doc: "`true`: attention KV takes about half the bytes of bf16 and comes back nearly the same; `tierkv fidelity` says how near with your model. `false`: it, and recurrent state, come back bit for bit. The two never share blocks. `[codec] kv` says which codec of the two kinds; a contradiction is refused.",
        fallback: () => null,
        fallbackText: "`true`, unless `[codec] kv` is exact",
        example: "true",
        isShown: true,
      },
      kv_dim: {
        kind: integer(1, 65_536),
        doc: "The model's attention head dimension. Taken from the engine; when given, it is checked against it.",
        fallback: () => null,
        fallbackText: "the engine's",
        example: "256",
      },
      states: {
        kind: choice(["raw", "bf16", "int8"]),
        doc: "How the recurrent states of hybrid models are stored, where `enabled` is not `false`. `raw`: exactly. `bf16`: float32 states in half the bytes, about 55 dB of signal to noise. `int8`: float32 states in about a quarter, 16-bit ones in half of the bytes, one scale per vector, 41 to 44 dB. An error in a state is carried on to every later token. The engine reads this key; engines of different forms never share blocks.",
        fallback: () => "raw",
        fallbackText: '`"raw"`',
        example: '"bf16"',
      },
    },
  },
  codec: {
    doc: "The codec of attention KV, for who wants another than `[turbo_quant] enabled` gives.",
    fields: CODEC,
  },
  vault: {
    doc: "A vault (`tierkv vault`, on a machine whose role is `kv_cold`, `ssm_cold` or `cold`). `--listen` and `--max-bytes` go before these keys, `--role` before `[cluster] role`.",
    fields: {
      listen: {
        kind: address("listen"),
        doc: "Where the vault listens. A socket serves this user alone. Write the machine's LAN address (or `0.0.0.0`) to let other machines in: those that have joined (`tierkv join`), over TLS. The loopback is no different, because every user of the machine reaches it.",
        fallback: (env) => ({ host: "", port: 0, text: `unix:${ownSocket("vault", env)}` }),
        fallbackText:
          "`unix:$XDG_RUNTIME_DIR/tierkv/vault.sock` where that directory exists, else `unix:/tmp/tierkv-<uid>/vault.sock`",
        example: '"192.168.1.10:50051"',
      },
      max_bytes: {
        kind: bytes(VAULT_BYTES_MIN, VAULT_BYTES_MAX),
        doc: "Memory the vault may use for records, its index and reservations together. When it is full, the least useful records go.",
        fallback: () => null,
        fallbackText:
          "half of the memory free at start; a quarter where a sidecar starts its own vault",
        example: "24_000_000_000",
      },
      tenant_bytes: {
        kind: bytes(VAULT_BYTES_MIN, VAULT_BYTES_MAX),
        doc: "What each tenant (a `cache_salt`; those without one are one) keeps of `max_bytes`, and the same share of `disk_bytes`, whatever others store: a flood by one does not take what another has within its share. Machines that joined have equal parts before that, so that no machine takes from another by making up tenants; tokens of a file and certificates are one. What nobody keeps is anybody's.",
        fallback: () => null,
        fallbackText: "none: tenants are not told apart",
        example: '"2GiB"',
      },
      kept_percent: {
        kind: integer(0, KEPT_PERCENT_MAX),
        doc: "The share of `max_bytes` that sessions may keep (`keep_s` and `pin` of a request, `tierkv session keep`), and of a tenant's part the same share. What is above it is stored as everything else is, and counted. 0: nothing is kept.",
        fallback: () => KEPT_PERCENT_DEFAULT,
        fallbackText: String(KEPT_PERCENT_DEFAULT),
        example: "25",
      },
      data_dir: {
        kind: path(PATH_BYTES_MAX),
        doc: "A directory of this vault alone, on a local disk: records are written there, too, and are found again after a restart.",
        fallback: () => null,
        fallbackText: "none: records live in memory only",
        example: '"/var/lib/tierkv"',
      },
      disk_bytes: {
        kind: bytes(DISK_BYTES_MIN, DISK_BYTES_MAX),
        doc: "Bytes the vault may use in `data_dir`. When it is full, the oldest records go, except those in use.",
        fallback: () => null,
        fallbackText: "half of what the disk has room for at start",
        example: '"500GB"',
      },
      durability: {
        kind: choice(["none", "group", "sync"]),
        doc: "When a record counts as durable (it survives a power failure; the vault's death alone loses nothing that was written). `group`: some ms after it was accepted, many with one sync. `sync`: before it is answered, as `durable` instead of `accepted`. `none`: when its file is full.",
        fallback: () => "group",
        fallbackText: '`"group"`',
        example: '"group"',
      },
      disk_ttl_s: {
        kind: integer(1, DISK_TTL_S_MAX, "s"),
        doc: "Records in `data_dir` go at latest this long after they were written there.",
        fallback: () => null,
        fallbackText: "none: they stay while there is room",
        example: "604_800",
      },
      ...VAULT_ARCHIVE,
      ...VAULT_YIELD,
      ...VAULT_ACCESS,
      metrics_listen: {
        kind: tcpOnly("127.0.0.1:50250", 0),
        doc: "Where Prometheus may scrape `/metrics`, and `/healthz` answers 200, or 503 while the disk takes nothing or somebody uses the machine (`yield_to_user`): what is held, taken, sent, evicted and refused, by tier. Plain HTTP without a password; it shows no prompts and no keys.",
        fallback: () => null,
        fallbackText: "none: nothing listens",
        example: '"127.0.0.1:50250"',
      },
      metrics_lan: METRICS_LAN,
      otlp_endpoint: otlpEndpoint(
        "vault",
        "A span for each look-up, fetch and store of a sidecar that traces",
      ),
    },
  },
  sidecar: {
    doc: "The sidecar (`tierkv sidecar`, on the engine's machine; one serves all engines there).",
    fields: {
      socket: {
        kind: path(SIDECAR_SOCKET_BYTES_MAX),
        doc: "The Unix socket between engine and sidecar. Both read this key.",
        fallback: (env) => ownSocket("sidecar", env),
        fallbackText:
          "`$XDG_RUNTIME_DIR/tierkv/sidecar.sock` where that directory exists, else `/tmp/tierkv-<uid>/sidecar.sock`",
        example: '"/run/tierkv/sidecar.sock"',
      },
      arena_bytes: {
        kind: bytes(ARENA_BYTES_MIN, ARENA_BYTES_MAX),
        doc: "The most shared memory one engine gets. It takes what two of the longest prompts and one step of saves need, and never more than half of the memory that is free. Of a prompt that it cannot hold only the beginning is restored; `tierkv doctor` says what it holds.",
        fallback: () => null,
        fallbackText: `a quarter of the memory free when the engine comes, at least ${showBytes(ARENA_BYTES_DEFAULT)}`,
        example: '"4GiB"',
      },
      arena_dir: {
        kind: path(PATH_BYTES_MAX),
        doc: "A directory on a memory file system for the shared memory, where memory without a file is short or not allowed.",
        fallback: () => null,
        fallbackText: "none: memory without a file",
        example: '"/dev/shm/tierkv"',
      },
      autostart: {
        kind: boolean,
        doc: "Whether an engine starts the sidecar when nothing answers on the socket: once per machine, detached, its log beside the socket. Read by the engine from the file named by `config_path`, else from where the sidecar finds its own.",
        fallback: () => true,
        fallbackText: "`true`",
        example: "false",
      },
      idle_exit_s: {
        kind: integer(1, IDLE_EXIT_S_MAX, "s"),
        doc: "A sidecar that was started by an engine (`--exit-when-idle`) ends, with its vault, after this long without an engine.",
        fallback: () => IDLE_EXIT_S_DEFAULT,
        fallbackText: `\`${IDLE_EXIT_S_DEFAULT}\``,
        example: String(IDLE_EXIT_S_DEFAULT),
      },
      lanes: {
        kind: integer(1, LANES_MAX),
        doc: "Connections to each vault on which records travel, beside the one for everything else.",
        fallback: () => LANES_DEFAULT,
        fallbackText: `\`${LANES_DEFAULT}\``,
        example: String(LANES_DEFAULT),
      },
      addresses: SIDECAR_ADDRESSES,
      record_keys: {
        kind: path(PATH_BYTES_MAX),
        doc: "A file with the keys that records are sealed with (AES-256-GCM) before they leave: vaults keep what they cannot read. One key per line, 64 hexadecimal digits (`openssl rand -hex 32`); the first seals, all open. It must be readable by its owner alone. Sidecars that share blocks need the same file.",
        fallback: () => null,
        fallbackText: "none: records are not sealed",
        example: '"/etc/tierkv/record-keys"',
      },
      metrics_listen: {
        kind: tcpOnly("127.0.0.1:50251", 0),
        doc: "Where Prometheus may scrape `/metrics`, and `/healthz` answers 200: what was decided and why, what was missed and why, bytes, times, queues, vaults. Plain HTTP without a password; it shows no prompts and no keys.",
        fallback: () => null,
        fallbackText: "none: nothing listens",
        example: '"127.0.0.1:50251"',
      },
      metrics_lan: METRICS_LAN,
      otlp_endpoint: otlpEndpoint(
        "sidecar",
        "A span for each request, with its look-up, fetch and load",
      ),
      ...PAGE,
    },
  },
  restore: {
    doc: "How long a request may wait for its blocks. Past it, the engine computes them as if tierKV were not there.",
    fields: {
      wait_ms: {
        kind: integer(0, RESTORE_WAIT_MS_MAX, "ms"),
        doc: "In all, from the request's arrival.",
        fallback: () => RESTORE_WAIT_MS_DEFAULT,
        fallbackText: `\`${RESTORE_WAIT_MS_DEFAULT}\``,
        example: String(RESTORE_WAIT_MS_DEFAULT),
      },
      stall_ms: {
        kind: integer(0, RESTORE_WAIT_MS_MAX, "ms"),
        doc: "Without anything new arriving.",
        fallback: () => RESTORE_STALL_MS_DEFAULT,
        fallbackText: `\`${RESTORE_STALL_MS_DEFAULT}\``,
        example: String(RESTORE_STALL_MS_DEFAULT),
      },
      when: {
        kind: choice(["faster", "always"]),
        doc: "`faster`: only what answers sooner than computing it on this engine, over this link, as measured; `always`: whatever is held, to spare the engine the work.",
        fallback: () => "faster",
        fallbackText: '`"faster"`',
        example: '"faster"',
      },
      verify: {
        kind: choice(["off", "sampled", "every"]),
        doc: `Whether an engine with nothing else to do computes the last block of a restore itself, and compares: of no restore, of one in ${VERIFY_SAMPLED_EVERY}, of each. Where the two differ nothing under that name is restored or saved until it is flushed.`,
        fallback: () => "sampled",
        fallbackText: '`"sampled"`',
        example: '"sampled"',
      },
    },
  },
  gateway: GATEWAY,
  etcd: {
    doc: "etcd, for those who run it anyway: which vaults and engines there are.",
    fields: ETCD,
  },
  receipts: {
    doc: "Signed accounts of what single requests were given, for `tierkv verify`.",
    fields: RECEIPTS,
  },
  ledger: {
    doc: "What `tierkv top` says that restores have spared.",
    fields: {
      watts: {
        kind: integer(1, LEDGER_WATTS_MAX, "W"),
        doc: "What this machine draws more while it computes prompts than while it idles: gives the energy that was not spent.",
        fallback: () => null,
        fallbackText: "none: no energy is shown",
        example: "350",
      },
    },
  },
  log: {
    doc: "What is logged, to stderr: lines for people on a terminal, JSON elsewhere. Never prompts, never cache bytes.",
    fields: {
      level: {
        kind: choice(LOG_LEVELS),
        doc: "The least important lines shown. The environment variable `TIERKV_LOG` goes before it.",
        fallback: () => "info",
        fallbackText: '`"info"`',
        example: '"info"',
      },
    },
  },
};

/** The table as data, for walking over it; `key` is the dotted name. */
export interface Entry {
  section: string;
  name: string;
  field: Field<unknown>;
}

export const SECTIONS: readonly (readonly [string, Section<Record<string, Field<unknown>>>])[] =
  Object.entries(SCHEMA);

export const ENTRIES: readonly Entry[] = SECTIONS.flatMap(([section, { fields }]) =>
  Object.entries(fields).map(([name, field]) => ({ section, name, field })),
);
