// Owns the text of `tierkv status` and `tierkv explain` for the codec of blocks, with its reason.
import { showRate } from "../base/text.ts";
import type { EngineFidelity } from "../sidecar/engine/engine-status.ts";
import type { CodecWhy, Form } from "../sidecar/save/codec-choice.ts";
import type { FidelityWhy } from "../sidecar/save/fidelity.ts";

const WHY: Readonly<Record<CodecWhy, string>> = {
  unweighed: "no block was measured yet",
  unmeasured: "the link is not measured yet: fewest bytes",
  full: "the vault is more than half full: fewest bytes",
  exact: "restores in it take hardly longer than in the quickest form",
  sooner: "restores fastest",
};

/** Returns a codec's name for people: --json has its exact name. */
export function showCodec(codec: string): string {
  const names = codec
    .split(", ")
    .map((name) => (name.startsWith("int8") ? "INT8" : name === "raw" ? "raw (unchanged)" : name));
  return [...new Set(names)].join(", ");
}

/** Tells the codec for a vault, why, and the rate of the link at that choice. */
export function showForm({ codec, why, bytesPerS }: Form): string {
  const rate =
    bytesPerS === null
      ? ""
      : ` at ${showRate(bytesPerS)}, the link's rate when that was chosen, at the last save`;
  return `${showCodec(codec)}: ${WHY[why]}${rate}`;
}

/** Tells whether an engine's attention KV comes back bit for bit, and why. */
export function showFidelity({
  codec,
  why,
  certificate,
}: Pick<EngineFidelity, "codec" | "why" | "certificate">): string {
  if (why === "configured")
    return codec === null
      ? "exact: as configured"
      : `${showCodec(codec)}: as configured, no certificate is asked for`;
  if (certificate === null) return EXACT[why];
  const { date, kldMean } = certificate;
  const kld = `KLD ${kldMean.toExponential(1)}`;
  if (why === "certified") return `INT8 (${codec}), certified on ${date} with ${kld}`;
  return `${EXACT[why]} (certificate of ${date} with ${kld})`;
}

const EXACT: Readonly<Record<Exclude<FidelityWhy, "configured">, string>> = {
  certified: "certified",
  unidentified: "exact: the engine has not named its weights yet",
  uncertified: "exact: not certified (`tierkv fidelity`, with vLLM)",
  unknown_order: "exact: not certified, the order of bytes in this engine's pages is not proven",
  other_order: "exact: not certified for this order of bytes",
  other_codec: "exact: not certified for this version of the codec",
  beyond: "exact: the certificate is beyond [codec] max_kld",
};
