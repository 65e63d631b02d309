// Owns a Unix socket into a vault for its own user, open also while other clients are not served.
import type { Socket } from "node:net";
import { ServerCredentials } from "@grpc/grpc-js";
import type { Running } from "../base/lifecycle.ts";
import { ConnectionActivity } from "./access/connection-activity.ts";
import { VaultListener } from "./access/listener.ts";
import type { VaultContext } from "./calls/context.ts";
import { Health } from "./calls/health.ts";
import { newServer } from "./calls/services.ts";
import { OpenStreams } from "./state/streams.ts";

/** Serves the same records and lists over connections of its own. */
export async function openDoor(vault: VaultContext, path: string): Promise<Running> {
  const streams = new OpenStreams();
  const own: VaultContext = { ...vault, gate: null, listener: null, spans: null, streams };
  const health = new Health(streams);
  const activity = new ConnectionActivity(
    (peer) => own.listener?.settle(peer) === true,
    () => {},
  );
  const server = newServer(own, health, activity, null);
  const injector = server.createConnectionInjector(ServerCredentials.createInsecure());
  const onSocket = (socket: Socket): void => {
    activity.watch(socket);
    injector.injectConnection(socket);
  };
  const at = { host: "", port: 0, text: `unix:${path}` };
  const listener = await VaultListener.open(at, {
    ...own,
    traces: false,
    onSocket,
    security: null,
  });
  own.listener = listener;
  return {
    async close(): Promise<void> {
      health.stop();
      await listener.stop();
      server.forceShutdown();
      activity.close();
      listener.close();
    },
  };
}
