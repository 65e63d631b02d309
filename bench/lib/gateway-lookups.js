// Owns the look-up of the gateway for one prompt: hashing it, and asking a vault for all hashes.
import { UNCOUNTED } from "../../dist/client/source.js";
import { Agreement } from "../../dist/gateway/hashes/agreement.js";
import {
  hashesOf,
  hashOfBlock,
  lowOf,
  NOT_APART,
  rootOf,
} from "../../dist/gateway/hashes/forms.js";
import { BlockIndex } from "../../dist/gateway/index/index-of-blocks.js";
import { Lookups } from "../../dist/gateway/vaults/lookups.js";
import { batchOf } from "../sim/fleet.js";

const SIZE = 16;
const BOUND_MS = 10_000;

/** Asks for a new prompt each time, because the gateway does not repeat a recent look-up. */
export class AskingGateway {
  #prompts = 0;
  #outcome = "";

  constructor(client, namespace, logger, algorithm) {
    const root = rootOf(algorithm, "bench");
    this.base = { algorithm, root };
    this.index = new BlockIndex(1);
    this.agreement = new Agreement("bench", logger, this.index, 0);
    const name = ["tierkv", namespace.toString("hex"), 1, root.toString("hex")];
    const tokens = Array.from({ length: SIZE }, (_none, at) => at);
    const hash = lowOf(hashOfBlock({ algorithm, root }, root, tokens, [0, SIZE]));
    const stored = { type: "BlockStored", parent_block_hash: null, block_size: SIZE };
    const naming = { block_hashes: [], token_ids: [], medium: "STORAGE", extra_keys: [name] };
    const prompt = { block_hashes: [hash], token_ids: tokens };
    for (const event of [naming, prompt]) {
      this.agreement.hear(this.index.apply(0, batchOf({ ...stored, ...event })));
    }
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
  async prompt(tokens) {
    this.#prompts += 1;
    const made = Array.from({ length: tokens + 1 }, (_none, at) => this.#prompts * 1000 + at);
    const hashes = await hashesOf(this.base, made, SIZE, [NOT_APART, "bare"]);
    const engine = { holder: 0, agreement: this.agreement, hashes, held: 0, reach: 0 };
    return { tokens: made.length, blockSize: SIZE, engines: [engine] };
  }

  async ask(prompt) {
    await this.lookups.ask(prompt);
    if (this.#outcome !== "nothing") throw new Error(`a look-up ended as ${this.#outcome}`);
  }
}
