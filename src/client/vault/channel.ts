// Owns one gRPC channel to a vault: calls as promises, each with a deadline and a signal.
import { Client, connectivityState } from "@grpc/grpc-js";
import type { ClientUnaryCall, MethodDefinition } from "@grpc/grpc-js";
import { wallClockMs } from "../../base/time.ts";
import { targetFrom } from "../../wire/from-address.ts";
import { channelOptions } from "../../wire/options.ts";
import { callMetadata, channelCredentials, securityOptions } from "../../wire/security.ts";
import type { ChannelSecurity } from "../../wire/security.ts";

export interface CallOptions {
  timeoutMs: number;
  /** Cancels the call; its reason becomes the error. */
  signal: AbortSignal;
}

export class VaultChannel {
  readonly #client: Client;
  readonly #security: ChannelSecurity | null;
  readonly #calls = new Set<ClientUnaryCall>();

  #isClosing = false;

  /**
   * Connects with the first call. `address` is `host:port` or `unix:/path`; `security` null: in the clear; `local`: this machine's
   * address to connect from.
   */
  constructor(address: string, security: ChannelSecurity | null = null, local?: string) {
    const options = { ...channelOptions(), ...securityOptions(security) };
    const target = local === undefined ? address : targetFrom(address, local);
    this.#client = new Client(target, channelCredentials(security), options);
    this.#security = security;
  }

  unary<Request, Reply>(
    method: MethodDefinition<Request, Reply>,
    request: Request,
    options: CallOptions,
  ): Promise<Reply> {
    return new Promise((resolve, reject) => {
      const { signal } = options;
      const cancel = (): void => call.cancel();
      const call = this.#client.makeUnaryRequest(
        method.path,
        method.requestSerialize,
        method.responseDeserialize,
        request,
        callMetadata(this.#security),
        deadlineOf(options),
        (error, reply) => {
          signal.removeEventListener("abort", cancel);
          this.#calls.delete(call);
          this.#closeIdle();
          if (error === null && reply !== undefined) resolve(reply);
          else reject(signal.aborted ? (signal.reason as Error) : (error ?? new Error("no reply")));
        },
      );
      this.#calls.add(call);
      cancelOn(signal, cancel);
    });
  }

  /** Calls back once, when the present connection is gone; at once when none is up. */
  onceDisconnected(listener: () => void): void {
    const channel = this.#client.getChannel();
    if (channel.getConnectivityState(false) !== connectivityState.READY) {
      listener();
      return;
    }
    channel.watchConnectivityState(connectivityState.READY, Infinity, listener);
  }

  /** Closes the channel; calls under way fail. */
  cut(): void {
    for (const call of this.#calls) call.cancel();
    this.#client.close();
  }

  /** Closes after the calls under way, because an earlier farewell would refuse requests the vault has not read yet. */
  close(): void {
    this.#isClosing = true;
    this.#closeIdle();
  }

  #closeIdle(): void {
    if (this.#isClosing && this.#calls.size === 0) this.#client.close();
  }
}

function deadlineOf({ timeoutMs }: CallOptions): { deadline: number } {
  return { deadline: wallClockMs() + timeoutMs };
}

function cancelOn(signal: AbortSignal, cancel: () => void): void {
  if (signal.aborted) cancel();
  else signal.addEventListener("abort", cancel, { once: true });
}
