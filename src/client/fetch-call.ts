// Owns one Fetch call of a client: every chunk to the ledger, and one end.
import type { FetchChunk, FetchPlan } from "../wire/messages.ts";
import { vaultService } from "../wire/service.ts";
import type { CallOptions, VaultChannel } from "./channel.ts";
import type { FetchLedger } from "./fetch-ledger.ts";

/** Resolves when the vault has sent all it will. Rejects with a raw gRPC error, or with what the ledger's sink threw. */
export function runFetch(
  channel: VaultChannel,
  plan: FetchPlan,
  ledger: FetchLedger,
  options: CallOptions & { firstItem: number; onProgress(): void },
): Promise<void> {
  return new Promise((resolve, reject) => {
    const { signal, firstItem, onProgress } = options;
    const call = channel.serverStream(vaultService.Fetch, plan, options);
    let failure: Error | null = null;
    call.on("data", (message: FetchChunk) => {
      onProgress();
      try {
        for (const piece of message.chunk?.pieces ?? []) {
          // What was under way when the call was cancelled still arrives.
          if (failure !== null || signal.aborted) return;
          ledger.take(piece, firstItem);
        }
      } catch (error) {
        failure = error as Error;
        call.cancel();
      }
    });
    call.on("error", (error) => {
      failure ??= signal.aborted ? (signal.reason as Error) : error;
      reject(failure);
    });
    call.on("end", () => {
      if (failure === null) resolve();
    });
  });
}
