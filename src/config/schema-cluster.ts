// Owns the keys of `[cluster]`: the machine's role, the vaults, and their credentials.
import { join } from "node:path";
import { STORE_PREFIX_MAX, STORE_TTL_S_MAX } from "../base/limits/cold.ts";
import { PATH_BYTES_MAX } from "../base/limits/general.ts";
import { POOL_VAULTS_MAX } from "../base/limits/pool.ts";
import { SHARED_HOSTS_MAX } from "../base/limits/shared.ts";
import { vaultAddresses } from "./addresses.ts";
import { byDefault, emptyList, file, optional } from "./common-fields.ts";
import type { Schema } from "./field.ts";
import { boolean, choice, integer, label, path } from "./kinds.ts";
import { homeOf } from "./own-places.ts";
import { sleepers } from "./wake.ts";

export const CLUSTER: Schema["cluster"] = {
  doc: "This machine's role, and the addresses and credentials of the vaults.",
  fields: {
    role: {
      kind: choice(["inference", "kv_cold", "ssm_cold", "cold"]),
      doc: "This machine's part. `inference`: an engine and a sidecar. `kv_cold`: a vault for attention KV. `ssm_cold`: a vault for recurrent state. `cold`: a vault for both.",
      ...byDefault("inference"),
      isShown: true,
    },
    kv_cold: {
      kind: vaultAddresses(POOL_VAULTS_MAX),
      doc: "Addresses of the vaults for attention KV. Several vaults form a pool: each holds a part of every longer prompt, and a restore reads from all at once. Write each address identically on all machines. `dns:` stands for all vaults of the name, which is resolved every 10 s. `pool:` stands for all vaults that keep a list with this one (`[vault] pool_key`). `shm:/dev/shm/NAME` is memory that this machine's sidecars share, alone or before other vaults; `[vault] max_bytes` is its size. `valkey://host:6379` is a Valkey or Redis server, or any member of a cluster (several, separated by commas, stand in for each other), `valkeys://` the same with TLS; `s3://bucket/prefix` is a bucket. Without `kv_cold` and `ssm_cold`, or with empty lists, the sidecar starts a vault on this machine.",
      ...emptyList("none", '"192.168.1.10:50051"'),
      isShown: true,
    },
    ssm_cold: {
      kind: vaultAddresses(POOL_VAULTS_MAX),
      doc: "Addresses of the vaults for recurrent state (SSM, linear attention). Only hybrid models need them. Vaults with the role `cold` may be in both lists.",
      ...emptyList("none", '"192.168.1.11:50051"'),
      isShown: true,
    },
    redundancy: {
      kind: choice(["none", "copies:2"]),
      doc: "Protection of a pool against the loss of a vault. `none`: each record is on one vault, and engines compute lost blocks again. `copies:2`: each record is on two vaults; restores go on with the other, and the pool holds half as much. Write the same value on all machines that share the vaults.",
      ...byDefault("none"),
    },
    wake: {
      kind: sleepers,
      doc: "Machines that may sleep: host of the vault's address, and address of its network card. If records are wanted and the vault does not answer, this machine sends wake-on-LAN packets to all its networks. It does so at most once a minute. The sleeping machine's firmware must allow it.",
      ...emptyList("none", '["192.168.1.10=00:11:22:aa:bb:cc"]'),
    },
    coherence: {
      kind: choice(["hardware", "clflush"]),
      doc: "How processors' caches agree on shared `shm:` memory. `hardware`: the machine keeps them coherent, as for its own memory. `clflush`: each sidecar writes its cache lines back, and drops them before it reads; slower, only on x86-64. Use `clflush` where `tierkv doctor --shm PATH` says so. Write the same value for all sidecars of a region.",
      ...byDefault("hardware"),
    },
    host: {
      kind: integer(0, SHARED_HOSTS_MAX - 1),
      doc: "This machine's number among up to 8 that map the same `shm:` memory; each needs its own. A region is made for one machine or for several; with several, each may run eight processes. The lock between machines takes up to 1 ms, or 4 ms after a quiet time. A machine that is silent for 0.6 s counts as dead, and its sidecars must restart.",
      ...optional("no other machine maps it", "0"),
    },
    group: {
      kind: label(64),
      doc: "Group, by name or number, of the users whose sidecars share `shm:` memory. The file gets this group and mode 0660; a file with another group or mode is refused. Write the same group for all sidecars.",
      ...optional("none: this user alone, mode 0600", '"tierkv"'),
    },
    credentials: {
      kind: path(PATH_BYTES_MAX),
      doc: "Directory where `tierkv join` stores the certificate and token of each vault. They take precedence over the keys below.",
      fallback: (env) => join(homeOf(env), ".config", "tierkv", "vaults"),
      fallbackText: "`~/.config/tierkv/vaults`",
      example: '"/etc/tierkv/vaults"',
    },
    tls_ca: file(
      "PEM file with the certificate of your own CA (`tierkv certs init` makes one). Vaults must then use TLS, with a certificate of this CA.",
      "none: vaults must be joined",
      '"/etc/tierkv/ca.pem"',
    ),
    tls_cert: file(
      "PEM file with this machine's certificate, for vaults with `tls_client_ca`.",
      "none",
      '"/etc/tierkv/client.pem"',
    ),
    tls_key: file(
      "PEM file with the key of `tls_cert`, mode 0600.",
      "none",
      '"/etc/tierkv/client-key.pem"',
    ),
    token: file(
      "File of mode 0600 with one line: the token that opens the vaults. `role:` may stand before the token.",
      "none",
      '"/etc/tierkv/token"',
    ),
    insecure_lan: {
      kind: boolean,
      doc: "`true`: this machine uses vaults on other machines without TLS, if they were not joined. Anybody on the network path can then read and change the cached data of prompts. tierKV warns at every start. `false`: such vaults are refused.",
      ...byDefault(false),
    },
    store_ttl_s: {
      kind: integer(1, STORE_TTL_S_MAX, "s"),
      doc: "Time to live of a record that this machine stores in Valkey, in seconds. A bucket has lifecycle rules instead.",
      ...optional("none: records stay until Valkey evicts them", "604_800"),
    },
    store_prefix: {
      kind: label(STORE_PREFIX_MAX),
      doc: "Beginning of all keys in Valkey. Deployments with different prefixes can use one server, and share no records.",
      ...byDefault("tierkv", "team-a"),
    },
    store_replicas: {
      kind: boolean,
      doc: "`true`: restores read from replicas of a Valkey cluster as well as from primaries. If a replica lacks a record, the sidecar asks its primary.",
      ...byDefault(false),
    },
    store_user: {
      kind: label(100),
      doc: "User of this machine in Valkey's access list.",
      ...optional(
        "the environment variable `VALKEY_USERNAME`; without it, the default user",
        '"tierkv"',
      ),
    },
    store_password: file(
      "File of mode 0600 with the user's password.",
      "the environment variable `VALKEY_PASSWORD`; without it, no login",
      '"/etc/tierkv/valkey-password"',
    ),
    store_tls_ca: file(
      "PEM file with the certificate of the CA that signed Valkey's certificate, for `valkeys://`. Valkey's certificate must name the host that the sidecar connects to, or a host of the address. Only TLS 1.3 is used.",
      "the system's trusted authorities",
      '"/etc/tierkv/valkey-ca.pem"',
    ),
    store_tls_cert: file(
      "PEM file with this machine's certificate for Valkey, where the server asks for one (`tls-auth-clients`).",
      "none",
      '"/etc/tierkv/valkey.pem"',
    ),
    store_tls_key: file(
      "PEM file with the key of `store_tls_cert`, mode 0600.",
      "none",
      '"/etc/tierkv/valkey-key.pem"',
    ),
  },
};
