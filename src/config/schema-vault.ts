// Owns the keys of `[vault]`: memory, disk and archive, yielding to users, access, observability.
import {
  ARCHIVE_AFTER_S_DEFAULT,
  ARCHIVE_AFTER_S_MAX,
  ARCHIVE_BYTES_MAX,
  ARCHIVE_DISKS,
  ARCHIVE_URL_BYTES_MAX,
  DISK_BYTES_MAX,
  DISK_BYTES_MIN,
  DISK_TTL_S_MAX,
  PATH_BYTES_MAX,
  RAILS_MAX,
  VAULT_BYTES_MAX,
  VAULT_BYTES_MIN,
} from "../limits/general.ts";
import { POOL_VAULTS_MAX } from "../limits/pool.ts";
import { KEPT_PERCENT_DEFAULT, KEPT_PERCENT_MAX } from "../limits/sessions.ts";
import {
  YIELD_GRACE_S_DEFAULT,
  YIELD_IDLE_S_DEFAULT,
  YIELD_IDLE_S_MIN,
  YIELD_S_MAX,
} from "../limits/user.ts";
import { address, addresses, tcpOnly } from "./addresses.ts";
import {
  METRICS_LAN,
  byDefault,
  emptyList,
  file,
  optional,
  otlpEndpoint,
} from "./common-fields.ts";
import type { Schema } from "./field.ts";
import { archiveUrl, boolean, bytes, choice, integer, path } from "./kinds.ts";
import { ownSocket, stateDir } from "./own-places.ts";

