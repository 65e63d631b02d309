// Owns the figure of a look-up: 2,000 keys in one call, half of them there, beside a call that asks nothing.
import { countBits, ItemStatus } from "../dist/block.js";
import { VaultClient } from "../dist/client/vault-client.js";
import { createLogger } from "../dist/log.js";
import { digest, records } from "./lib/blocks.js";
import { describe, interleaved, quantile, timed } from "./lib/figures.js";
import { Stand } from "./lib/stand.js";

const MIB = 2 ** 20;
const KEYS = 2000;
const CALL_MS = 10_000;
const WARM_UP = 100;
const NAMESPACE = digest("bench lookup");
const P50_FLOOR = { on: "value", most: 1 };

export const title = `Look-up of ${KEYS} keys through gRPC, half of them there`;

export async function run({ isQuick }) {
  const samples = isQuick ? 200 : 2000;
  const stand = new Stand();
  const address = await stand.vault(64 * MIB);
  const logger = createLogger("bench", { level: "silent" });
  const client = new VaultClient({ address, name: "kv", logger });
  try {
    const items = records(NAMESPACE, "lookup", KEYS, 64);
    const stored = items.filter((_item, index) => index % 2 === 0);
    const statuses = await client.store(NAMESPACE, "kv", stored, CALL_MS);
    if (statuses.some((status) => status !== ItemStatus.ACCEPTED)) throw new Error("not stored");
    const keys = Buffer.concat(items.map(({ key }) => key));
    const measures = {
      lookup: () => timed(() => lookUp(client, keys)),
      empty: () => timed(() => client.health(CALL_MS)),
    };
    await interleaved(WARM_UP, measures);
    const { lookup, empty } = await interleaved(samples, measures);
    return {
      figures: [
        ...latencies(`look-up of ${KEYS} keys`, lookup, P50_FLOOR),
        ...latencies("empty call", empty),
      ],
      notes: [`${samples} calls each, one after the other, in turn`],
    };
  } finally {
    client.close();
    await stand.close();
  }
}

async function lookUp(client, keys) {
  const held = await client.lookup(NAMESPACE, keys, CALL_MS);
  const count = countBits(held, KEYS);
  if (count !== KEYS / 2) throw new Error(`look-up found ${count} of ${KEYS / 2} records`);
}

function latencies(name, seconds, floor) {
  const at = (share) => quantile(seconds, share) * 1e3;
  const bounded = floor === undefined ? {} : { floor };
  return [
    describe({ name: `${name}, p50`, unit: "ms", value: at(0.5), ...bounded }),
    describe({ name: `${name}, p99`, unit: "ms", value: at(0.99) }),
  ];
}
