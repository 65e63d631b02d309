// Owns peers for lane tests: pages in an arena to store and land, hand-made lanes, and a vault behind a relay.
import type { Socket } from "node:net";
import { Arena, SIDECAR_OWNER } from "../../src/arena/arena.ts";
import { packKeys } from "../../src/base/block.ts";
import type { GeometryId } from "../../src/base/native.ts";
import { encodeSlots } from "../../src/base/native.ts";
import type { StoreItem } from "../../src/client/source.ts";
import type { FetchWindow } from "../../src/client/source.ts";
import { OutboxRecord } from "../../src/codec/record.ts";
import type { HelloReply } from "../../src/wire/messages.ts";
import { openFakeVault } from "./fake-vault.ts";
import type { FakeHello } from "./fake-vault.ts";
import { crc32c, readSlot, writeSlot } from "./native.ts";
import { digest, NAMESPACE, noise } from "./records.ts";
import { registerOpaque } from "./slots.ts";
import { relayTo } from "./tcp-relay.ts";
import type { Relay } from "./tcp-relay.ts";
import { closeAfterTest, openClient, SOON_MS, until } from "./vaults.ts";
import type { TestVault } from "./vaults.ts";

/** `count` blocks in an arena, with as many slots to land in. */
export class Pages {
  readonly #arena: Arena;
  readonly #geometry: GeometryId;
  readonly #leases: Uint32Array;
  readonly keys: Buffer;
  readonly count: number;
  readonly bytes: number;

  static async open(count: number, bytes: number): Promise<Pages> {
    const arena = closeAfterTest(new Arena({ slotBytes: bytes, slotCount: count * 2, dir: null }));
    await until(() => arena.status().touchedSlots === count * 2, "a touched arena");
    return new Pages(arena, count, bytes);
  }

  private constructor(arena: Arena, count: number, bytes: number) {
    this.#arena = arena;
    this.count = count;
    this.bytes = bytes;
    this.#leases = arena.lease(SIDECAR_OWNER, count * 2);
    const hashes = Array.from({ length: count }, (_, index) => digest(`block ${index}`));
    this.keys = packKeys(Buffer.concat(hashes), 0, 0);
    for (let index = 0; index < count; index += 1) {
      writeSlot(arena.id, this.#leases[index * 2]!, noise(bytes, index));
    }
    this.#geometry = registerOpaque(bytes);
  }

  /** Encodes all blocks into the native outbox; dropped after the test. */
  encode(): StoreItem[] {
    const items = Array.from({ length: this.count }, (_, index) => ({
      slot: this.#leases[index * 2]!,
      generation: this.#leases[index * 2 + 1]!,
      shard: 0,
      shardCount: 1,
      endTokens: 16 * (index + 1),
      blockHash: digest(`block ${index}`),
      parentHash: Buffer.alloc(32),
    }));
    const pairs = encodeSlots(this.#arena.id, this.#geometry, 0, 0, NAMESPACE, items);
    return items.map(({ blockHash }, index) => {
      const record = new OutboxRecord(pairs[index * 2]!, pairs[index * 2 + 1]!, null);
      closeAfterTest({ close: () => record.drop() });
      return { key: packKeys(blockHash, 0, 0), record };
    });
  }

  /** Plans all blocks into the other slots. */
  plan(): FetchWindow {
    return {
      arena: this.#arena.id,
      fidelity: 0,
      keys: this.keys,
      geometries: new Uint32Array(this.count).fill(this.#geometry),
      leases: this.#leases.subarray(this.count * 2),
    };
  }

  /** Returns the fetched page of block `index`. */
  fetched(index: number): Buffer {
    return readSlot(this.#arena.id, this.#leases[(this.count + index) * 2]!);
  }
}

const FRAME_BYTES = 40;
const TOKEN_BYTES = 32;

/** Makes a frame from a vault: welcome is kind 2, found 4. */
function frame(kind: number, request = 0, body: Buffer = Buffer.alloc(0), code = 0): Buffer {
  const header = Buffer.alloc(FRAME_BYTES);
  header.write("TKVL\u0002", "latin1");
  header[5] = kind;
  header.writeUInt16LE(code, 6);
  header.writeUInt32LE(request, 8);
  header.writeUInt32LE(body.length, 32);
  header.writeUInt32LE(crc32c(header.subarray(0, 36)), 36);
  return Buffer.concat([header, body]);
}

const LOOKUP = 3;

/** Handler for `lanePeer`: answers look-ups with the same bits for all, and ignores everything else. */
export function onlyLookups(bits: number): (socket: Socket, data: Buffer) => void {
  const rests = new Map<Socket, Buffer>();
  return (socket, data) => {
    let rest = Buffer.concat([rests.get(socket) ?? Buffer.alloc(0), data]);
    while (rest.length >= FRAME_BYTES) {
      const end = FRAME_BYTES + rest.readUInt32LE(32);
      if (rest.length < end) break;
      const keys = (end - FRAME_BYTES - 32) / 36;
      if (rest[5] === LOOKUP)
        socket.write(frame(4, rest.readUInt32LE(8), Buffer.alloc(Math.ceil(keys / 8), bits)));
      rest = rest.subarray(end);
    }
    rests.set(socket, rest);
  };
}

/** Hook for a fake vault: takes lanes, welcomes each, and passes on later data. */
export function lanePeer(
  onData: (socket: Socket, data: Buffer) => void,
): Required<Pick<FakeHello, "laneToken" | "onLane">> {
  const onLane = (socket: Socket): void => {
    let got = 0;
    socket.on("data", (data) => {
      if (got < FRAME_BYTES + TOKEN_BYTES && got + data.length >= FRAME_BYTES + TOKEN_BYTES) {
        socket.write(frame(2));
      } else if (got >= FRAME_BYTES + TOKEN_BYTES) {
        onData(socket, data);
      }
      got += data.length;
    });
    socket.resume();
  };
  return { onLane, laneToken: Buffer.alloc(TOKEN_BYTES, 1) };
}

/**
 * Opens a front of `vault` whose lanes pass a relay that can be cut or throttled. The front answers look-ups itself:
 * nothing is held.
 */
export async function openFront(
  vault: TestVault,
  slow?: { bytesPerTick: number },
): Promise<{ address: string; relay: Relay }> {
  const inner = openClient(vault);
  // The front's own hello takes the first token.
  await inner.hello(SOON_MS);
  const relay = relayTo(vault, slow);
  // Fetches a new token for each hello.
  const answer = async (done: (error: null, reply: HelloReply) => void): Promise<void> => {
    const reply = await inner.hello(SOON_MS);
    done(null, reply);
  };
  const handlers = {
    Hello: (_call: unknown, done: (error: null, reply: HelloReply) => void): void =>
      void answer(done),
    Lookup: (
      { request }: { request: { keys: Buffer } },
      done: (error: null, reply: unknown) => void,
    ): void => done(null, { present: Buffer.alloc(Math.ceil(request.keys.length / 36 / 8)) }),
  };
  const front = await openFakeVault(handlers, { onLane: relay.adopt });
  return { address: front.address, relay };
}
