// Owns the keys of `[cluster]`: the machine's role, the vaults, and their credentials.
import { join } from "node:path";
import { PATH_BYTES_MAX } from "../limits/general.ts";
import { POOL_VAULTS_MAX } from "../limits/pool.ts";
import { SHARED_HOSTS_MAX } from "../limits/shared.ts";
import { vaultAddresses } from "./addresses.ts";
import { byDefault, emptyList, file, optional } from "./common-fields.ts";
import type { Schema } from "./field.ts";
import { boolean, choice, integer, label, path } from "./kinds.ts";
import { homeOf } from "./own-places.ts";
import { sleepers } from "./wake.ts";

export const CLUSTER: Schema["cluster"] = {
  doc: "What this machine is, and where the vaults are.",
  fields: {
    role: {
      kind: choice(["inference", "kv_cold", "ssm_cold", "cold"]),
      doc: "This machine's part: `inference` runs the engine and a sidecar, `kv_cold` a vault for attention KV, `ssm_cold` a vault for recurrent state, `cold` a vault for both.",
      ...byDefault("inference"),
      isShown: true,
    },
    kv_cold: {
      kind: vaultAddresses(POOL_VAULTS_MAX),
      doc: "The vault for attention KV, or several: each holds a part of every longer prompt, and they are asked at once. Machines that share them write the addresses alike. `dns:` names stand for all vaults that they are resolved to, every 10 s again, `pool:` before the address of one for all that keep a list with it (`[vault] pool_key`). `shm:/dev/shm/NAME` is memory that the sidecars of this machine share, alone or before the vaults of the list; `[vault] max_bytes` is its size. Without `kv_cold` and `ssm_cold` the sidecar starts a vault of its own on this machine.",
      ...emptyList("none", '"192.168.1.10:50051"'),
      isShown: true,
    },
    ssm_cold: {
      kind: vaultAddresses(POOL_VAULTS_MAX),
      doc: "The vault for recurrent (SSM, linear-attention) state, or several; only hybrid models need it. May be those of `kv_cold` when their role is `cold`.",
      ...emptyList("none", '"192.168.1.11:50051"'),
      isShown: true,
    },
    redundancy: {
      kind: choice(["none", "parity", "copies:2"]),
      doc: "What a pool of vaults does against the loss of one. `none`: each record lies on one of them, and what a lost vault held is computed again. `copies:2`: on two of them, and a restore goes on with the other; the pool holds half as much. `parity`: from three vaults of attention KV on, one more record for every two blocks, from five for every four: what one lost vault held is rebuilt from the others; states lie on two. All machines that share the vaults write the same.",
      ...byDefault("none"),
    },
    wake: {
      kind: sleepers,
      doc: "Machines that sleep, by the host of their vault's address, each with the address of its network card. When their records are wanted and the vault does not answer, wake-on-LAN's packet goes to all networks of this machine, at most every minute. The machine's firmware must allow it.",
      ...emptyList("none", '["192.168.1.10=00:11:22:aa:bb:cc"]'),
    },
    coherence: {
      kind: choice(["hardware", "clflush"]),
      doc: "Who keeps processors' caches together where `shm:` memory is shared. `hardware`: the machine, as one does for its own memory. `clflush`: each sidecar writes its lines back and drops them before it reads, on x86-64, and is slower; for memory of which `tierkv doctor --shm PATH` says so. All sidecars of a region write the same.",
      ...byDefault("hardware"),
    },
    host: {
      kind: integer(0, SHARED_HOSTS_MAX - 1),
      doc: "Which of up to 8 machines that map the same `shm:` memory this is; another number on each. A region is made for one machine or for several, and each has room for eight processes then. Their lock takes up to a millisecond, and 4 ms where nobody wanted it lately; a machine that is silent for 0.6 s counts as dead, and its sidecars start anew.",
      ...optional("no other machine maps it", "0"),
    },
    group: {
      kind: label(64),
      doc: "The group of users, by name or number, whose sidecars share `shm:` memory: its file is made with that group and mode 0660, and one of another group or mode is refused. All of them write the same.",
      ...optional("this user alone, mode 0600", '"tierkv"'),
    },
    credentials: {
      kind: path(PATH_BYTES_MAX),
      doc: "Where `tierkv join` keeps the certificate and the token of each vault. What stands there goes before the keys below.",
      fallback: (env) => join(homeOf(env), ".config", "tierkv", "vaults"),
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
      ...byDefault(false),
    },
  },
};
