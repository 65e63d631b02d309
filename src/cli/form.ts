// Owns the text of `tierkv status` and `tierkv explain` for the codec of blocks sent to a vault, with its reason.
import type { CodecWhy, Form } from "../sidecar/save/codec-choice.ts";
import { showRate } from "./text.ts";

const WHY: Readonly<Record<CodecWhy, string>> = {
  unweighed: "no block was tried yet",
  unmeasured: "the link is not measured yet, so fewest bytes",
  full: "the vault is more than half full, so fewest bytes",
  exact: "bit for bit takes little longer",
  sooner: "comes back soonest",
  beyond: "a smaller codec is beyond [codec] max_kld with this model",
};

export function showForm({ codec, why, bytesPerS }: Form): string {
  const link = bytesPerS === null ? "" : `, link ${showRate(bytesPerS)}`;
  return `${codec}: ${WHY[why]}${link}`;
}
