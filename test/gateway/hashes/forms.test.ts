// Owns the proof that hashes of blocks are those of the engines, by values that their own code made (engine_hashes.py).
import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { describe, expect, onTestFinished, test } from "vitest";
import { DEFAULT_SEED, hashesOf, rootOf } from "../../../src/gateway/hashes/forms.ts";
import type { Algorithm, Apart, Tagging } from "../../../src/gateway/hashes/forms.ts";

const IS_LONG = process.env["TIERKV_TEST_LONG"] === "on";

interface Case {
  algorithm: Algorithm;
  tokens: number[];
  block: number;
  salt: string | null;
  lora: [string, string] | null;
}

interface Golden {
  release: string;
  /** By algorithm and seed; null: drawn. */
  roots: Record<string, string | null>;
  cases: (Case & { root: string; hashes: string[] })[];
}

const TAGGING: readonly (readonly [string, Tagging])[] = [
  ["0.28", "bare"],
  ["0.32", "tagged"],
];

const golden = (release: string): Golden =>
  JSON.parse(readFileSync(new URL(`golden-${release}.json`, import.meta.url), "utf8")) as Golden;

const apartOf = ({ salt, lora }: Case): Apart => ({
  salt,
  adapter: lora === null ? null : { name: lora[0], path: lora[1] },
});

async function chain(one: Case, root: Buffer, tagging: Tagging): Promise<string[]> {
  const base = { algorithm: one.algorithm, root };
  const hashes = await hashesOf(base, one.tokens, one.block, [apartOf(one), tagging]);
  return hashes.toString("hex").match(/.{64}/g) ?? [];
}

describe.each(TAGGING)("vLLM %s", (release, tagging) => {
  const { release: made, roots, cases } = golden(release);

  test("the values are of that release", () => {
    expect(made.startsWith(`${release}.`)).toBe(true);
    expect(cases.length).toBeGreaterThan(30);
  });

  test("roots follow from the seed, where it is not drawn", () => {
    for (const [name, root] of Object.entries(roots)) {
      const [, algorithm = "", seed = ""] = /^(\S+) (.*)$/.exec(name) ?? [];
      const isUnset = seed === "None";
      if (isUnset && release === "0.28") expect(root).toBeNull();
      else {
        const ours = rootOf(algorithm as Algorithm, isUnset ? DEFAULT_SEED : seed);
        expect(ours.toString("hex"), name).toBe(root);
      }
    }
  });

  test.each(cases.map((one, at) => [at, one.algorithm, one.block, one] as const))(
    "case %i: %s, blocks of %i",
    async (_at, _algorithm, _block, one) => {
      expect(await chain(one, Buffer.from(one.root, "hex"), tagging)).toEqual(one.hashes);
    },
  );

  test("salts and adapters of the other release have other hashes", async () => {
    const other = tagging === "bare" ? "tagged" : "bare";
    for (const one of cases) {
      const ours = await chain(one, Buffer.from(one.root, "hex"), other);
      const isPlain = one.salt === null && one.lora === null;
      expect(ours[0] === one.hashes[0], JSON.stringify(one)).toBe(isPlain);
    }
  });
});

test("tokens that no engine has end the chain", async () => {
  const base = { algorithm: "sha256" as const, root: rootOf("sha256", "0") };
  for (const wrong of [-1, 2 ** 31]) {
    const hashes = await hashesOf(base, [1, 2, 3, wrong], 2, [
      { adapter: null, salt: null },
      "bare",
    ]);
    expect(hashes).toHaveLength(32);
  }
});

/** Some thousand prompts through the engine's own function. */
test.runIf(IS_LONG).each([
  ["0.28", "bare", ".venv-0.28.0"],
  ["0.32", "tagged", ".venv"],
] as const)(
  "vLLM %s hashes random prompts alike",
  { timeout: 600_000 },
  async (_release, tagging, folder) => {
    const script = new URL("engine_hashes.py", import.meta.url).pathname;
    const engine = spawn(`${folder}/bin/python`, [script], {
      env: { ...process.env, VLLM_LOGGING_LEVEL: "ERROR" },
      stdio: ["pipe", "pipe", "ignore"],
    });
    onTestFinished(() => void engine.kill());
    const lines = createInterface({ input: engine.stdout })[Symbol.asyncIterator]();
    const draw = (below: number): number => Math.floor(Math.random() * below);
    for (let n = 0; n < 2_000; n += 1) {
      const block = 1 + draw(n % 10 === 0 ? 600 : 40);
      const most = [20, 260, 70_000, 2 ** 31][draw(4)]!;
      const one: Case = {
        algorithm: draw(2) === 0 ? "sha256" : "sha256_cbor",
        block,
        tokens: Array.from({ length: block * draw(4) + draw(block) }, () => draw(most)),
        salt: draw(3) === 0 ? "ä".repeat(1 + draw(200)) : null,
        lora: draw(3) === 0 ? ["a".repeat(1 + draw(300)), `/p${draw(9)}`] : null,
      };
      engine.stdin.write(`${JSON.stringify(one)}\n`);
      const { value } = (await lines.next()) as { value: string };
      const ours = await chain(one, rootOf(one.algorithm, "0"), tagging);
      expect(ours, JSON.stringify(one)).toEqual(JSON.parse(value));
    }
    engine.stdin.end();
    await once(engine, "exit");
  },
);
