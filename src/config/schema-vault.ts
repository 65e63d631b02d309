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
} from "../base/limits/general.ts";
import { POOL_VAULTS_MAX } from "../base/limits/pool.ts";
import { KEPT_PERCENT_DEFAULT, KEPT_PERCENT_MAX } from "../base/limits/sessions.ts";
import {
  YIELD_GRACE_S_DEFAULT,
  YIELD_IDLE_S_DEFAULT,
  YIELD_IDLE_S_MIN,
  YIELD_S_MAX,
} from "../base/limits/user.ts";
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
  doc: "A vault: `tierkv vault` on a machine with the role `kv_cold`, `ssm_cold` or `cold`. `--listen` and `--max-bytes` take precedence over these keys, `--role` over `[cluster] role`.",
  fields: {
    listen: {
      kind: address("listen"),
      doc: "Address where the vault listens. A Unix socket serves only this user. The machine's LAN address (or `0.0.0.0`) lets in other machines that have joined (`tierkv join`), over TLS. A loopback address also requires joining, because every user of the machine reaches it.",
      fallback: (env) => ({ host: "", port: 0, text: `unix:${ownSocket("vault", env)}` }),
      fallbackText:
        "`unix:$XDG_RUNTIME_DIR/tierkv/vault.sock` where that directory exists, else `unix:/tmp/tierkv-<uid>/vault.sock`",
      example: '"192.168.1.10:50051"',
    },
    max_bytes: {
      kind: bytes(VAULT_BYTES_MIN, VAULT_BYTES_MAX),
      doc: "Memory of the vault in bytes, for records, index and reservations together. When it is full, the vault evicts the least useful records.",
      ...optional(
        "half of the memory free at start; a quarter if a sidecar starts the vault",
        "24_000_000_000",
      ),
    },
    tenant_bytes: {
      kind: bytes(VAULT_BYTES_MIN, VAULT_BYTES_MAX),
      doc: "Bytes of `max_bytes` guaranteed to each tenant, and the same share of `disk_bytes`. A tenant is a `cache_salt`; requests without one form one tenant. A flood by one tenant evicts nothing that others have within their shares. Joined machines first get equal parts, so no machine gains by making up tenants. All clients with certificates or tokens of a file count as one machine. Any tenant may use memory that nobody claims.",
      ...optional("none: tenants are not told apart", '"2GiB"'),
    },
    kept_percent: {
      kind: integer(0, KEPT_PERCENT_MAX),
      doc: "Percentage of `max_bytes`, and of each tenant's part, that sessions may keep (`keep_s` and `pin` of a request, `tierkv session keep`). Further blocks are stored without protection, and counted. 0: nothing is kept.",
      ...byDefault(KEPT_PERCENT_DEFAULT, 25),
    },
    data_dir: {
      kind: path(PATH_BYTES_MAX),
      doc: "Directory on a local disk, for this vault alone. The vault also writes records there, and finds them again after a restart.",
      ...optional("none: records are in memory only", '"/var/lib/tierkv"'),
    },
    disk_bytes: {
      kind: bytes(DISK_BYTES_MIN, DISK_BYTES_MAX),
      doc: "Bytes that the vault may use in `data_dir`. When they are used up, the oldest records go, except those in use.",
      ...optional(
        "half of the disk's free room at start, and no more than `archive_bytes`",
        '"500GB"',
      ),
    },
    durability: {
      kind: choice(["none", "group", "sync"]),
      doc: "When a record counts as durable, so that it survives a power failure. `none`: when its file is full. `group`: some ms after it is accepted, many records per sync. `sync`: before the vault answers, with `durable` instead of `accepted`. With all three, written records survive the end of the vault's process.",
      ...byDefault("group"),
    },
    disk_ttl_s: {
      kind: integer(1, DISK_TTL_S_MAX, "s"),
      doc: "Longest stay of a record in `data_dir` after its write, in seconds.",
      ...optional("none: records stay while there is room", "604_800"),
    },
    archive: {
      kind: archiveUrl(ARCHIVE_URL_BYTES_MAX),
      doc: "URL to which the vault also copies the full files of `data_dir`; each vault needs its own. A lost disk is restored from there, and a full one reads through it. S3 takes credentials, region and endpoint as AWS's own tools do: from the environment, a web identity, `~/.aws`, or a container's or machine's role.",
      ...optional("none: records are on the disk only", '"s3://bucket/vault-1"'),
    },
    archive_bytes: {
      kind: bytes(DISK_BYTES_MIN, ARCHIVE_BYTES_MAX),
      doc: "Bytes that the vault may use in the archive, at least `disk_bytes`. When they are used up, the oldest files go. `disk_ttl_s` also holds there.",
      ...optional(`${ARCHIVE_DISKS} times \`disk_bytes\``, '"5TB"'),
    },
    archive_after_s: {
      kind: integer(1, ARCHIVE_AFTER_S_MAX, "s"),
      doc: "Seconds from a file's first record until the vault archives the file, even if it is not full. A lost disk loses at most this time, if the link keeps up.",
      ...byDefault(ARCHIVE_AFTER_S_DEFAULT, 300),
    },
    yield_to_user: {
      kind: boolean,
      doc: "Whether the vault stops while somebody uses this machine. It then ends every connection within a second. Signs of use: input at a terminal or the desktop (logind; IOHIDSystem on macOS), or programs that take half of all processors. Meanwhile engines compute its blocks again, or other vaults supply them if the pool has `redundancy`.",
      ...byDefault(false, true),
    },
    yield_idle_s: {
      kind: integer(YIELD_IDLE_S_MIN, YIELD_S_MAX, "s"),
      doc: "With `yield_to_user`: seconds without a sign of use until the vault serves again.",
      ...byDefault(YIELD_IDLE_S_DEFAULT, 300),
    },
    yield_grace_s: {
      kind: integer(0, YIELD_S_MAX, "s"),
      doc: "With `yield_to_user`: seconds of use until the vault frees its memory. First it sends records that were read again or that sessions keep to the other vaults of its `pool_key`. The limits are 100 Mb/s and two minutes. Afterwards only records in `data_dir` are left.",
      ...byDefault(YIELD_GRACE_S_DEFAULT, 60),
    },
    keep_awake: {
      kind: boolean,
      doc: "Whether the vault keeps this machine awake while it holds records and clients ask for them, and 15 minutes longer. It uses `systemd-inhibit` (`caffeinate` on macOS); people can still send the machine to sleep. If that tool is missing or refused, the vault logs it once, and the machine sleeps as usual.",
      ...byDefault(false, true),
    },
    insecure_lan: {
      kind: boolean,
      doc: "`true`: every machine that reaches `listen`, and on the loopback every user, may read and write cached data of prompts without TLS and token. The vault warns at every start. `--insecure-lan` does the same.",
      ...byDefault(false),
    },
    state_dir: {
      kind: path(PATH_BYTES_MAX),
      doc: "Directory of the certificate and tokens that the vault makes at its first start on a TCP address.",
      fallback: stateDir,
      fallbackText:
        "`$STATE_DIRECTORY` (systemd), else `$XDG_STATE_HOME/tierkv`, else `~/.local/state/tierkv`",
      example: '"/var/lib/tierkv"',
    },
    tls_cert: file(
      "PEM file with the vault's certificate, and the intermediate ones below the CA.",
      "on TCP, a certificate that the vault makes itself",
      '"/etc/tierkv/server.pem"',
    ),
    tls_key: file(
      "PEM file with the key of `tls_cert`, mode 0600.",
      "none",
      '"/etc/tierkv/server-key.pem"',
    ),
    tls_client_ca: file(
      "PEM file with the certificate of a CA. Its client certificates open the vault; `OU` in their subject names the role, `read`, `write` or `admin`. Without `OU` the role is `write`.",
      "none: tokens open the vault",
      '"/etc/tierkv/ca.pem"',
    ),
    tokens: file(
      "File of mode 0600 with tokens that open the vault, one `role:token` per line. The role is `read`, `write` or `admin`; the token has 32 characters or more. The vault reads a changed file again, so an old and a new token can hold together.",
      "`tokens` in `state_dir`; none where `tls_client_ca` is set",
      '"/etc/tierkv/tokens"',
    ),
    audit_log: file(
      "File for the audit log in JSON lines: refusals, flushes, new namespaces and bad records. It contains no prompts, secrets or whole hashes.",
      "`audit.jsonl` in `state_dir` where the vault has TLS; else none",
      '"/var/log/tierkv/audit.jsonl"',
    ),
    addresses: {
      kind: addresses("10.0.0.10:50051", RAILS_MAX - 1),
      doc: "Further IP addresses of this machine, in other networks than `listen`, with the same certificate. The vault listens there, too, and tells its clients. Clients spread their traffic over all paths that work, by their rates.",
      ...emptyList("none", '["10.0.0.10:50051"]'),
    },
    announce: {
      kind: boolean,
      doc: "Whether the vault announces itself for `tierkv vaults discover`, by multicast DNS (`_tierkv._tcp`, UDP 5353) on the network of `listen`. Everybody there learns its class, capacity and certificate fingerprint. The announcement lets nobody in.",
      ...byDefault(false, true),
    },
    pool_key: file(
      "File of mode 0600 with the pool's key: 64 hexadecimal digits (`openssl rand -hex 32`), the same on all its vaults. With it the vaults keep one signed list of vaults and joined machines. Sidecars with `pool:` before one vault's address learn the others. A machine that joined one vault has joined all.",
      "none: each machine's configuration names the vaults",
      '"/etc/tierkv/pool-key"',
    ),
    peers: {
      kind: addresses("192.168.1.10:50051", POOL_VAULTS_MAX),
      doc: "Vaults of the pool that this vault asks for the list first. One that runs is enough; the first vault of a pool needs none.",
      ...emptyList("none", '["192.168.1.10:50051"]'),
    },
    metrics_listen: {
      kind: tcpOnly("127.0.0.1:50250", 0),
      doc: "Address where Prometheus scrapes `/metrics`: records held, taken, sent, evicted and refused, by tier. `/healthz` answers 200, or 503 while the disk takes nothing or somebody uses the machine (`yield_to_user`). Both are plain HTTP without a password, and show no prompts or keys.",
      ...optional("none: nothing listens", '"127.0.0.1:50250"'),
    },
    metrics_lan: METRICS_LAN,
    otlp_endpoint: otlpEndpoint(
      "vault",
      "A span for each look-up, fetch and store of a sidecar that traces",
    ),
  },
};
