// Owns the figures of small questions: 2,000 keys over a lane and through gRPC, half of them there, and one turn to a sidecar.
import { once } from "node:events";
import { connect } from "node:net";
import { countBits } from "../dist/block.js";
import { VaultClient } from "../dist/client/vault-client.js";
import { createLogger } from "../dist/log.js";
import { encodeFrame, FrameDecoder } from "../dist/sidecar/socket/frames.js";
import { LOCAL_PROTOCOL } from "../dist/sidecar/socket/hello.js";
import { digest, records, storeAll } from "./lib/blocks.js";
import { describe, interleaved, quantile, timed } from "./lib/figures.js";
import { Stand } from "./lib/stand.js";

const MIB = 2 ** 20;
const KEYS = 2000;
const CALL_MS = 10_000;
const WARM_UP = 100;
const PING = { t: "ping", n: 0 };
const NAMESPACE = digest("bench lookup");
/** Milliseconds. */
const FLOORS = {
  lane: { p50: 1, p99: 2 },
  grpc: { p50: 1 },
  local: { p50: 0.15 },
};

export const title = `Look-up of ${KEYS} keys, half of them there, and a turn to a sidecar and back`;

export async function run({ isQuick }) {
  const samples = isQuick ? 200 : 2000;
  const stand = new Stand();
  const address = await stand.vault(64 * MIB);
  const logger = createLogger("bench", { level: "silent" });
  const lane = new VaultClient({ address, name: "kv", logger });
  const grpc = new VaultClient({ address, name: "kv", logger, lanes: 0 });
  const { socket } = await stand.sidecar(address, { arenaBytes: 64 * MIB, codec: "int8" });
  const [local, echo] = [connect(socket), connect(await stand.echo())];
  try {
    await turn(local, { t: "hello", protocol: LOCAL_PROTOCOL, role: "status" }, "welcome");
    const items = records(NAMESPACE, "lookup", KEYS, 64);
    const stored = items.filter((_item, index) => index % 2 === 0);
    await storeAll(lane, NAMESPACE, stored, CALL_MS);
    if (lane.lanes !== "up") throw new Error("the lanes are not up");
    const keys = Buffer.concat(items.map(({ key }) => key));
    const measures = {
      lane: () => timed(() => lookUp(lane, keys)),
      grpc: () => timed(() => lookUp(grpc, keys)),
      empty: () => timed(() => grpc.health(CALL_MS)),
      local: () => timed(() => turn(local, PING, "pong")),
      bare: () => timed(() => turn(echo, PING, "ping")),
      one: () => timed(() => lane.lookup(NAMESPACE, items[0].key, CALL_MS)),
    };
    await interleaved(WARM_UP, measures);
    const seconds = await interleaved(samples, measures);
    return {
      figures: [
        ...latencies(`look-up of ${KEYS} keys, lane`, seconds.lane, FLOORS.lane),
        ...latencies(`look-up of ${KEYS} keys, gRPC`, seconds.grpc, FLOORS.grpc),
        ...latencies("empty gRPC call", seconds.empty),
        ...latencies("look-up of one key, lane", seconds.one),
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
    await stand.close();
  }
}

async function lookUp(client, keys) {
  const held = await client.lookup(NAMESPACE, keys, CALL_MS);
  const count = countBits(held, KEYS);
  if (count !== KEYS / 2) throw new Error(`look-up found ${count} of ${KEYS / 2} records`);
}

/** A frame to a sidecar and its answer, each in one piece; or to who sends the same back. */
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
