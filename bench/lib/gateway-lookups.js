// Owns the look-up of the gateway for one prompt: hashing it, and asking a vault for all hashes.
import { UNCOUNTED } from "../../dist/client/found.js";
import { Agreement } from "../../dist/gateway/hashes/agreement.js";
import { hashOfBlock, lowOf, NOT_APART, rootOf } from "../../dist/gateway/hashes/forms.js";
import { namesOf } from "../../dist/gateway/index/chain.js";
import { BlockIndex } from "../../dist/gateway/index/index-of-blocks.js";
import { Lookups } from "../../dist/gateway/vaults/lookups.js";

const SIZE = 16;
const BOUND_MS = 10_000;

/** Asks for a new prompt each time, because the gateway does not repeat a recent look-up. */
export class AskingGateway {
  #prompts = 0;
  #outcome = "";

  constructor(client, namespace, logger, algorithm) {
    const root = rootOf(algorithm, "bench");
    this.agreement = new Agreement("bench", logger);
    const name = { namespace, shards: 1, root };
    this.agreement.hear({ kind: "named", name, group: 0, blockSize: SIZE });
    const tokens = Array.from({ length: SIZE }, (_none, at) => at);
    const hash = lowOf(hashOfBlock({ algorithm, root }, root, tokens, [0, SIZE]));
    const blocks = [{ hash, tokens, extra: [] }];
    const of = { tier: "gpu", parent: null, blockSize: SIZE, group: 0, adapter: null };
    this.agreement.hear({ kind: "stored", blocks, ...of });
    this.index = new BlockIndex(1);
    const vault = {
      isOpen: false,
      lookup: (space, keys, ms) => client.lookup(space, keys, ms, UNCOUNTED),
    };
    this.lookups = new Lookups({
      vaults: () => [vault],
      index: this.index,
      lookupMs: BOUND_MS,
      onOutcome: (outcome) => (this.#outcome = outcome),
      logger,
    });
  }

  /** Returns a prompt of which the vault holds nothing. */
  prompt(tokens) {
    this.#prompts += 1;
    const made = Array.from({ length: tokens + 1 }, (_none, at) => this.#prompts * 1000 + at);
    const names = namesOf(this.index.seeds, made, SIZE, [], null);
    const engine = { slot: 0, agreement: this.agreement, apart: NOT_APART, held: 0, reach: 0 };
    return { tokens: made, blockSize: SIZE, names, engines: [engine] };
  }

  async ask(prompt) {
    await this.lookups.ask(prompt);
    if (this.#outcome !== "nothing") throw new Error(`a look-up ended as ${this.#outcome}`);
  }
}
