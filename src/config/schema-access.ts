// Owns the keys of who gets in: TLS, tokens, and what is served without them. Part of the table in schema.ts.
import { homedir } from "node:os";
import { join } from "node:path";
import { PATH_BYTES_MAX, RAILS_MAX } from "../limits/general.ts";
import { ETCD_ENDPOINTS_MAX, POOL_VAULTS_MAX } from "../limits/pool.ts";
import { addresses, tcpOnly } from "./addresses.ts";
import type { ClusterConfig, EtcdConfig, SidecarConfig, VaultConfig } from "./config.ts";
import type { Environment, Field } from "./field.ts";
import { boolean, httpUrl, label, path } from "./kinds.ts";
import { ownAddresses } from "./own-addresses.ts";

/** A file that may be left out. */
function file(doc: string, fallbackText: string, example: string): Field<string | null> {
  return { kind: path(PATH_BYTES_MAX), doc, fallback: () => null, fallbackText, example };
}

function home(env: Environment): string {
  return env["HOME"] ?? homedir();
}

/** systemd names the directory of a service; other users have theirs. */
export function stateDir(env: Environment): string {
  const [given = ""] = (env["STATE_DIRECTORY"] ?? "").split(":");
  if (given !== "") return given;
  const state = env["XDG_STATE_HOME"] ?? "";
  return join(state === "" ? join(home(env), ".local", "state") : state, "tierkv");
}

export const SIDECAR_ADDRESSES: Field<SidecarConfig["addresses"]> = {
  kind: ownAddresses(RAILS_MAX, "192.168.1.20"),
  doc: "IP addresses of this machine, each with a cable of its own: what travels to a vault and back goes from each of them that reaches it, by their rates, and does without one that is cut. Linux needs policy routing (`ip rule`), so that each takes its own cable.",
  fallback: () => [],
  fallbackText: "none: the system chooses",
  example: '["192.168.1.20", "192.168.1.21"]',
};

export const CLUSTER_ACCESS: {
  credentials: Field<ClusterConfig["credentials"]>;
  tls_ca: Field<ClusterConfig["tlsCa"]>;
  tls_cert: Field<ClusterConfig["tlsCert"]>;
  tls_key: Field<ClusterConfig["tlsKey"]>;
  token: Field<ClusterConfig["token"]>;
  insecure_lan: Field<ClusterConfig["insecureLan"]>;
} = {
  credentials: {
    kind: path(PATH_BYTES_MAX),
    doc: "Where `tierkv join` keeps the certificate and the token of each vault. What stands there goes before the keys below.",
    fallback: (env) => join(home(env), ".config", "tierkv", "vaults"),
    fallbackText: "`~/.config/tierkv/vaults`",
    example: '"/etc/tierkv/vaults"',
  },
  tls_ca: file(
    "PEM file with the certificate of those who run their own CA (`tierkv certs init` makes one): vaults are spoken to over TLS, and must have a certificate of it.",
    "none: vaults are joined",
    '"/etc/tierkv/ca.pem"',
  ),
  tls_cert: file(
    "PEM file with this machine's certificate, for vaults with `tls_client_ca`.",
    "none",
    '"/etc/tierkv/client.pem"',
  ),
  tls_key: file("PEM file with its key, mode 0600.", "none", '"/etc/tierkv/client-key.pem"'),
  token: file(
    "File of mode 0600 with the token that opens the vaults, alone on a line; `role:` may stand before it.",
    "none",
    '"/etc/tierkv/token"',
  ),
  insecure_lan: {
    kind: boolean,
    doc: "Lets this machine speak in the clear to vaults of other machines that were not joined: whoever is on the way reads and changes what prompts were made of. Warned about at every start. Without it such a vault is refused.",
    fallback: () => false,
    fallbackText: "`false`",
    example: "false",
  },
};

export const VAULT_ACCESS: {
  insecure_lan: Field<VaultConfig["insecureLan"]>;
  state_dir: Field<VaultConfig["stateDir"]>;
  tls_cert: Field<VaultConfig["tlsCert"]>;
  tls_key: Field<VaultConfig["tlsKey"]>;
  tls_client_ca: Field<VaultConfig["tlsClientCa"]>;
  tokens: Field<VaultConfig["tokens"]>;
  audit_log: Field<VaultConfig["auditLog"]>;
  addresses: Field<VaultConfig["addresses"]>;
  announce: Field<VaultConfig["announce"]>;
  pool_key: Field<VaultConfig["poolKey"]>;
  peers: Field<VaultConfig["peers"]>;
} = {
  insecure_lan: {
    kind: boolean,
    doc: "Lets every machine, and on the loopback every user, that reaches `listen` in, without TLS and without a token: it may read and write what prompts were made of. Warned about at every start. `--insecure-lan` says the same.",
    fallback: () => false,
    fallbackText: "`false`",
    example: "false",
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
    fallback: () => [],
    fallbackText: "none",
    example: '["10.0.0.10:50051"]',
  },
  announce: {
    kind: boolean,
    doc: "Says by multicast DNS (`_tierkv._tcp`, UDP 5353) on the network of `listen` that there is a vault, of which class and capacity, and its certificate's fingerprint, for `tierkv vaults discover`. Everybody there hears it; it lets nobody in.",
    fallback: () => false,
    fallbackText: "`false`",
    example: "true",
  },
  pool_key: file(
    "File of mode 0600 with the key of the pool, 64 hexadecimal digits (`openssl rand -hex 32`), the same on all its vaults. With it they keep one signed list of vaults and of machines that joined: sidecars with `pool:` before the address of one learn the others, and who joined one has joined all.",
    "none: each machine's own configuration names the vaults",
    '"/etc/tierkv/pool-key"',
  ),
  peers: {
    kind: addresses("192.168.1.10:50051", POOL_VAULTS_MAX),
    doc: "Vaults of the pool that are asked for the list first. One that runs is enough; none for the first vault of a pool.",
    fallback: () => [],
    fallbackText: "none",
    example: '["192.168.1.10:50051"]',
  },
};

