// Owns the keys of `[gateway]`.
import { join } from "node:path";
import {
  GATEWAY_DRAIN_MS_DEFAULT,
  GATEWAY_DRAIN_MS_MAX,
  GATEWAY_ENGINES_MAX,
  GATEWAY_IN_FLIGHT_DEFAULT,
  GATEWAY_IN_FLIGHT_MAX,
  GATEWAY_LEAVE_MS_MAX,
  GATEWAY_LOOKUP_MS_DEFAULT,
  GATEWAY_LOOKUP_MS_MAX,
  GATEWAY_OBJECTIVES_MAX,
  GATEWAY_PREFILL_TOKENS_DEFAULT,
  GATEWAY_PREFILL_TOKENS_MAX,
  GATEWAY_PRIORITY_MAX,
  GATEWAY_TOKENIZERS_MAX,
  GATEWAY_TOKENIZE_MS,
  GATEWAY_WAIT_MS_DEFAULT,
  GATEWAY_WAIT_MS_MAX,
} from "../base/limits/gateway.ts";
import { PATH_BYTES_MAX, SIDECAR_SOCKET_BYTES_MAX } from "../base/limits/general.ts";
import { address, addresses, tcpOnly } from "./addresses.ts";
import { byDefault, emptyList, METRICS_LAN, optional } from "./common-fields.ts";
import { PRESETS } from "./config.ts";
import type { Address } from "./config.ts";
import type { Schema } from "./field.ts";
import type { Kind } from "./kinds.ts";
import { boolean, choice, folders, integer, numbered, origins, path } from "./kinds.ts";
import { ownSocket, stateDir } from "./own-places.ts";

const PORT_MAX = 65_535;
const ORIGINS_MAX = 64;
const LISTEN = { host: "127.0.0.1", port: 8100, text: "127.0.0.1:8100" };

const HOST = tcpOnly("vllm:8000", 1);
/** A name for several engines: a host's with their port, or the list in etcd. */
const ENGINE_NAMES: Kind<Address> = {
  describe: `${HOST.describe}, or \`"etcd:engines"\``,
  parse: (raw, key) =>
    raw === "etcd:engines" ? { value: { host: "", port: 0, text: raw } } : HOST.parse(raw, key),
};

const ENGINE_SAMPLE = "127.0.0.1:8000";
const ENGINES = addresses(ENGINE_SAMPLE, GATEWAY_ENGINES_MAX, address("connect", ENGINE_SAMPLE));

