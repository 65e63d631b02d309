// Owns a gRPC server that answers hello like a vault and everything else as the test says, to break the protocol.
import { once } from "node:events";
import { createServer } from "node:net";
import type { AddressInfo, Socket } from "node:net";
import { Server, ServerCredentials } from "@grpc/grpc-js";
import type { UntypedServiceImplementation } from "@grpc/grpc-js";
import { KEYS_MAX } from "../../src/base/limits/general.ts";
import type { HelloReply } from "../../src/wire/messages.ts";
import { vaultService } from "../../src/wire/service.ts";
import { closeAfterTest } from "./vaults.ts";

export const HELLO: HelloReply = {
  protocol: 1,
  version: "9.9.9",
  recordVersion: 1,
  recordClass: 1,
  epoch: 1,
  maxRecordBytes: 1_000_000,
  maxKeys: KEYS_MAX,
  laneToken: Buffer.alloc(0),
  readOnly: false,
  flushes: null,
  capacityBytes: 0,
  draining: false,
  addresses: [],
  traced: false,
};

/** A hello, and a handler for incoming lanes. */
export interface FakeHello extends Partial<HelloReply> {
  onLane?: (socket: Socket) => void;
}

const LANE_MAGIC = "TKVL";

export async function openFakeVault(
  handlers: UntypedServiceImplementation,
  { onLane, ...hello }: FakeHello = {},
): Promise<{ address: string }> {
  const server = new Server();
  const answerHello = (_call: unknown, done: (error: null, reply: HelloReply) => void): void =>
    done(null, { ...HELLO, ...hello });
  server.addService({ ...vaultService }, { Hello: answerHello, ...handlers });
  const injector = server.createConnectionInjector(ServerCredentials.createInsecure());
  const sockets = new Set<Socket>();
  const listener = createServer((socket) => {
    sockets.add(socket);
    socket.on("error", () => {});
    socket.once("data", (first: Buffer) => {
      socket.pause();
      socket.unshift(first);
      if (!first.subarray(0, LANE_MAGIC.length).equals(Buffer.from(LANE_MAGIC)))
        injector.injectConnection(socket);
      else if (onLane === undefined) socket.destroy();
      else onLane(socket);
    });
  });
  listener.listen(0, "127.0.0.1");
  await once(listener, "listening");
  return closeAfterTest({
    address: `127.0.0.1:${(listener.address() as AddressInfo).port}`,
    close: () => {
      listener.close();
      server.forceShutdown();
      for (const socket of sockets) socket.destroy();
    },
  });
}