export const ETCD: {
  endpoints: Field<EtcdConfig["endpoints"]>;
  prefix: Field<EtcdConfig["prefix"]>;
  engines_prefix: Field<EtcdConfig["enginesPrefix"]>;
  engine_host: Field<EtcdConfig["engineHost"]>;
  user: Field<EtcdConfig["user"]>;
  password: Field<EtcdConfig["password"]>;
  tls_ca: Field<EtcdConfig["tlsCa"]>;
  tls_cert: Field<EtcdConfig["tlsCert"]>;
  tls_key: Field<EtcdConfig["tlsKey"]>;
} = {
  endpoints: {
    kind: addresses("192.168.1.5:2379", ETCD_ENDPOINTS_MAX),
    doc: 'Where etcd answers. A vault with this key registers itself there, with a lease: it is out of the list some seconds after it ended. Machines with `kv_cold = "etcd:vaults"` follow the list; while etcd is gone they keep the last one.',
    fallback: () => [],
    fallbackText: "none",
    example: '["192.168.1.5:2379"]',
  },
  prefix: {
    kind: label(200),
    doc: "What the keys of vaults begin with.",
    fallback: () => "/tierkv/vaults/",
    fallbackText: '`"/tierkv/vaults/"`',
    example: '"/tierkv/vaults/"',
  },
  engines_prefix: {
    kind: label(200),
    doc: 'What the keys of engines begin with: an address `host:port` stands behind it, and the value is empty or `{"events": "host:port", "replays": "host:port"}`.',
    fallback: () => "/tierkv/engines/",
    fallbackText: '`"/tierkv/engines/"`',
    example: '"/tierkv/engines/"',
  },
  engine_host: {
    kind: label(100),
    doc: 'Where other machines reach the engines of this one. With it the sidecar registers those that it knows, with a lease, for gateways with `discover = "etcd:engines"`; they serve as `[gateway] engines` says.',
    fallback: () => null,
    fallbackText: "none: engines are not registered",
    example: '"192.168.1.20"',
  },
  user: {
    kind: label(100),
    doc: "Who this machine is to etcd, where that asks.",
    fallback: () => null,
    fallbackText: "none",
    example: '"tierkv"',
  },
  password: file(
    "File of mode 0600 with the user's password.",
    "none",
    '"/etc/tierkv/etcd-password"',
  ),
  tls_ca: file(
    "PEM file with the certificate of who signed etcd's. Needed where an endpoint is on another machine, unless `[cluster] insecure_lan` allows the clear.",
    "none: in the clear",
    '"/etc/tierkv/etcd-ca.pem"',
  ),
  tls_cert: file(
    "PEM file with this machine's certificate for etcd.",
    "none",
    '"/etc/tierkv/etcd.pem"',
  ),
  tls_key: file("PEM file with its key, mode 0600.", "none", '"/etc/tierkv/etcd-key.pem"'),
};

export const METRICS_LAN: Field<boolean> = {
  kind: boolean,
  doc: "Whether `metrics_listen` may be an address that other machines reach.",
  fallback: () => false,
  fallbackText: "`false`",
  example: "false",
};

/** Of a process, which makes these spans. */
export function otlpEndpoint(process: string, spans: string): Field<string | null> {
  return {
    kind: httpUrl,
    doc: `The OpenTelemetry collector that the ${process} sends traces to: OTLP as JSON over HTTP, to \`/v1/traces\` below this URL. ${spans}; no prompts and no keys.`,
    fallback: (env) => env["OTEL_EXPORTER_OTLP_ENDPOINT"] ?? null,
    fallbackText: "the environment variable `OTEL_EXPORTER_OTLP_ENDPOINT`; none: no traces",
    example: '"http://127.0.0.1:4318"',
  };
}

export const PAGE: {
  page_listen: Field<SidecarConfig["pageListen"]>;
  page_tls_cert: Field<SidecarConfig["pageTlsCert"]>;
  page_tls_key: Field<SidecarConfig["pageTlsKey"]>;
  page_token: Field<SidecarConfig["pageToken"]>;
} = {
  page_listen: {
    kind: tcpOnly("127.0.0.1:50252", 0),
    doc: "Where a browser finds the page that `tierkv top --web` shows. It only shows, and shows no prompts. An address that other machines reach needs `page_tls_cert`, `page_tls_key` and `page_token`.",
    fallback: () => null,
    fallbackText: "none: nothing listens",
    example: '"127.0.0.1:50252"',
  },
  page_tls_cert: file(
    "The page's certificate as PEM, and what signed it.",
    "none: plain HTTP",
    '"/etc/tierkv/page.pem"',
  ),
  page_tls_key: file(
    "Its key, mode 0600. Both or neither.",
    "none: plain HTTP",
    '"/etc/tierkv/page-key.pem"',
  ),
  page_token: file(
    "A file, mode 0600, with the token that lets somebody look: the password that a browser asks for, under any user name.",
    "none: everybody who reaches it may look",
    '"/etc/tierkv/page-token"',
  ),
};
