// Owns the figures of small requests: 2,000 keys by lane, gRPC and sidecar, one block by a sidecar, and a round trip to it.
import { once } from "node:events";
import { connect } from "node:net";
import { countBits } from "../dist/base/block.js";
import { createLogger } from "../dist/base/log.js";
import { VaultClient } from "../dist/client/vault/vault-client.js";
import { SidecarLink } from "../dist/control/sidecar-link.js";
import { ALGORITHMS } from "../dist/gateway/hashes/forms.js";
import { encodeFrame, FrameDecoder } from "../dist/sidecar/socket/frames.js";
import { LOCAL_PROTOCOL } from "../dist/sidecar/socket/hello.js";
import { chain, digest, records, storeAll } from "./lib/blocks.js";
import { describe, interleaved, quantile, timed } from "./lib/figures.js";
import { AskingGateway } from "./lib/gateway-lookups.js";
import { attentionGroup, Shim } from "./lib/shim.js";
import { Stand } from "./lib/stand.js";
import { saveAll, touchAll } from "./lib/whole-way.js";

const MIB = 2 ** 20;
const KEYS = 2000;
/** Tokens of a prompt, in blocks of 16. */
const PROMPT_TOKENS = 8192;
const CALL_MS = 10_000;
const WARM_UP = 100;
/** Blocks of 256 KiB, more of them than the arena keeps. */
const GROUP = attentionGroup({ tokens: 16, layers: 4, heads: 8, dim: 128 });
const BLOCKS = 256;
const SAVED_AT_ONCE = 16;
const PING = { t: "ping", n: 0 };
const NAMESPACE = digest("bench lookup");
/** Floors in milliseconds. */
const FLOORS = {
  lane: { p50: 1, p99: 2 },
  grpc: { p50: 1 },
  local: { p50: 0.15 },
  asked: { p50: 0.5, p99: 2 },
  block: { p50: 0.4, p99: 2 },
};

export const title = `Look-up of ${KEYS} keys, half of them there, one block, and a turn to a sidecar and back`;

export async function run({ isQuick }) {
  const samples = isQuick ? 200 : 2000;
  const stand = new Stand();
  const address = await stand.vault(256 * MIB);
  const logger = createLogger("bench", { level: "silent" });
  const lane = new VaultClient({ address, name: "kv", logger });
  const grpc = new VaultClient({ address, name: "kv", logger, lanes: 0 });
  const { socket } = await stand.sidecar(address, { arenaBytes: 32 * MIB, codec: "raw" });
  const engine = await Engine.start(socket);
  const [local, echo] = [connect(socket), connect(await stand.echo())];
  try {
    await turn(local, { t: "hello", protocol: LOCAL_PROTOCOL, role: "status" }, "welcome");
    const items = records(NAMESPACE, "lookup", KEYS, 64);
    const stored = items.filter((_item, index) => index % 2 === 0);
    await storeAll(lane, NAMESPACE, stored, CALL_MS);
    if (lane.lanes !== "up") throw new Error("the lanes are not up");
    const keys = Buffer.concat(items.map(({ key }) => key));
    const gateways = ALGORITHMS.map((name) => new AskingGateway(lane, NAMESPACE, logger, name));
    const prompted = async (gateway) => {
      const prompt = await gateway.prompt(PROMPT_TOKENS);
      return timed(() => gateway.ask(prompt));
    };
    const measures = {
      cbor: () => prompted(gateways[0]),
      pickle: () => prompted(gateways[1]),
      lane: () => timed(() => lookUp(lane, keys)),
      grpc: () => timed(() => lookUp(grpc, keys)),
      empty: () => timed(() => grpc.health(CALL_MS)),
      local: () => timed(() => turn(local, PING, "pong")),
      bare: () => timed(() => turn(echo, PING, "ping")),
      asked: () => timed(() => engine.lookUp()),
      block: () => timed(() => engine.restoreOne()),
      one: () => timed(() => lane.lookup(NAMESPACE, items[0].key, CALL_MS)),
    };
    await interleaved(WARM_UP, measures);
    const seconds = await interleaved(samples, measures);
    return {
      figures: [
        ...latencies(`look-up of ${KEYS} keys, lane`, seconds.lane, FLOORS.lane),
        ...latencies(`look-up of ${KEYS} keys, gRPC`, seconds.grpc, FLOORS.grpc),
        ...latencies(`look-up of ${PROMPT_TOKENS} tokens by a gateway, sha256_cbor`, seconds.cbor),
        ...latencies(`look-up of ${PROMPT_TOKENS} tokens by a gateway, sha256`, seconds.pickle),
        ...latencies("empty gRPC call", seconds.empty),
        ...latencies("look-up of one key, lane", seconds.one),
        ...latencies(`look-up of ${KEYS} keys by a sidecar`, seconds.asked, FLOORS.asked),
        ...latencies(
          "restore of one block of 256 KiB by a sidecar, raw",
          seconds.block,
          FLOORS.block,
        ),
        ...latencies("a turn to a sidecar over its socket", seconds.local, FLOORS.local),
        ...latencies("the same with a process that only sends it back", seconds.bare),
      ],
      notes: [
        `${samples} calls each, one after the other, in turn; the bench, the vault and the sidecar are processes of their own`,
      ],
    };
  } finally {
    local.destroy();
    echo.destroy();
    lane.close();
    grpc.close();
    await engine.close();
    await stand.close();
  }
}

