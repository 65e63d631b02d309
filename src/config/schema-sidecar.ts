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
} from "../limits/general.ts";
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
      ...optional(
        `a quarter of the memory free when the engine comes, at least ${showBytes(ARENA_BYTES_DEFAULT)}`,
        '"4GiB"',
      ),
    },
    arena_dir: {
      kind: path(PATH_BYTES_MAX),
      doc: "A directory on a memory file system for the shared memory, where memory without a file is short or not allowed.",
      ...optional("none: memory without a file", '"/dev/shm/tierkv"'),
    },
    autostart: {
      kind: boolean,
      doc: "Whether an engine starts the sidecar when nothing answers on the socket: once per machine, detached, its log beside the socket. Read by the engine from the file named by `config_path`, else from where the sidecar finds its own.",
      ...byDefault(true, false),
    },
    idle_exit_s: {
      kind: integer(1, IDLE_EXIT_S_MAX, "s"),
      doc: "A sidecar that was started by an engine (`--exit-when-idle`) ends, with its vault, after this long without an engine.",
      ...byDefault(IDLE_EXIT_S_DEFAULT),
    },
    lanes: {
      kind: integer(1, LANES_MAX),
      doc: "Connections to each vault on which records travel, beside the one for everything else.",
      ...byDefault(LANES_DEFAULT),
    },
    addresses: {
      kind: ownAddresses(RAILS_MAX, "192.168.1.20"),
      doc: "IP addresses of this machine, each with a cable of its own: what travels to a vault and back goes from each of them that reaches it, by their rates, and does without one that is cut. Linux needs policy routing (`ip rule`), so that each takes its own cable.",
      ...emptyList("none: the system chooses", '["192.168.1.20", "192.168.1.21"]'),
    },
    record_keys: {
      kind: path(PATH_BYTES_MAX),
      doc: "A file with the keys that records are sealed with (AES-256-GCM) before they leave: vaults keep what they cannot read. One key per line, 64 hexadecimal digits (`openssl rand -hex 32`); the first seals, all open. It must be readable by its owner alone. Sidecars that share blocks need the same file.",
      ...optional("none: records are not sealed", '"/etc/tierkv/record-keys"'),
    },
    metrics_listen: {
      kind: tcpOnly("127.0.0.1:50251", 0),
      doc: "Where Prometheus may scrape `/metrics`, and `/healthz` answers 200: what was decided and why, what was missed and why, bytes, times, queues, vaults. Plain HTTP without a password; it shows no prompts and no keys.",
      ...optional("none: nothing listens", '"127.0.0.1:50251"'),
    },
    metrics_lan: METRICS_LAN,
    otlp_endpoint: otlpEndpoint(
      "sidecar",
      "A span for each request, with its look-up, fetch and load",
    ),
    page_listen: {
      kind: tcpOnly("127.0.0.1:50252", 0),
      doc: "Where a browser finds the page that `tierkv top --web` shows. It only shows, and shows no prompts. An address that other machines reach needs `page_tls_cert`, `page_tls_key` and `page_token`.",
      ...optional("none: nothing listens", '"127.0.0.1:50252"'),
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
  },
};
