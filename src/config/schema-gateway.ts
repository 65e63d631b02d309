// Owns the keys of the gateway. Part of the table in schema.ts.
import {
  GATEWAY_ENGINES_MAX,
  GATEWAY_IN_FLIGHT_DEFAULT,
  GATEWAY_IN_FLIGHT_MAX,
  GATEWAY_WAIT_MS_DEFAULT,
  GATEWAY_WAIT_MS_MAX,
} from "../limits-gateway.ts";
import { SIDECAR_SOCKET_BYTES_MAX } from "../limits.ts";
import { PRESETS } from "./config.ts";
import type { GatewayConfig } from "./config.ts";
import type { Field } from "./field.ts";
import { addresses, boolean, choice, integer, path, tcpOnly } from "./kinds.ts";
import { ownSocket } from "./own-socket.ts";

const LISTEN = { host: "127.0.0.1", port: 8100, text: "127.0.0.1:8100" };

export const GATEWAY: {
  doc: string;
  fields: {
    listen: Field<GatewayConfig["listen"]>;
    lan: Field<GatewayConfig["lan"]>;
    engines: Field<GatewayConfig["engines"]>;
    preset: Field<GatewayConfig["preset"]>;
    in_flight_max: Field<GatewayConfig["inFlightMax"]>;
    wait_ms: Field<GatewayConfig["waitMs"]>;
    socket: Field<GatewayConfig["socket"]>;
  };
} = {
  doc: "The gateway (`tierkv gateway`): one OpenAI address before several engines.",
  fields: {
    listen: {
      kind: tcpOnly("127.0.0.1:8100", 0),
      doc: "Where clients send their requests; `/health` and `/metrics` answer there, too. Plain HTTP.",
      fallback: () => LISTEN,
      fallbackText: `\`"${LISTEN.text}"\``,
      example: '"127.0.0.1:8100"',
    },
    lan: {
      kind: boolean,
      doc: "Whether `listen` may be an address that other machines reach. The gateway asks for no key of its own and passes `Authorization` on: engines with `--api-key` check it.",
      fallback: () => false,
      fallbackText: "`false`",
      example: "true",
    },
    engines: {
      kind: addresses("127.0.0.1:8000", GATEWAY_ENGINES_MAX),
      doc: "The engines, as `vllm serve` listens. Which models each one serves, it is asked.",
      fallback: () => [],
      fallbackText: "none: `tierkv gateway` says so and ends",
      example: '["127.0.0.1:8000", "127.0.0.1:8001"]',
    },
    preset: {
      kind: choice(PRESETS),
      doc: "How an engine is chosen. `least-load`: the fewest requests in flight, ties at random. `round-robin`: each in turn.",
      fallback: () => "least-load",
      fallbackText: '`"least-load"`',
      example: '"least-load"',
    },
    in_flight_max: {
      kind: integer(1, GATEWAY_IN_FLIGHT_MAX),
      doc: "Requests in flight at one engine; where all engines of a model have so many, requests wait.",
      fallback: () => GATEWAY_IN_FLIGHT_DEFAULT,
      fallbackText: `\`${GATEWAY_IN_FLIGHT_DEFAULT}\``,
      example: String(GATEWAY_IN_FLIGHT_DEFAULT),
    },
    wait_ms: {
      kind: integer(0, GATEWAY_WAIT_MS_MAX, "ms"),
      doc: "How long a request waits for an engine with room; then it is answered 429 with `Retry-After`.",
      fallback: () => GATEWAY_WAIT_MS_DEFAULT,
      fallbackText: `\`${GATEWAY_WAIT_MS_DEFAULT}\``,
      example: String(GATEWAY_WAIT_MS_DEFAULT),
    },
    socket: {
      kind: path(SIDECAR_SOCKET_BYTES_MAX),
      doc: "The Unix socket on which this user's `tierkv gateway status`, and `drain`, reach the gateway.",
      fallback: (env) => ownSocket("gateway", env),
      fallbackText:
        "`$XDG_RUNTIME_DIR/tierkv/gateway.sock` where that directory exists, else `/tmp/tierkv-<uid>/gateway.sock`",
      example: '"/run/tierkv/gateway.sock"',
    },
  },
};
