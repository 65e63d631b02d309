// Owns a gRPC server that answers hello like a vault and everything else as a test says: peers that break the protocol.
import { Server, ServerCredentials } from "@grpc/grpc-js";
import type { UntypedServiceImplementation } from "@grpc/grpc-js";
import { KEYS_MAX } from "../../src/limits.ts";
import type { HelloReply, Piece } from "../../src/wire/messages.ts";
import { vaultService } from "../../src/wire/service.ts";
import { closeAfterTest } from "./vaults.ts";

export const HELLO: HelloReply = {
  protocol: 1,
  version: "9.9.9",
  recordVersion: 1,
  recordClass: 1,
  epoch: 1,
  maxRecordBytes: 1_000_000,
  maxChunkBytes: 1_000_000,
  maxKeys: KEYS_MAX,
  laneAddress: "",
  laneToken: Buffer.alloc(0),
  readOnly: false,
};

export async function openFakeVault(
  handlers: UntypedServiceImplementation,
  hello: Partial<HelloReply> = {},
): Promise<{ address: string }> {
  const server = new Server();
  const answerHello = (_call: unknown, done: (error: null, reply: HelloReply) => void): void =>
    done(null, { ...HELLO, ...hello });
  server.addService({ ...vaultService }, { Hello: answerHello, ...handlers });
  const port = await new Promise<number>((resolve, reject) => {
    server.bindAsync("127.0.0.1:0", ServerCredentials.createInsecure(), (error, bound) => {
      if (error === null) resolve(bound);
      else reject(error);
    });
  });
  return closeAfterTest({
    address: `127.0.0.1:${port}`,
    close: () => {
      server.forceShutdown();
    },
  });
}

/** A Fetch that sends these pieces, one chunk each, and ends well. */
export function sends(...pieces: Piece[]): UntypedServiceImplementation {
  return {
    Fetch: (call: { write(message: unknown): void; end(): void }) => {
      for (const piece of pieces) call.write({ chunk: { pieces: [piece] } });
      call.end();
    },
  };
}
