// Owns the keys of `[sidecar]`: socket, shared memory, lanes, observability, and the page.
import {
  ARENA_BYTES_DEFAULT,
  ARENA_BYTES_MAX,
  ARENA_BYTES_MIN,
  IDLE_EXIT_S_DEFAULT,
  IDLE_EXIT_S_MAX,
  LANES_DEFAULT,
  LANES_MAX,
  PATH_BYTES_MAX,
  RAILS_MAX,
  SIDECAR_SOCKET_BYTES_MAX,
} from "../base/limits/general.ts";
import { ownAddresses, tcpOnly } from "./addresses.ts";
import {
  METRICS_LAN,
  byDefault,
  emptyList,
  file,
  optional,
  otlpEndpoint,
} from "./common-fields.ts";
import type { Schema } from "./field.ts";
import { boolean, bytes, integer, path, showBytes } from "./kinds.ts";
import { ownSocket } from "./own-places.ts";

export const SIDECAR: Schema["sidecar"] = {
  doc: "The sidecar: `tierkv sidecar` on the engine's machine. One sidecar serves all engines there.",
  fields: {
    socket: {
      kind: path(SIDECAR_SOCKET_BYTES_MAX),
      doc: "Path of the Unix socket between engine and sidecar. Both read this key.",
      fallback: (env) => ownSocket("sidecar", env),
      fallbackText:
        "`$XDG_RUNTIME_DIR/tierkv/sidecar.sock` where that directory exists, else `/tmp/tierkv-<uid>/sidecar.sock`",
      example: '"/run/tierkv/sidecar.sock"',
    },
    arena_bytes: {
      kind: bytes(ARENA_BYTES_MIN, ARENA_BYTES_MAX),
      doc: "Most shared memory of one engine, in bytes. The engine gets room for two of its longest prompts and one step of saves, at most half of the free memory. With one group of full attention on vLLM 0.30 or later, a prompt that does not fit is restored in parts; of other models only its beginning is restored. `tierkv doctor` says what fits.",
      ...optional(
        `a quarter of the memory free when the engine connects, at least ${showBytes(ARENA_BYTES_DEFAULT)}`,
        '"4GiB"',
      ),
    },
    arena_dir: {
      kind: path(PATH_BYTES_MAX),
      doc: "Directory on a memory file system for the shared memory. Set it where memory without a file is short or not allowed.",
      ...optional("none: memory without a file", '"/dev/shm/tierkv"'),
    },
    autostart: {
      kind: boolean,
      doc: "Whether an engine starts the sidecar when nothing answers on the socket. The sidecar runs once per machine, detached, with its log beside the socket. The engine reads this key from the file in `config_path`, else from where the sidecar finds its own.",
      ...byDefault(true, false),
    },
    idle_exit_s: {
      kind: integer(1, IDLE_EXIT_S_MAX, "s"),
      doc: "Seconds without an engine until a sidecar that an engine started (`--exit-when-idle`) ends, with its vault.",
      ...byDefault(IDLE_EXIT_S_DEFAULT),
    },
    lanes: {
      kind: integer(1, LANES_MAX),
      doc: "Number of connections to each vault that carry records, besides the one for everything else.",
      ...byDefault(LANES_DEFAULT),
    },
    addresses: {
      kind: ownAddresses(RAILS_MAX, "192.168.1.20"),
      doc: "IP addresses of this machine, each with its own cable. Traffic to and from a vault uses all that reach it, by their rates, and goes on if a cable is cut. Linux needs policy routing (`ip rule`), so that each address uses its own cable.",
      ...emptyList("none: the system chooses", '["192.168.1.20", "192.168.1.21"]'),
    },
    record_keys: {
      kind: path(PATH_BYTES_MAX),
      doc: "File with the keys that seal records (AES-256-GCM) before they leave, so that vaults cannot read them. Each line is a key of 64 hexadecimal digits (`openssl rand -hex 32`); the first seals, all open. Only its owner may read the file. Sidecars that share blocks need the same file.",
      ...optional("none: records are not sealed", '"/etc/tierkv/record-keys"'),
    },
    metrics_listen: {
      kind: tcpOnly("127.0.0.1:50251", 0),
      doc: "Address where Prometheus scrapes `/metrics`: decisions and misses with reasons, bytes, times, queues and vaults. `/healthz` answers 200. Both are plain HTTP without a password, and show no prompts or keys.",
      ...optional("none: nothing listens", '"127.0.0.1:50251"'),
    },
    metrics_lan: METRICS_LAN,
    otlp_endpoint: otlpEndpoint(
      "sidecar",
      "A span for each request, with its look-up, fetch and load",
    ),
    page_listen: {
      kind: tcpOnly("127.0.0.1:50252", 0),
      doc: "Address of the web page that `tierkv top --web` shows. The page is read-only and shows no prompts. An address that other machines reach needs `page_tls_cert`, `page_tls_key` and `page_token`.",
      ...optional("none: nothing listens", '"127.0.0.1:50252"'),
    },
    page_tls_cert: file(
      "PEM file with the page's certificate, and the certificates that signed it.",
      "none: plain HTTP",
      '"/etc/tierkv/page.pem"',
    ),
    page_tls_key: file(
      "PEM file with the key of `page_tls_cert`, mode 0600. Set both or neither.",
      "none: plain HTTP",
      '"/etc/tierkv/page-key.pem"',
    ),
    page_token: file(
      "File of mode 0600 with the token for viewers. A browser asks for it as the password, under any user name.",
      "none: everybody who reaches the page may look",
      '"/etc/tierkv/page-token"',
    ),
  },
};
