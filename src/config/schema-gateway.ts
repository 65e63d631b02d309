// Owns the keys of `[gateway]`.
import { join } from "node:path";
import {
  GATEWAY_ENGINES_MAX,
  GATEWAY_IN_FLIGHT_DEFAULT,
  GATEWAY_IN_FLIGHT_MAX,
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
} from "../limits/gateway.ts";
import { PATH_BYTES_MAX, SIDECAR_SOCKET_BYTES_MAX } from "../limits/general.ts";
import { addresses, tcpOnly } from "./addresses.ts";
import { byDefault, emptyList, optional } from "./common-fields.ts";
import { PRESETS } from "./config.ts";
import type { Address } from "./config.ts";
import type { Schema } from "./field.ts";
import type { Kind } from "./kinds.ts";
import { boolean, choice, folders, integer, numbered, path } from "./kinds.ts";
import { ownSocket, stateDir } from "./own-places.ts";

const PORT_MAX = 65_535;
const LISTEN = { host: "127.0.0.1", port: 8100, text: "127.0.0.1:8100" };

const HOST = tcpOnly("vllm:8000", 1);
/** A name for several engines: a host's with their port, or the list in etcd. */
const ENGINE_NAMES: Kind<Address> = {
  describe: `${HOST.describe}, or \`"etcd:engines"\``,
  parse: (raw, key) =>
    raw === "etcd:engines" ? { value: { host: "", port: 0, text: raw } } : HOST.parse(raw, key),
};