export const VAULT: Schema["vault"] = {
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
      ...optional(
        "half of the memory free at start; a quarter where a sidecar starts its own vault",
        "24_000_000_000",
      ),
    },
    tenant_bytes: {
      kind: bytes(VAULT_BYTES_MIN, VAULT_BYTES_MAX),
      doc: "What each tenant (a `cache_salt`; those without one are one) keeps of `max_bytes`, and the same share of `disk_bytes`, whatever others store: a flood by one does not take what another has within its share. Machines that joined have equal parts before that, so that no machine takes from another by making up tenants; tokens of a file and certificates are one. What nobody keeps is anybody's.",
      ...optional("none: tenants are not told apart", '"2GiB"'),
    },
    kept_percent: {
      kind: integer(0, KEPT_PERCENT_MAX),
      doc: "The share of `max_bytes` that sessions may keep (`keep_s` and `pin` of a request, `tierkv session keep`), and of a tenant's part the same share. What is above it is stored as everything else is, and counted. 0: nothing is kept.",
      ...byDefault(KEPT_PERCENT_DEFAULT, 25),
    },
    data_dir: {
      kind: path(PATH_BYTES_MAX),
      doc: "A directory of this vault alone, on a local disk: records are written there, too, and are found again after a restart.",
      ...optional("none: records live in memory only", '"/var/lib/tierkv"'),
    },
    disk_bytes: {
      kind: bytes(DISK_BYTES_MIN, DISK_BYTES_MAX),
      doc: "Bytes the vault may use in `data_dir`. When it is full, the oldest records go, except those in use.",
      ...optional("half of what the disk has room for at start", '"500GB"'),
    },
    durability: {
      kind: choice(["none", "group", "sync"]),
      doc: "When a record counts as durable (it survives a power failure; the vault's death alone loses nothing that was written). `group`: some ms after it was accepted, many with one sync. `sync`: before it is answered, as `durable` instead of `accepted`. `none`: when its file is full.",
      ...byDefault("group"),
    },
    disk_ttl_s: {
      kind: integer(1, DISK_TTL_S_MAX, "s"),
      doc: "Records in `data_dir` go at latest this long after they were written there.",
      ...optional("none: they stay while there is room", "604_800"),
    },
    archive: {
      kind: archiveUrl(ARCHIVE_URL_BYTES_MAX),
      doc: "Where the full files of `data_dir` go besides, for this vault alone. A lost disk comes back from there, and a full one reads through it. S3 is reached with AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION and AWS_ENDPOINT_URL of the vault's environment.",
      ...optional("none: the disk is all there is", '"s3://bucket/vault-1"'),
    },
    archive_bytes: {
      kind: bytes(DISK_BYTES_MIN, ARCHIVE_BYTES_MAX),
      doc: "Bytes the vault may use there, at least `disk_bytes`. When they are full, the oldest files go; `disk_ttl_s` holds there, too.",
      ...optional(`${ARCHIVE_DISKS} times \`disk_bytes\``, '"5TB"'),
    },
    archive_after_s: {
      kind: integer(1, ARCHIVE_AFTER_S_MAX, "s"),
      doc: "A file that is not full goes there this long after its first record: what a lost disk loses at most, where the link keeps up.",
      ...byDefault(ARCHIVE_AFTER_S_DEFAULT, 300),
    },
    yield_to_user: {
      kind: boolean,
      doc: "Gives way to whoever uses this machine. Input at a terminal, at the desktop (logind; IOHIDSystem on macOS), or programs that take half of all processors end every connection within a second; what the vault holds is computed again meanwhile, or comes from other vaults where the pool has `redundancy`.",
      ...byDefault(false, true),
    },
    yield_idle_s: {
      kind: integer(YIELD_IDLE_S_MIN, YIELD_S_MAX, "s"),
      doc: "With `yield_to_user`: the vault serves again after so long without any of that.",
      ...byDefault(YIELD_IDLE_S_DEFAULT, 300),
    },
    yield_grace_s: {
      kind: integer(0, YIELD_S_MAX, "s"),
      doc: "With `yield_to_user`: who stays longer gets the vault's memory back. What was read again or is kept by sessions goes to the other vaults of its `pool_key` first, at most 100 Mb/s and two minutes. Records in `data_dir` are found again afterwards; without one they are gone.",
      ...byDefault(YIELD_GRACE_S_DEFAULT, 60),
    },
    keep_awake: {
      kind: boolean,
      doc: "Keeps this machine from falling asleep by itself while the vault holds records and is asked for them, and 15 minutes longer, by `systemd-inhibit` (`caffeinate` on macOS). Who sends it to sleep still can. Where that is missing or refused the log says so once, and the machine sleeps as it is set up to.",
      ...byDefault(false, true),
    },
    insecure_lan: {
      kind: boolean,
      doc: "Lets every machine, and on the loopback every user, that reaches `listen` in, without TLS and without a token: it may read and write what prompts were made of. Warned about at every start. `--insecure-lan` says the same.",
      ...byDefault(false),
    },
    state_dir: {
      kind: path(PATH_BYTES_MAX),
      doc: "Where the vault keeps the certificate and the tokens that it makes at its first start on a TCP address.",
      fallback: stateDir,
      fallbackText:
        "`$STATE_DIRECTORY` (systemd), else `$XDG_STATE_HOME/tierkv`, else `~/.local/state/tierkv`",
      example: '"/var/lib/tierkv"',
    },
    tls_cert: file(
      "PEM file with the vault's certificate, and those between it and the CA.",
      "the one the vault makes itself, where other machines reach it",
      '"/etc/tierkv/server.pem"',
    ),
    tls_key: file("PEM file with its key, mode 0600.", "none", '"/etc/tierkv/server-key.pem"'),
    tls_client_ca: file(
      "PEM file with the certificate of a CA whose client certificates open the vault. `OU` in their subject names the role, `read`, `write` or `admin`; without it, `write`.",
      "none: tokens open it",
      '"/etc/tierkv/ca.pem"',
    ),
    tokens: file(
      "File of mode 0600 with tokens that open the vault, one a line: `role:token`, the role `read`, `write` or `admin`, the token 32 characters or more. Read again when it changes, so that two may hold while one is changed.",
      "`tokens` in `state_dir`; none where `tls_client_ca` is set",
      '"/etc/tierkv/tokens"',
    ),
    audit_log: file(
      "Where it is written down, as lines of JSON, who was refused, who flushed, which namespaces came and which records were bad. No prompts, no secrets, no whole hashes.",
      "`audit.jsonl` in `state_dir` where the vault has TLS; else none",
      '"/var/log/tierkv/audit.jsonl"',
    ),
    addresses: {
      kind: addresses("10.0.0.10:50051", RAILS_MAX - 1),
      doc: "Further IP addresses of this machine, in other networks than `listen`: the vault listens there, too, and tells its clients, which spread what travels over all ways that work, by their rates, and do without one that is cut. The same certificate holds there.",
      ...emptyList("none", '["10.0.0.10:50051"]'),
    },
    announce: {
      kind: boolean,
      doc: "Says by multicast DNS (`_tierkv._tcp`, UDP 5353) on the network of `listen` that there is a vault, of which class and capacity, and its certificate's fingerprint, for `tierkv vaults discover`. Everybody there hears it; it lets nobody in.",
      ...byDefault(false, true),
    },
    pool_key: file(
      "File of mode 0600 with the key of the pool, 64 hexadecimal digits (`openssl rand -hex 32`), the same on all its vaults. With it they keep one signed list of vaults and of machines that joined: sidecars with `pool:` before the address of one learn the others, and who joined one has joined all.",
      "none: each machine's own configuration names the vaults",
      '"/etc/tierkv/pool-key"',
    ),
    peers: {
      kind: addresses("192.168.1.10:50051", POOL_VAULTS_MAX),
      doc: "Vaults of the pool that are asked for the list first. One that runs is enough; none for the first vault of a pool.",
      ...emptyList("none", '["192.168.1.10:50051"]'),
    },
    metrics_listen: {
      kind: tcpOnly("127.0.0.1:50250", 0),
      doc: "Where Prometheus may scrape `/metrics`, and `/healthz` answers 200, or 503 while the disk takes nothing or somebody uses the machine (`yield_to_user`): what is held, taken, sent, evicted and refused, by tier. Plain HTTP without a password; it shows no prompts and no keys.",
      ...optional("none: nothing listens", '"127.0.0.1:50250"'),
    },
    metrics_lan: METRICS_LAN,
    otlp_endpoint: otlpEndpoint(
      "vault",
      "A span for each look-up, fetch and store of a sidecar that traces",
    ),
  },
};
