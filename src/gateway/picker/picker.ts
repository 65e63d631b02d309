// Owns the address at which Envoy asks for an engine: the endpoint picker of the Gateway API Inference Extension.
import { Server, ServerCredentials } from "@grpc/grpc-js";
import { TierkvError } from "../../base/errors.ts";
import { splitAddress } from "../../base/hosts.ts";
import type { Running } from "../../base/lifecycle.ts";
import { GATEWAY_CONNECTIONS_MAX } from "../../base/limits/gateway.ts";
import { extProcService } from "../../wire/ext-proc.ts";
import { serverOptions } from "../../wire/options.ts";
import type { Leaving } from "../front/leaving.ts";
import { Exchange } from "./exchange.ts";
import type { Call, Picking } from "./exchange.ts";

export interface RunningPicker extends Running {
  /** `host:port`, with the real port. */
  readonly address: string;
}

/** Serves until closed; requests under way then have `drain_ms` to end. Throws LISTEN_FAILED. */
export async function startPicker(
  listen: string,
  picking: Picking,
  leaving: Leaving,
): Promise<RunningPicker> {
  let open = 0;
  const server = new Server({
    ...serverOptions(),
    "grpc.max_concurrent_streams": GATEWAY_CONNECTIONS_MAX,
  });
  server.addService(
    { Process: extProcService.Process },
    {
      Process: (call: Call) => {
        open += 1;
        void new Exchange(call, picking, () => (open -= 1));
      },
    },
  );
  const port = await bound(server, listen);
  const { host } = splitAddress(listen);
  return {
    address: `${host.includes(":") ? `[${host}]` : host}:${port}`,
    close: () => closed(server, leaving, () => open),
  };
}

function bound(server: Server, listen: string): Promise<number> {
  return new Promise((resolve, reject) => {
    server.bindAsync(listen, ServerCredentials.createInsecure(), (error, port) => {
      if (error === null) return resolve(port);
      const fix = "set --ext-proc to a free address of this machine";
      const given = { address: listen, reason: error.message, fix };
      reject(new TierkvError("LISTEN_FAILED", given, { cause: error }));
    });
  });
}

function closed(server: Server, leaving: Leaving, open: () => number): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(() => {
      leaving.cutCount(open(), { of: "Envoy" });
      server.forceShutdown();
    }, leaving.drainMs);
    server.tryShutdown(() => {
      clearTimeout(timer);
      resolve();
    });
  });
}