export const GATEWAY: Schema["gateway"] = {
  doc: "The gateway (`tierkv gateway`): one OpenAI address before several engines.",
  fields: {
    listen: {
      kind: tcpOnly("127.0.0.1:8100", 0),
      doc: "Where clients send their requests; `/health` and `/metrics` answer there, too.",
      fallback: () => LISTEN,
      fallbackText: `\`"${LISTEN.text}"\``,
      example: '"127.0.0.1:8100"',
    },
    lan: {
      kind: boolean,
      doc: "Whether `listen` may be an address that other machines reach without `keys` and `tls_cert`. `Authorization` is passed on then: engines with `--api-key` check it.",
      ...byDefault(false, true),
    },
    engines: {
      kind: addresses("127.0.0.1:8000", GATEWAY_ENGINES_MAX),
      doc: "The engines, as `vllm serve` listens. Which models each one serves, it is asked.",
      ...emptyList(
        "those that the sidecar of this host knows, as they come and go, with their events: where their server listens on TCP without TLS and API key, and in no container of its own",
        '["127.0.0.1:8000", "127.0.0.1:8001"]',
      ),
    },
    discover: {
      kind: ENGINE_NAMES,
      doc: 'A name, such as that of a headless service, whose addresses are engines, too. It is resolved again every 5 s: engines come and go with their addresses. Or `"etcd:engines"`: those registered below `[etcd] engines_prefix`, with their events.',
      ...optional("none: `engines` are all there are", '"vllm.default.svc:8000"'),
    },
    discover_events: {
      kind: integer(1, PORT_MAX),
      doc: "The port at which each engine behind `discover` publishes its KV-cache events.",
      ...optional("none: what they hold is not known", "5557"),
    },
    discover_replays: {
      kind: integer(1, PORT_MAX),
      doc: "The port at which each of them replays these.",
      ...optional("none: after a gap the gateway begins anew with what comes", "5558"),
    },
    sequences: {
      kind: boolean,
      doc: "Whether a second API is served, by sequences: `POST /generate` streams from the engine that owns `seq_id` on the hash ring, `GET /route/SEQ` says which one that is, and engines come and go by `POST /register` and `/deregister` (`worker_id`, `address`). Whoever may use the gateway may register, but for keys with a tenant.",
      ...byDefault(false, true),
    },
    prefill: {
      kind: addresses("127.0.0.1:8001", GATEWAY_ENGINES_MAX),
      doc: "Those of `engines` that compute prompts for the others, and answer nobody: a long prompt goes there first where it is answered earlier so, and is then handed over. With `events`, and tierKV on both.",
      ...emptyList("none: each engine computes what it answers", '["127.0.0.1:8001"]'),
    },
    prefill_tokens: {
      kind: integer(1, GATEWAY_PREFILL_TOKENS_MAX, "tokens"),
      doc: "Fewest tokens, of those that are held nowhere, for which that is done.",
      ...byDefault(GATEWAY_PREFILL_TOKENS_DEFAULT),
    },
    ext_proc: {
      kind: tcpOnly("127.0.0.1:9002", 0),
      doc: "Where Envoy asks which engine a request goes to (`ext_proc`, as an endpoint picker of the Gateway API Inference Extension). Other machines only with `lan`: it speaks no TLS.",
      ...optional("none: Envoy is not answered", '"127.0.0.1:9002"'),
    },
    keys: {
      kind: path(PATH_BYTES_MAX),
      doc: "File of mode 0600 with who may use the gateway: lines of `NAME SHA256-OF-THE-KEY`, a tenant behind it where prompts of some keys must share no cached blocks with others, and `requests=N`, `tokens=N` (a minute) and `concurrent=N` where the keys of that name may take no more. A line `* requests=N` says so for names without. The gateway then asks for `Authorization: Bearer KEY`, except at `/health`, and does not pass it on. Read at the start.",
      ...optional("none: everybody who reaches it may", '"/etc/tierkv/gateway-keys"'),
    },
    tls_cert: {
      kind: path(PATH_BYTES_MAX),
      doc: "PEM file with the gateway's certificate: clients then speak TLS 1.3.",
      ...optional("none: plain HTTP", '"/etc/tierkv/gateway.pem"'),
    },
    tls_key: {
      kind: path(PATH_BYTES_MAX),
      doc: "PEM file with its key, mode 0600.",
      ...optional("none", '"/etc/tierkv/gateway-key.pem"'),
    },
    events: {
      kind: addresses("127.0.0.1:5557", GATEWAY_ENGINES_MAX),
      doc: "Where each engine publishes its KV-cache events (`--kv-events-config`), in the order of `engines`: from them the gateway knows which prompts an engine holds.",
      ...emptyList("none: what engines hold is not known", '["127.0.0.1:5557", "127.0.0.1:5567"]'),
    },
    replays: {
      kind: addresses("127.0.0.1:5558", GATEWAY_ENGINES_MAX),
      doc: "Where each engine replays them (`replay_endpoint`), in the same order: what was published before the gateway started, or was lost, is asked for there.",
      ...emptyList(
        "none: after a gap the gateway begins anew with what comes",
        '["127.0.0.1:5558", "127.0.0.1:5568"]',
      ),
    },
    preset: {
      kind: choice(PRESETS),
      doc: "How an engine is chosen. `earliest-token`: the earliest first token, predicted from what waits there, what it holds of the prompt and how fast it computes the rest. `prefix-weighted`: 3 times the share it holds and 2 times its free share of requests. `ring`: by the session (`x-session-id`, else `prompt_cache_key` or `user` of the body) on a hash ring, without one by load. `least-load`: the fewest requests in flight, ties at random. `round-robin`: each in turn.",
      ...optional("`earliest-token` with `events`, else `least-load`", '"least-load"'),
    },
    in_flight_max: {
      kind: integer(1, GATEWAY_IN_FLIGHT_MAX),
      doc: "Requests in flight at one engine; where all engines of a model have so many, requests wait.",
      ...byDefault(GATEWAY_IN_FLIGHT_DEFAULT),
    },
    wait_ms: {
      kind: integer(0, GATEWAY_WAIT_MS_MAX, "ms"),
      doc: "How long a request waits for an engine with room; then it is answered 429 with `Retry-After`.",
      ...byDefault(GATEWAY_WAIT_MS_DEFAULT),
    },
    ttft_ms: {
      kind: integer(1, GATEWAY_WAIT_MS_MAX, "ms"),
      doc: "A request whose first token is predicted to come later than this at every engine is answered 429 with `Retry-After` at once, so that those that were taken stay within it. With presets that look at no prompt, what waits counts alone.",
      ...optional("none: requests are taken while there is room", "2000"),
    },
    objectives: {
      kind: numbered(GATEWAY_OBJECTIVES_MAX, GATEWAY_PRIORITY_MAX),
      doc: "Priorities by the header `x-gateway-inference-objective`; others have 0. Where requests wait for room, a higher one goes first. With `ttft_ms`, one below 0 is shed at half of it. Clients name their objective themselves.",
      fallback: () => new Map(),
      fallbackText: "none: all requests have priority 0",
      example: '["chat=10", "batch=-1"]',
    },
    tokenize_ms: {
      kind: integer(0, GATEWAY_WAIT_MS_MAX, "ms"),
      doc: "How long turning a prompt into tokens, here or by an engine's `/tokenize`, may hold a request, where a preset wants to know what is held of its prompt; past it the choice is made by load.",
      ...byDefault(GATEWAY_TOKENIZE_MS),
    },
    lookup_ms: {
      kind: integer(0, GATEWAY_LOOKUP_MS_MAX, "ms"),
      doc: "How long a choice waits for what the vaults in `[cluster]` hold of a prompt that no engine is known to hold; later answers are for the next one. 0: vaults are not asked.",
      ...byDefault(GATEWAY_LOOKUP_MS_DEFAULT),
    },
    tokenizers: {
      kind: folders(GATEWAY_TOKENIZERS_MAX, PATH_BYTES_MAX),
      doc: "Folders with `tokenizer.json`, `tokenizer_config.json` and the chat template of models, by the name that requests have: their prompts become tokens in the gateway, once it made the same of some texts as the engine's `/tokenize`. What differs, or cannot be rendered here, the engine is asked for.",
      fallback: () => new Map(),
      fallbackText:
        "the folder that an engine serves a model from, where the gateway can read it; else the engine is asked",
      example: '["meta-llama/Llama-3.3-70B-Instruct=/models/llama-3.3-70b"]',
    },
    socket: {
      kind: path(SIDECAR_SOCKET_BYTES_MAX),
      doc: "The Unix socket on which this user's `tierkv gateway status`, and `drain`, reach the gateway.",
      fallback: (env) => ownSocket("gateway", env),
      fallbackText:
        "`$XDG_RUNTIME_DIR/tierkv/gateway.sock` where that directory exists, else `/tmp/tierkv-<uid>/gateway.sock`",
      example: '"/run/tierkv/gateway.sock"',
    },
    index_file: {
      kind: path(PATH_BYTES_MAX),
      doc: "Where what engines hold is saved every minute and at the end, so that a gateway that starts anew knows it. An engine's part is believed only where its replay begins with the batch that was heard last; else it is dropped.",
      fallback: (env) => join(stateDir(env), "gateway.index"),
      fallbackText:
        "`gateway.index` in `$STATE_DIRECTORY` (systemd), else in `$XDG_STATE_HOME/tierkv`, else in `~/.local/state/tierkv`",
      example: '"/var/lib/tierkv/gateway.index"',
    },
  },
};
