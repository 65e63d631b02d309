// Owns the text of divergences for `tierkv explain`: token ids, decoded by the engine's tokenizer where it can be read here.
import type { DivergenceText } from "../../control/divergence.ts";
import type { Explained } from "../../sidecar/sidecar.ts";
import type { Divergence } from "../../sidecar/socket/divergence.ts";

type Decode = (ids: readonly number[]) => Promise<string>;

/** Returns the text of each account's divergence; null where there is none, or its tokenizer cannot be read here. */
export async function divergenceTexts(
  accounts: readonly Pick<Explained, "divergence">[],
): Promise<(DivergenceText | null)[]> {
  const folders = new Set(accounts.map(({ divergence }) => divergence?.tokenizer ?? ""));
  folders.delete("");
  const decoders = new Map<string, Decode | null>();
  const closers: (() => void)[] = [];
  for (const folder of folders) decoders.set(folder, await decoder(folder, closers));
  try {
    return await Promise.all(
      accounts.map(async ({ divergence }) => {
        const decode = decoders.get(divergence?.tokenizer ?? "") ?? null;
        return divergence === null || decode === null ? null : await textOf(divergence, decode);
      }),
    );
  } finally {
    for (const close of closers) close();
  }
}

/** Opens a tokenizer, and adds what closes it to `closers`. Returns null where that fails: places are known without it. */
async function decoder(folder: string, closers: (() => void)[]): Promise<Decode | null> {
  try {
    const { tokenizerClose, tokenizerDecode, tokenizerOpen } = await import("../../base/native.ts");
    const id = await tokenizerOpen(folder);
    closers.push(() => tokenizerClose(id));
    return (ids) => tokenizerDecode(id, Uint32Array.from(ids));
  } catch {
    return null;
  }
}

async function textOf(
  { head, before, was, now, gone, come }: Divergence,
  decode: Decode,
): Promise<DivergenceText> {
  return {
    head: await decode(head),
    before: await decode(before),
    was: await decode(was),
    now: await decode(now),
    gone: await decode(was.slice(0, gone)),
    come: await decode(now.slice(0, come)),
  };
}
