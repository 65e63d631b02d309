// Owns the health answers of a vault: serving from start to drain, for the server as a whole and for the vault service.
import type { handleServerStreamingCall, handleUnaryCall } from "@grpc/grpc-js";
import { status as GrpcStatus } from "@grpc/grpc-js";
import type { HealthCheckRequest, HealthCheckResponse } from "../../wire/messages.ts";
import { ServingStatus } from "../../wire/messages.ts";
import { VAULT_SERVICE_NAME } from "../../wire/service.ts";
import { toGrpcStatus } from "../../wire/status.ts";
import type { OpenStream, OpenStreams } from "../state/streams.ts";

export class Health {
  readonly #streams: OpenStreams;
  readonly #onStop = new Set<() => void>();
  #isServing = true;

  constructor(streams: OpenStreams) {
    this.#streams = streams;
  }

  readonly check: handleUnaryCall<HealthCheckRequest, HealthCheckResponse> = (call, callback) => {
    const status = this.#statusOf(call.request.service);
    if (status === ServingStatus.SERVICE_UNKNOWN) {
      const details = `unknown service ${call.request.service.slice(0, 100)}`;
      callback({ code: GrpcStatus.NOT_FOUND, details });
    } else {
      callback(null, { status });
    }
  };

  readonly watch: handleServerStreamingCall<HealthCheckRequest, HealthCheckResponse> = (call) => {
    let stream: OpenStream;
    try {
      stream = this.#streams.open(call, "Watch");
    } catch (error) {
      call.emit("error", toGrpcStatus(error));
      return;
    }
    const { service } = call.request;
    const end = (): void => {
      if (!this.#onStop.delete(stop)) return;
      stream.end();
      call.end();
    };
    const stop = (): void => {
      call.write({ status: this.#statusOf(service) });
      end();
    };
    this.#onStop.add(stop);
    stream.signal.addEventListener("abort", end, { once: true });
    call.write({ status: this.#statusOf(service) });
  };

  /** Reports NOT_SERVING from now on; watchers are told and their calls end. */
  stop(): void {
    this.#isServing = false;
    for (const stop of this.#onStop) stop();
  }

  #statusOf(service: string): number {
    if (service !== "" && service !== VAULT_SERVICE_NAME) return ServingStatus.SERVICE_UNKNOWN;
    return this.#isServing ? ServingStatus.SERVING : ServingStatus.NOT_SERVING;
  }
}
