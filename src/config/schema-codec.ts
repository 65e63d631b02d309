// Owns the keys of the codec of attention KV, and the kind of small decimal numbers.
import { MAX_KLD_DEFAULT, MAX_KLD_MAX } from "../limits/codec.ts";
import type { CodecConfig } from "./config.ts";
import type { Field } from "./field.ts";
import { choice } from "./kinds.ts";
import type { Kind } from "./kinds.ts";

/** Whole numbers come from the parser as bigints. */
function decimal(min: number, max: number): Kind<number> {
  return {
    describe: `number, ${min} to ${max}`,
    parse(raw, key) {
      const fix = `write ${key} = a number from ${min} to ${max}, like 0.0001`;
      if (typeof raw !== "bigint" && typeof raw !== "number") {
        return { problem: { expected: "a number without quotes", fix } };
      }
      const value = Number(raw);
      if (value >= min && value <= max) return { value };
      return { problem: { reason: `not from ${min} to ${max}`, fix } };
    },
  };
}

export const CODEC: { kv: Field<CodecConfig["kv"]>; max_kld: Field<CodecConfig["maxKld"]> } = {
  kv: {
    kind: choice(["auto", "raw", "lossless", "int8", "int8-had"]),
    doc: "`raw`: as the engine holds it. `lossless`: bit for bit, too, in about 0.7 of the bytes where the engine computes in bfloat16, for slow links and small vaults. `int8`: one scale per head vector. `int8-had`: the same after a Hadamard turn of K, which spreads the outlier channels that large models have. `auto`: for each vault `raw`, `lossless` or `int8-had`, whichever comes back soonest over its link as measured (`tierkv status` says which, and why); with `[turbo_quant] enabled = false`, `raw` or `lossless`. Engines share blocks where both are exact, or both have the same lossy codec.",
    fallback: () => "auto",
    fallbackText: '`"auto"`',
    example: '"int8-had"',
  },
  max_kld: {
    kind: decimal(0, MAX_KLD_MAX),
    doc: "With `auto`: nats a token that a lossy codec may change what the model says next, on the mean, as estimated from the noise in the engine's own first blocks. Beyond it, blocks are stored bit for bit. `tierkv fidelity` measures it.",
    fallback: () => MAX_KLD_DEFAULT,
    fallbackText: String(MAX_KLD_DEFAULT),
    example: "0.00001",
  },
};
