// Owns a single call to a vault on its own connection, for commands that ask once.
import type { MethodDefinition } from "@grpc/grpc-js";
import type { ChannelSecurity } from "../../wire/security.ts";
import { fromGrpcError } from "../../wire/status.ts";
import { VaultChannel } from "./channel.ts";

export interface Asked {
  /** Name of the vault, for people. */
  name: string;
  address: string;
  security: ChannelSecurity | null;
  timeoutMs: number;
}

/** Rejects with the coded errors of calls to a vault. */
export async function askOnce<Request, Reply>(
  { name, address, security, timeoutMs }: Asked,
  method: MethodDefinition<Request, Reply>,
  request: Request,
  signal: AbortSignal = new AbortController().signal,
): Promise<Reply> {
  const channel = new VaultChannel(address, security);
  try {
    return await channel.unary(method, request, { timeoutMs, signal });
  } catch (error) {
    const call = method.path.slice(method.path.lastIndexOf("/") + 1);
    const way = security === null ? "clear" : "tls";
    throw fromGrpcError(error, { name, address, call, timeoutMs, way });
  } finally {
    channel.close();
  }
}
