// Owns the proof of which model the demo reads with, and that it says why.
import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { DEMO_HUB_MODEL_BYTES_MAX } from "../../../src/base/limits/tools.ts";
import { runDemo } from "../../../src/extras/demo/demo.ts";
import { Progress } from "../../../src/extras/demo/progress.ts";
import { chooseReader, smallestCached } from "../../../src/extras/demo/reader.ts";
import type { Reader, ReaderWish } from "../../../src/extras/demo/reader.ts";
import { failed } from "../../../src/extras/stand/processes.ts";
import type { Stage } from "../../../src/extras/stand/stage.ts";

let home = "";
beforeEach(() => {
  home = mkdtempSync(join(tmpdir(), "tierkv-reader-"));
  vi.stubEnv("XDG_CACHE_HOME", home);
  vi.stubEnv("HF_HOME", "");
  vi.stubEnv("HF_HUB_CACHE", join(home, "hub"));
});
afterEach(() => {
  vi.unstubAllEnvs();
  rmSync(home, { recursive: true, force: true });
});

interface Files {
  family?: string;
  weights?: number | null;
  isChat?: boolean;
}

/** Writes a model's folder; its weights are `weights` bytes, absent with null. */
function model(
  path: string,
  { family = "Qwen2ForCausalLM", weights = 10, isChat = false }: Files = {},
): string {
  mkdirSync(path, { recursive: true });
  writeFileSync(join(path, "config.json"), JSON.stringify({ architectures: [family] }));
  writeFileSync(join(path, "tokenizer.json"), "{}");
  writeFileSync(
    join(path, "tokenizer_config.json"),
    JSON.stringify(isChat ? { chat_template: "x" } : {}),
  );
  if (weights !== null) writeFileSync(join(path, "model.safetensors"), Buffer.alloc(weights));
  return path;
}

const cached = (name: string, files?: Files): string =>
  model(join(home, "hub", `models--${name}`, "snapshots", "abc"), files);

/** A stage whose modules print a line, and fail unless it is a path. */
function stage(says: Record<string, string>): { stage: Stage; ran: string[] } {
  const ran: string[] = [];
  const runModule = (_name: string, module: string): unknown => {
    ran.push(module);
    const said = says[module] ?? "";
    const done = said.startsWith("/") ? Promise.resolve() : Promise.reject(failed("it ended"));
    return { done, last: (): string => said };
  };
  return { stage: { runModule } as unknown as Stage, ran };
}

const progress = new Progress({ write: () => true });

function choose(says: Record<string, string>, wish: Partial<ReaderWish> = {}): Promise<Reader> {
  return chooseReader({ ...stage(says), progress }, { mayFetch: true, ...wish });
}

test("the demo refuses another folder than a model's before it starts anything", async () => {
  const options = { keep: false, json: false, quick: true, realSize: false };
  vi.stubEnv("TMPDIR", home);
  await expect(runDemo({ ...options, model: join(home, "none") })).rejects.toThrow(
    /^--model .*none has no config\.json; name a model's folder/,
  );
  expect(readdirSync(home)).toEqual([]);
});

test("a named folder goes before all others, and must be a model's", async () => {
  cached("Qwen--Qwen2.5-0.5B-Instruct");
  const folder = model(join(home, "mine"), { isChat: true });
  expect(await choose({}, { folder })).toMatchObject({
    model: { path: folder },
    task: "chat",
    passedOver: [],
  });
  await expect(choose({}, { folder: join(home, "none") })).rejects.toThrow(
    expect.objectContaining({
      exitCode: 2,
      message: expect.stringMatching(/--model .* has no config.json/) as string,
    }),
  );
});

test("the smallest complete instruct model of the hub's cache goes before the network", async () => {
  cached("Qwen--Qwen2.5-1.5B-Instruct", { weights: 20 });
  const small = cached("Qwen--Qwen2.5-0.5B-Instruct", { weights: 10 });
  cached("Qwen--Qwen2.5-0.1B-Instruct", { weights: null });
  cached("Qwen--Qwen2.5-0.2B", { weights: 5 });
  cached("some--vision-Instruct", { family: "OtherModel", weights: 5 });
  expect(smallestCached(join(home, "hub"))).toBe(small);
  const { stage: none, ran } = stage({});
  const reader = await chooseReader({ stage: none, progress }, { mayFetch: true });
  expect(reader.model.path).toBe(small);
  expect(ran).toEqual([]);
});

test("a large model of the hub's cache, or half of one, is not taken", () => {
  const path = cached("a--large-Instruct", { weights: null });
  const index = { weight_map: { a: "one.safetensors", b: "two.safetensors" } };
  writeFileSync(join(path, "model.safetensors.index.json"), JSON.stringify(index));
  writeFileSync(join(path, "one.safetensors"), "x");
  expect(smallestCached(join(home, "hub"))).toBeNull();
  writeFileSync(join(path, "two.safetensors"), "x");
  expect(smallestCached(join(home, "hub"))).toBe(path);
  expect(DEMO_HUB_MODEL_BYTES_MAX).toBeGreaterThan(2);
});

test("then the hub, then the package, then the small trained model; each one passed over says why", async () => {
  const folder = model(join(home, "got"));
  const none = "the hub's cache";
  const hub = await choose({ "lab.hub_model": folder });
  expect([hub.model.path, hub.passedOver.length]).toEqual([folder, 1]);
  const ours = await choose({ "lab.hub_model": "no hub", "lab.published": folder });
  expect(ours).toMatchObject({ model: { path: folder }, task: "text" });
  expect(ours.what).toContain("Gemma Terms of Use");
  expect(ours.passedOver).toEqual([expect.stringContaining(none), "no hub"]);
  const last = await choose({ "lab.hub_model": "no hub", "lab.published": "no package" });
  expect(last.task).toBe("code");
  expect(last.passedOver).toEqual([expect.stringContaining(none), "no hub", "no package"]);
});

test("without downloads a package that is there already is taken, else the small trained model", async () => {
  const { stage: none, ran } = stage({});
  const wish = { mayFetch: false };
  const scene = { stage: none, progress };
  expect((await chooseReader(scene, wish)).task).toBe("code");
  const folder = model(join(home, "tierkv", "published", "gemma3-270m"));
  expect((await chooseReader(scene, wish)).task).toBe("code");
  writeFileSync(join(folder, "published.json"), "{}");
  expect((await chooseReader(scene, wish)).model.path).toBe(folder);
  expect(ran).toEqual([]);
});
