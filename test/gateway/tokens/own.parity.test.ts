// Owns the proof that texts become the ids, and chats the texts, that transformers makes with the same files.
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { tokenizerClose, tokenizerEncode, tokenizerOpen } from "../../../src/base/native.ts";
import { chatOf, render } from "../../../src/gateway/tokens/chat.ts";
import { readModelFolder } from "../../../src/gateway/tokens/folder.ts";
import { testFolder } from "../../support/gateways.ts";

const TEXTS = process.env["TIERKV_TEST_LONG"] === "on" ? 10_000 : 300;
const LONG_MS = 600_000;
const PYTHON = fileURLToPath(new URL("../../../.venv/bin/python", import.meta.url));
const HARNESS = fileURLToPath(new URL("../../engine", import.meta.url));

interface Expected {
  texts: string[];
  chats: object[];
  /** Digests of ids; what chats become, null where the template refuses them. */
  kinds: Record<string, { framed: string[]; bare: string[]; chats: (string | null)[] }>;
}

const digest = (ids: Uint32Array): string =>
  createHash("sha256").update(ids.join(",")).digest("hex");

test(
  "texts become the ids that transformers makes, and chats what its templates make of them",
  async () => {
    const folder = testFolder();
    const options = { cwd: HARNESS, maxBuffer: 1 << 20 };
    execFileSync(PYTHON, ["-m", "harness.tokens", folder, String(TEXTS)], options);
    const read = readFileSync(join(folder, "expected.json"), "utf8");
    const { texts, chats, kinds } = JSON.parse(read) as Expected;
    expect(texts).toHaveLength(TEXTS);
    expect(Object.keys(kinds)).toHaveLength(3);
    for (const [kind, expected] of Object.entries(kinds)) {
      const id = await tokenizerOpen(join(folder, kind));
      for (const [at, text] of texts.entries()) {
        for (const form of ["framed", "bare"] as const) {
          const made = digest(await tokenizerEncode(id, text, form === "framed"));
          expect(made, `${kind}, ${form}: ${JSON.stringify(text)}`).toBe(expected[form][at]);
        }
      }
      tokenizerClose(id);
      const { rendering } = await readModelFolder(join(folder, kind));
      let rendered = 0;
      for (const [at, body] of chats.entries()) {
        const chat = chatOf(body as Record<string, unknown>);
        if (chat === null) continue;
        const text = render(rendering!, chat);
        expect(text, `${kind}: ${JSON.stringify(body)}`).toBe(expected.chats[at]);
        if (text !== null) rendered += 1;
      }
      expect(rendered).toBeGreaterThan(chats.length / 4);
    }
  },
  LONG_MS,
);
