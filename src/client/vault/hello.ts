// Owns a client's hello to a vault, and the checks of the reply before any other call.
import { hostname } from "node:os";
import { vaultClassName } from "../../base/block.ts";
import type { RecordClass } from "../../base/block.ts";
import { TierkvError } from "../../base/errors.ts";
import { HELLO_TIMEOUT_MS, PROTOCOL_MAX, PROTOCOL_MIN } from "../../base/limits/general.ts";
import { coreInfo } from "../../base/native.ts";
import type { LaneRail } from "../../base/native.ts";
import type { HelloReply, HelloRequest } from "../../wire/messages.ts";
import type { ChannelSecurity } from "../../wire/security.ts";
import { vaultService } from "../../wire/service.ts";
import type { CallContext } from "../../wire/status.ts";
import { VaultChannel } from "./channel.ts";

/** Look-ups are split at multiples of eight keys, because their bitmaps are joined bytewise. */
const KEYS_STEP = 8;

/** Returns the request; `flushed`: number of the last flush that this client knows, 0: none. */
export function helloRequest(name: RecordClass, flushed = 0): HelloRequest {
  return {
    protocolMin: PROTOCOL_MIN,
    protocolMax: PROTOCOL_MAX,
    clientVersion: coreInfo().version,
    clientName: `${hostname()} (client of its ${name} vault)`,
    flushed,
  };
}

/** Returns whether the vault of this epoch answers on a rail, with the trusted certificate. */
export async function isAt(
  { address, local }: LaneRail,
  { name, security }: { name: RecordClass; security?: ChannelSecurity | null },
  flushed: number,
  epoch: number | null,
): Promise<boolean> {
  const channel = new VaultChannel(address, security, local);
  const options = { timeoutMs: HELLO_TIMEOUT_MS, signal: new AbortController().signal };
  try {
    const request = helloRequest(name, flushed);
    const reply = await channel.unary(vaultService.Hello, request, options);
    return reply.epoch === epoch;
  } catch {
    return false;
  } finally {
    channel.close();
  }
}

/** Returns the reply with its limits made safe to use. Throws VERSION_MISMATCH, VAULT_CLASS or VAULT_BROKEN. */
export function checkHello(reply: HelloReply, name: RecordClass, context: CallContext): HelloReply {
  const peer = `the ${name} vault at ${context.address} (version ${reply.version})`;
  if (reply.protocol < PROTOCOL_MIN || reply.protocol > PROTOCOL_MAX) {
    throw new TierkvError("VERSION_MISMATCH", {
      peer,
      theirs: `protocol ${reply.protocol}`,
      ours: `protocols ${PROTOCOL_MIN} to ${PROTOCOL_MAX}`,
    });
  }
  const { recordVersion } = coreInfo();
  if (reply.recordVersion !== recordVersion) {
    throw new TierkvError("VERSION_MISMATCH", {
      peer,
      theirs: `record version ${reply.recordVersion}`,
      ours: `record version ${recordVersion}`,
    });
  }
  if (reply.maxKeys < KEYS_STEP || reply.maxRecordBytes < 1) {
    const reason = `limits of ${reply.maxKeys} keys and ${reply.maxRecordBytes} record bytes are too small to use`;
    throw new TierkvError("VAULT_BROKEN", { ...context, reason });
  }
  checkHelloClass(reply, name, context);
  return { ...reply, maxKeys: reply.maxKeys - (reply.maxKeys % KEYS_STEP) };
}

function checkHelloClass(reply: HelloReply, name: RecordClass, context: CallContext): void {
  const { recordClass } = reply;
  if (![0, 1, 2].includes(recordClass)) {
    const reason = `record class ${recordClass}: expected 0 (both), 1 (kv) or 2 (ssm)`;
    throw new TierkvError("VAULT_BROKEN", { ...context, reason });
  }
  const actual = vaultClassName(recordClass);
  if (actual === name || actual === "both") return;
  throw new TierkvError("VAULT_CLASS", {
    address: context.address,
    name,
    actual,
    fix: `set [cluster] ${name}_cold to a vault started with role = "${name}_cold" or "cold"`,
  });
}
