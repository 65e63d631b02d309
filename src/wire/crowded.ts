// Owns the look at a message before anything is made of it: millions of empty parts fit the size limit, and would hold the event loop for seconds.
import type { MethodDefinition } from "@grpc/grpc-js";
import { PACKED_KEY_BYTES } from "../block.ts";
import { KEYS_MAX } from "../limits.ts";
import { vaultService } from "./service.ts";
import type { VaultService } from "./service.ts";

/** Fields of one message that are no parts, rounded up. */
const OTHER_FIELDS_MAX = 8;
const NOTHING = Buffer.alloc(0);

/** How a field is written. */
const WIRE = { varint: 0, fixed64: 1, bytes: 2, fixed32: 5 } as const;

/** Fields of StoreRequest. */
const OFFER = 1;
const CHUNK = 2;

/** What a vault serves. Of a message with too many parts nothing is read, and `crowd` says which: no honest one has more parts than keys. */
export function boundedVaultService(): VaultService {
  const { Fetch, Store } = vaultService;
  return {
    ...vaultService,
    Fetch: bounded(Fetch, (bytes) => (isCrowded(bytes) ? "segments of one Fetch" : null)),
    Store: bounded(Store, crowdOfStore),
  };
}

function bounded<Request, Reply>(
  method: MethodDefinition<Request, Reply>,
  crowdOf: (bytes: Buffer) => string | null,
): MethodDefinition<Request, Reply> {
  const requestDeserialize = (bytes: Buffer): Request => {
    const crowd = crowdOf(bytes);
    if (crowd === null) return method.requestDeserialize(bytes);
    return { ...method.requestDeserialize(NOTHING), crowd };
  };
  return { ...method, requestDeserialize };
}

function crowdOfStore(bytes: Buffer): string | null {
  if (isCrowded(bytes)) return "parts of one Store message";
  for (const { number, body } of fieldsOf(bytes)) {
    if (number === CHUNK && isCrowded(body)) return "pieces of one chunk";
    // Lengths may be packed, so that they are no fields: keys and lengths of a full offer take no more than this.
    if (number === OFFER && (isCrowded(body) || body.length > 2 * KEYS_MAX * PACKED_KEY_BYTES)) {
      return "keys or lengths of one offer";
    }
  }
  return null;
}

function isCrowded(bytes: Buffer): boolean {
  const fields = fieldsOf(bytes);
  for (let count = 0; count <= KEYS_MAX + OTHER_FIELDS_MAX; count += 1) {
    if (fields.next().done === true) return false;
  }
  return true;
}

/** The fields of an encoded message as far as it is well formed; what is wrong with the rest its decoder says. */
function* fieldsOf(bytes: Buffer): Generator<{ number: number; body: Buffer }> {
  let at = 0;
  const varint = (): number => {
    let value = 0;
    for (let scale = 1; at < bytes.length; scale *= 128) {
      const byte = bytes[at] ?? 0;
      at += 1;
      value += (byte & 0x7f) * scale;
      if (byte < 0x80) break;
    }
    return value;
  };
  while (at < bytes.length) {
    const tag = varint();
    const kind = tag % 8;
    let length = 0;
    if (kind === WIRE.varint) varint();
    else if (kind === WIRE.fixed64) length = 8;
    else if (kind === WIRE.fixed32) length = 4;
    else if (kind === WIRE.bytes) length = varint();
    // A group: whatever it has in it is a field of its own here, too.
    const body = bytes.subarray(at, at + length);
    at += length;
    yield { number: Math.floor(tag / 8), body };
  }
}
