// Owns the figure of timing leaks between tenants: whether look-up times reveal another tenant's prompts.
import { countBits, packKeys } from "../dist/base/block.js";
import { createLogger } from "../dist/base/log.js";
import { VaultClient } from "../dist/client/vault/vault-client.js";
import { chain, digest, records, storeAll } from "./lib/blocks.js";
import { auc, describe } from "./lib/figures.js";
import { Stand } from "./lib/stand.js";

const MIB = 2 ** 20;
const CALL_MS = 10_000;
const BLOCKS = 8;
const PROMPTS = 2000;
const WARM_UP = 500;
const PAYLOAD_BYTES = 4096;
/** Area under the curve: 0.5 is a guess, 1 is certainty. */
const AUC_MAX = 0.55;
const NAMESPACE = digest("bench tenants");

export const title = `What the time of an answer tells of another tenant's prompts of ${BLOCKS} blocks`;

/** Names a prompt's hashes as an engine does: another `cache_salt` gives other hashes. */
const nameOf = (salt, prompt) => `${salt} prompt ${prompt}`;

/** Keys of a prompt's blocks. */
const keysOf = (salt, prompt) =>
  Buffer.concat(chain(nameOf(salt, prompt), BLOCKS, 16).map(({ hash }) => packKeys(hash, 0, 0)));

async function fill(client) {
  for (let prompt = 0; prompt < PROMPTS; prompt += 2) {
    const items = records(NAMESPACE, nameOf("theirs", prompt), BLOCKS, PAYLOAD_BYTES);
    await storeAll(client, NAMESPACE, items, CALL_MS);
  }
}

/** Times look-ups under `salt` of prompts that the other tenant has stored, and of unknown ones. */
async function probe(client, salt, rounds) {
  const times = [[], []];
  for (let round = -WARM_UP; round < rounds; round += 1) {
    // The order alternates, so that the cost of going first is no sign.
    const pair = [(round + WARM_UP) * 2, (round + WARM_UP) * 2 + 1].map((of) => of % PROMPTS);
    for (const prompt of round % 2 === 0 ? pair : pair.toReversed()) {
      const keys = keysOf(salt, prompt);
      const begun = process.hrtime.bigint();
      const held = await client.lookup(NAMESPACE, keys, CALL_MS);
      const took = Number(process.hrtime.bigint() - begun);
      const isHit = countBits(held, BLOCKS) > 0;
      if (isHit !== (salt === "theirs" && prompt % 2 === 0)) throw new Error("a wrong answer");
      if (round >= 0) times[prompt % 2].push(took);
    }
  }
  return auc(times[0], times[1]);
}

export async function run({ isQuick }) {
  const rounds = isQuick ? 2000 : 20_000;
  const stand = new Stand();
  const logger = createLogger("bench", { level: "silent" });
  const client = new VaultClient({ address: await stand.vault(256 * MIB), name: "kv", logger });
  try {
    await fill(client);
    const others = await probe(client, "mine", rounds);
    const own = await probe(client, "theirs", rounds);
    const told = "told apart by the time of a look-up (AUC)";
    return {
      figures: [
        describe({
          name: `what another tenant has stored and what nobody has, ${told}`,
          unit: "",
          value: others,
          floor: { on: "value", most: AUC_MAX },
        }),
        describe({ name: `one's own hits and misses, ${told}`, unit: "", value: own }),
      ],
      notes: [`${rounds} look-ups of each over a lane, in turn; 0.5 is a guess.`],
    };
  } finally {
    client.close();
    await stand.close();
  }
}