export const GATEWAY: Schema["gateway"] = {
  doc: "The gateway (`tierkv gateway`): one OpenAI address in front of several engines.",
  fields: {
    listen: {
      kind: tcpOnly("127.0.0.1:8100", 0),
      doc: "Address for clients' requests. `/health` and `/metrics` answer there, too.",
      fallback: () => LISTEN,
      fallbackText: `\`"${LISTEN.text}"\``,
      example: '"127.0.0.1:8100"',
    },
    lan: {
      kind: boolean,
      doc: "Whether other machines may reach `listen` without `keys` and `tls_cert`. Without `keys`, the gateway passes `Authorization` on, and engines with `--api-key` check it.",
      ...byDefault(false, true),
    },
    engines: {
      kind: ENGINES,
      doc: "Addresses at which `vllm serve` listens; `unix:/path` with its `--uds`. The gateway asks each engine which models it serves.",
      ...emptyList(
        "engines that this machine's sidecar knows, as they come and go, with their events. Their server must listen on TCP, and not in a container of its own",
        '["127.0.0.1:8000", "127.0.0.1:8001"]',
      ),
    },
    discover: {
      kind: ENGINE_NAMES,
      doc: 'Name, such as that of a headless service, whose addresses are further engines. The gateway resolves it every 5 s. `"etcd:engines"`: the engines registered below `[etcd] engines_prefix`, with their events.',
      ...optional("none: only `engines`", '"vllm.default.svc:8000"'),
    },
    discover_events: {
      kind: integer(1, PORT_MAX),
      doc: "Port at which each engine of `discover` publishes its KV-cache events.",
      ...optional("none: the gateway does not know what they hold", "5557"),
    },
    discover_replays: {
      kind: integer(1, PORT_MAX),
      doc: "Port at which each engine of `discover` replays its events.",
      ...optional("none: after a gap, the gateway starts again with new events", "5558"),
    },
    sequences: {
      kind: boolean,
      doc: "Whether the gateway also serves an API by sequences. `POST /generate` streams from the engine that owns `seq_id` on the hash ring; `GET /route/SEQ` names that engine. `POST /register` and `/deregister` (`worker_id`, `address`) add and remove engines. Every client may register engines, except keys with a tenant.",
      ...byDefault(false, true),
    },
    prefill: {
      kind: ENGINES,
      doc: "Members of `engines` that only compute long prompts for the others. A prompt goes there first, and is then handed over, if its first token comes earlier that way. `prefill` needs `events`, and tierKV on both engines.",
      ...emptyList("none: each engine computes its own prompts", '["127.0.0.1:8001"]'),
    },
    prefill_tokens: {
      kind: integer(1, GATEWAY_PREFILL_TOKENS_MAX, "tokens"),
      doc: "Fewest prompt tokens, held nowhere, for which the gateway uses `prefill`.",
      ...byDefault(GATEWAY_PREFILL_TOKENS_DEFAULT),
    },
    ext_proc: {
      kind: tcpOnly("127.0.0.1:9002", 0),
      doc: "Address where Envoy asks which engine a request goes to (`ext_proc`, as an endpoint picker of the Gateway API Inference Extension). It has no TLS, so other machines need `lan`.",
      ...optional("none: nothing listens", '"127.0.0.1:9002"'),
    },
    keys: {
      kind: path(PATH_BYTES_MAX),
      doc: "File of mode 0600 with the clients' keys, which the gateway reads at its start. A line is `NAME SHA256-OF-THE-KEY`, then a tenant and limits if wanted. Keys of different tenants share no cached blocks. All keys of a name share its limits: `requests=N` and `tokens=N` per minute, `concurrent=N`. The line `* requests=N` limits names without their own. Clients send `Authorization: Bearer KEY` or `x-api-key: KEY`, except to `/health`; the gateway passes neither on.",
      ...optional(
        "none: everybody who reaches the gateway may use it",
        '"/etc/tierkv/gateway-keys"',
      ),
    },
    tls_cert: {
      kind: path(PATH_BYTES_MAX),
      doc: "PEM file with the gateway's certificate. Clients must then use TLS 1.3.",
      ...optional("none: plain HTTP", '"/etc/tierkv/gateway.pem"'),
    },
    tls_key: {
      kind: path(PATH_BYTES_MAX),
      doc: "PEM file with the key of `tls_cert`, mode 0600.",
      ...optional("none", '"/etc/tierkv/gateway-key.pem"'),
    },
    engine_key: {
      kind: path(PATH_BYTES_MAX),
      doc: "File of mode 0600 with the API key of the engines (`vllm serve --api-key`). The gateway sends it with its own requests to engines, and with clients' requests if it has `keys` of its own. Without `keys`, a client's own `Authorization` reaches the engine.",
      ...optional("none: engines take requests without a key", '"/etc/tierkv/engine-key"'),
    },
    engine_ca: {
      kind: path(PATH_BYTES_MAX),
      doc: "PEM file with the authority, or the certificate itself, of engines that serve TLS (`vllm serve --ssl-certfile`). The gateway then reaches all engines over TLS and checks their names.",
      ...optional("none: plain HTTP", '"/etc/tierkv/engine-ca.pem"'),
    },
    allowed_origins: {
      kind: origins(ORIGINS_MAX),
      doc: 'Origins of web pages that may read answers, such as `"https://chat.example"`, or `"*"` for all. The gateway answers the browser\'s preflights itself, without a key. An empty list: no page of another origin can read answers.',
      fallback: () => ["*"],
      fallbackText: '`["*"]`, as vLLM itself',
      example: '["https://chat.example"]',
    },
    show_engine: {
      kind: boolean,
      doc: "Whether the header `x-gateway-destination-endpoint-served` of an answer names the engine's address.",
      ...byDefault(false, true),
    },
    events: {
      kind: addresses("127.0.0.1:5557", GATEWAY_ENGINES_MAX),
      doc: "Addresses at which the engines publish KV-cache events (`--kv-events-config`), in the order of `engines`. The events say which prompts an engine holds.",
      ...emptyList(
        "none: the gateway does not know what engines hold",
        '["127.0.0.1:5557", "127.0.0.1:5567"]',
      ),
    },
    replays: {
      kind: addresses("127.0.0.1:5558", GATEWAY_ENGINES_MAX),
      doc: "Addresses at which the engines replay these events (`replay_endpoint`), in the same order. The gateway asks there for events that it lost, or that came before its start.",
      ...emptyList(
        "none: after a gap, the gateway starts again with new events",
        '["127.0.0.1:5558", "127.0.0.1:5568"]',
      ),
    },
    preset: {
      kind: choice(PRESETS),
      doc: "How the gateway chooses an engine. `earliest-token`: the earliest first token, predicted from waiting requests, the part of the prompt held, and the speed of computing the rest. `prefix-weighted`: the highest sum of 3 times the share held and 2 times the free share of requests. `ring`: by session (`x-session-id`, else `prompt_cache_key` or `user` of the body) on a hash ring; without a session, by load. `least-load`: the fewest requests in flight, ties at random. `round-robin`: each in turn.",
      ...optional("`earliest-token` with `events`, else `least-load`", '"least-load"'),
    },
    in_flight_max: {
      kind: integer(1, GATEWAY_IN_FLIGHT_MAX),
      doc: "Most requests in flight at one engine. Once all engines of a model have so many, further requests wait.",
      ...byDefault(GATEWAY_IN_FLIGHT_DEFAULT),
    },
    wait_ms: {
      kind: integer(0, GATEWAY_WAIT_MS_MAX, "ms"),
      doc: "Longest wait of a request for an engine with room, in ms. After that, the gateway answers 429 with `Retry-After`.",
      ...byDefault(GATEWAY_WAIT_MS_DEFAULT),
    },
    ttft_ms: {
      kind: integer(1, GATEWAY_WAIT_MS_MAX, "ms"),
      doc: "Longest predicted time to the first token, in ms. If the prediction is later at every engine, the gateway answers 429 with `Retry-After` at once. So accepted requests stay within the limit. Presets that ignore prompts predict from waiting requests alone.",
      ...optional("none: the gateway accepts requests while there is room", "2000"),
    },
    objectives: {
      kind: numbered(GATEWAY_OBJECTIVES_MAX, GATEWAY_PRIORITY_MAX),
      doc: "Priorities by the name in the header `x-gateway-inference-objective`; other requests have 0. Among waiting requests, higher priorities go first. With `ttft_ms`, a priority below 0 gets half of that limit. Clients name their objective themselves.",
      fallback: () => new Map(),
      fallbackText: "none: all requests have priority 0",
      example: '["chat=10", "batch=-1"]',
    },
    tokenize_ms: {
      kind: integer(0, GATEWAY_WAIT_MS_MAX, "ms"),
      doc: "Longest delay of a request, in ms, while its prompt is turned into tokens, here or by an engine (`/tokenize`, `/render`). Only presets that look at prompts need tokens. After that, the gateway chooses by load.",
      ...byDefault(GATEWAY_TOKENIZE_MS),
    },
    lookup_ms: {
      kind: integer(0, GATEWAY_LOOKUP_MS_MAX, "ms"),
      doc: "Longest wait of a choice, in ms, for the vaults in `[cluster]`. The gateway asks them about prompts that no engine is known to hold; later answers serve the next choice. 0: it does not ask.",
      ...byDefault(GATEWAY_LOOKUP_MS_DEFAULT),
    },
    tokenizers: {
      kind: folders(GATEWAY_TOKENIZERS_MAX, PATH_BYTES_MAX),
      doc: "Folders with `tokenizer.json`, `tokenizer_config.json` and the chat template, by the models' names in requests. The gateway makes tokens itself, once some texts gave the same tokens as the engine's `/tokenize`. It asks the engine where tokens differ, or a prompt cannot be rendered here.",
      fallback: () => new Map(),
      fallbackText:
        "the folder that an engine serves a model from, if the gateway can read it; else it asks the engine",
      example: '["meta-llama/Llama-3.3-70B-Instruct=/models/llama-3.3-70b"]',
    },
    leave_ms: {
      kind: integer(0, GATEWAY_LEAVE_MS_MAX, "ms"),
      doc: "How long, in ms, the gateway still takes requests after SIGTERM or SIGINT, while `/health` answers 503, so that load balancers leave it first. A second signal ends it at once.",
      ...byDefault(0, 10_000),
    },
    drain_ms: {
      kind: integer(0, GATEWAY_DRAIN_MS_MAX, "ms"),
      doc: "How long, in ms, open answers are finished after that. The gateway then cuts and logs the rest.",
      ...byDefault(GATEWAY_DRAIN_MS_DEFAULT, 300_000),
    },
    metrics_listen: {
      kind: tcpOnly("127.0.0.1:9464", 0),
      doc: "Further address for `/metrics` and `/healthz`, in the clear and without a key, so that probes and Prometheus need neither `keys` nor `tls_cert`. `/healthz` answers 200, or 503 while no engine answers or the gateway is leaving.",
      ...optional("none: `/metrics` and `/health` answer at `listen` alone", '"127.0.0.1:9464"'),
    },
    metrics_lan: METRICS_LAN,
    socket: {
      kind: path(SIDECAR_SOCKET_BYTES_MAX),
      doc: "Path of the Unix socket on which this user's `tierkv gateway status` and `drain` reach the gateway.",
      fallback: (env) => ownSocket("gateway", env),
      fallbackText:
        "`$XDG_RUNTIME_DIR/tierkv/gateway.sock` where that directory exists, else `/tmp/tierkv-<uid>/gateway.sock`",
      example: '"/run/tierkv/gateway.sock"',
    },
    index_file: {
      kind: path(PATH_BYTES_MAX),
      doc: "File where the gateway saves what engines hold, every minute and at its end, for its next start. An engine's part is used only if its replay begins with the last batch heard; else it is dropped.",
      fallback: (env) => join(stateDir(env), "gateway.index"),
      fallbackText:
        "`gateway.index` in `$STATE_DIRECTORY` (systemd), else in `$XDG_STATE_HOME/tierkv`, else in `~/.local/state/tierkv`",
      example: '"/var/lib/tierkv/gateway.index"',
    },
  },
};
