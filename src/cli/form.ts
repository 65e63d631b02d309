// Owns the text of `tierkv status` and `tierkv explain` for the codec of blocks, with its reason.
import type { EngineFidelity } from "../sidecar/engine/engine-status.ts";
import type { CodecWhy, Form } from "../sidecar/save/codec-choice.ts";
import { showRate } from "./text.ts";

const WHY: Readonly<Record<CodecWhy, string>> = {
  unweighed: "no block was tried yet",
  unmeasured: "the link is not measured yet, so fewest bytes",
  full: "the vault is more than half full, so fewest bytes",
  exact: "bit for bit takes little longer",
  sooner: "comes back soonest",
};

export function showForm({ codec, why, bytesPerS }: Form): string {
  const link = bytesPerS === null ? "" : `, link ${showRate(bytesPerS)}`;
  return `${codec}: ${WHY[why]}${link}`;
}

/** Tells whether an engine's attention KV comes back bit for bit, and why. */
export function showFidelity({
  codec,
  why,
  certificate,
}: Pick<EngineFidelity, "codec" | "why" | "certificate">): string {
  const kld = certificate?.kldMean.toExponential(1);
  const of = certificate === null ? "" : ` of ${certificate.date}`;
  switch (why) {
    case "configured":
      return codec === null ? "exact: as configured" : `${codec}: as configured, not certified`;
    case "certified":
      return `INT8 (${codec}), certified on ${certificate?.date} with KLD ${kld}`;
    case "unidentified":
      return "exact: the engine has not named its weights yet";
    case "uncertified":
      return "exact: not certified (`tierkv fidelity`)";
    case "unknown_order":
      return "exact: not certified, the order of bytes in this engine's pages is not proven";
    case "other_order":
      return `exact: not certified, the certificate${of} is about another order of bytes`;
    case "other_codec":
      return `exact: not certified, the certificate${of} is about another codec or version of it`;
    case "beyond":
      return `exact: the certificate${of} has KLD ${kld}, above [codec] max_kld`;
  }
}