/** Saves a set of blocks, then restores one after the other, each evicted from the arena meanwhile. */
class Engine {
  #next = 0;

  static async start(socket) {
    const engine = new Engine();
    const namespace = digest("bench lookup by a sidecar");
    const shape = { engine: "bench", group: GROUP, maxModelLen: KEYS * 16, namespace };
    engine.shim = await Shim.start(socket, shape);
    const link = new SidecarLink(socket);
    await link.hello(CALL_MS);
    await touchAll(link, "bench");
    engine.blocks = chain("one", BLOCKS, 16);
    const none = chain("none", KEYS - BLOCKS, 16);
    engine.hashes = Buffer.concat([...engine.blocks, ...none].map(({ hash }) => hash));
    for (let at = 0; at < BLOCKS; at += SAVED_AT_ONCE) {
      await saveAll(engine.shim, link, engine.blocks.slice(at, at + SAVED_AT_ONCE));
    }
    link.close();
    return engine;
  }

  async lookUp() {
    const count = countBits(await this.shim.lookUp(this.hashes), KEYS);
    this.shim.release();
    if (count !== BLOCKS) throw new Error(`look-up found ${count} of ${BLOCKS} blocks`);
  }

  async restoreOne() {
    this.#next = (this.#next + 1) % BLOCKS;
    await this.shim.restore([this.blocks[this.#next]]);
    this.shim.release();
  }

  close() {
    return this.shim.close();
  }
}

async function lookUp(client, keys) {
  const held = await client.lookup(NAMESPACE, keys, CALL_MS);
  const count = countBits(held, KEYS);
  if (count !== KEYS / 2) throw new Error(`look-up found ${count} of ${KEYS / 2} records`);
}

/** Sends a frame to a sidecar or an echo process and reads the answer, each in one piece. */
async function turn(socket, frame, wanted) {
  const answered = once(socket, "data");
  socket.write(encodeFrame(frame));
  const decoder = new FrameDecoder("the other side");
  decoder.push((await answered)[0]);
  const { t } = decoder.next();
  if (t !== wanted) throw new Error(`answered with ${t}`);
}

function latencies(name, seconds, floors = {}) {
  return Object.entries({ p50: 0.5, p99: 0.99 }).map(([label, share]) =>
    describe({
      name: `${name}, ${label}`,
      unit: "ms",
      value: quantile(seconds, share) * 1e3,
      ...(floors[label] === undefined ? {} : { floor: { on: "value", most: floors[label] } }),
    }),
  );
}
