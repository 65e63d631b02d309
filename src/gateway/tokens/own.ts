// Owns the models' tokenizers of the gateway: which model has one here, and what an engine must agree with before it is believed.
import { existsSync } from "node:fs";
import { isAbsolute, join } from "node:path";
import { TierkvError, toTierkvError } from "../../errors.ts";
import {
  GATEWAY_ENCODE_CHARS_MAX,
  GATEWAY_PROBE_RETRY_MS,
  GATEWAY_TOKENIZERS_MAX,
} from "../../limits/gateway.ts";
import type { Logger } from "../../log.ts";
import type * as native from "../../native.ts";
import { nowMs } from "../../time.ts";
import type { Engine } from "../engines/engine.ts";
import { chatOf, render } from "./chat.ts";
import { readModelFolder } from "./folder.ts";
import type { ModelFolder } from "./folder.ts";
import { probe } from "./probe.ts";
import type { Verdict } from "./probe.ts";
import type { Fields, Prompt } from "./prompt.ts";
import { Turns } from "./turns.ts";

/** For `tierkv gateway status`: one model at one engine. */
export interface ShownTokenizer {
  engine: string;
  model: string;
  folder: string;
  /** `asking`: nothing is known yet, and the engine is asked for tokens. */
  state: "agrees" | "differs" | "asking";
  /** Whether chats are rendered here, and those with tools. */
  chats: boolean;
  tools: boolean;
}

interface Opened extends ModelFolder {
  id: native.TokenizerId;
}

/** What became of asking an engine whether it makes the same tokens. */
interface Check {
  folder: string;
  /** Of the engine, when it was asked: another number, another process. */
  rises: number;
  /** null: it is being asked, or did not answer. */
  verdict: Verdict | null;
  /** When it is asked again, if it did not answer. */
  againMs: number;
}

type Core = Pick<typeof native, "tokenizerOpen" | "tokenizerEncode" | "tokenizerClose">;

/** Half a character cannot be handed over: the engine says what becomes of it. */
const HALF = /\p{Surrogate}/u;

export class OwnTokenizers {
  readonly #folders: ReadonlyMap<string, string>;
  readonly #logger: Logger;
  /** By folder; null: being opened, or of no use. */
  readonly #opened = new Map<string, Opened | null>();
  readonly #checks = new WeakMap<Engine, Map<string, Check>>();
  readonly #turns = new Turns();
  #core: Core | null = null;
  #isClosed = false;

  /** `folders`: by model; of others, where an engine's own folder can be read here, that. */
  constructor(folders: ReadonlyMap<string, string>, logger: Logger) {
    this.#folders = folders;
    this.#logger = logger;
  }

  /** Throws CONFIG_BAD_VALUE for a folder that was named and is of no use. */
  async start(): Promise<void> {
    for (const [model, folder] of this.#folders) {
      try {
        await this.#open(folder);
      } catch (error) {
        throw unusable(model, folder, error);
      }
    }
  }

  close(): Promise<void> {
    this.#isClosed = true;
    for (const opened of this.#opened.values()) {
      if (opened !== null) this.#core?.tokenizerClose(opened.id);
    }
    this.#opened.clear();
    return Promise.resolve();
  }

  /** null: the engine must be asked. What it resolves to is null where it took too long. */
  make(
    { model, own }: Prompt,
    engine: Engine,
    withinMs: number,
  ): Promise<readonly number[] | null> | null {
    if (own === null) return null;
    const check = this.#checkOf(model, engine);
    const opened = this.#opened.get(check?.folder ?? "") ?? null;
    const verdict = check?.verdict ?? null;
    if (opened === null || verdict === null || !verdict.texts) return null;
    const asked = "text" in own ? own : renderedBy(opened, verdict, own.chat);
    return asked === null ? null : this.#encode(opened, asked.text, asked.isFramed, withinMs);
  }

  shown(engines: readonly Engine[]): ShownTokenizer[] {
    return engines.flatMap((engine) =>
      [...(this.#checks.get(engine) ?? [])].map(([model, { folder, verdict }]) => ({
        engine: engine.name,
        model,
        folder,
        state: verdict === null ? "asking" : verdict.texts ? "agrees" : "differs",
        chats: verdict?.chats ?? false,
        tools: verdict?.tools ?? false,
      })),
    );
  }

  #encode(
    { id }: Opened,
    text: string,
    isFramed: boolean,
    withinMs: number,
  ): Promise<readonly number[] | null> | null {
    const core = this.#core;
    const isLong = text.length > GATEWAY_ENCODE_CHARS_MAX;
    if (core === null || isLong || HALF.test(text)) return null;
    const work = async (): Promise<readonly number[]> =>
      Array.from(await core.tokenizerEncode(id, text, isFramed));
    return this.#turns.take(work, withinMs).catch(() => null);
  }

  /** The latest check of an engine; begins one where there is none of the process that runs. null: no tokenizer here. */
  #checkOf(model: string, engine: Engine): Check | null {
    const folder = this.#folderOf(model, engine);
    if (folder === null) return null;
    const checks = this.#checks.get(engine) ?? new Map<string, Check>();
    this.#checks.set(engine, checks);
    const { rises } = engine;
    const last = checks.get(model);
    const isOver = last?.verdict === null && nowMs() >= last.againMs;
    if (last?.rises === rises && last.folder === folder && !isOver) return last;
    const check: Check = { folder, rises, verdict: null, againMs: Infinity };
    checks.set(model, check);
    void this.#check(model, engine, check);
    return check;
  }

  #folderOf(model: string, engine: Engine): string | null {
    const told = engine.models.find(({ id }) => id === model);
    const base = told?.parent ?? model;
    const named = this.#folders.get(model) ?? this.#folders.get(base);
    if (named !== undefined) return named;
    const root = engine.models.find(({ id }) => id === base)?.root ?? "";
    if (!isAbsolute(root)) return null;
    if (!this.#opened.has(root) && !existsSync(join(root, "tokenizer.json"))) return null;
    return root;
  }

  async #check(model: string, engine: Engine, check: Check): Promise<void> {
    const { folder } = check;
    try {
      const opened = this.#opened.get(folder) ?? (await this.#open(folder));
      check.verdict =
        opened === null
          ? null
          : await probe(model, engine, {
              marks: opened.marks,
              encode: (text, isFramed, ms) => this.#encode(opened, text, isFramed, ms),
              render: (chat) => (opened.rendering === null ? null : render(opened.rendering, chat)),
            });
    } catch (error) {
      const reason = toTierkvError(error).message;
      this.#logger.warn({ folder, reason }, "a tokenizer cannot be used: engines make the tokens");
    }
    if (check.verdict === null) check.againMs = nowMs() + GATEWAY_PROBE_RETRY_MS;
    else this.#say(model, engine, folder, check.verdict);
  }

  #say(model: string, { name }: Engine, folder: string, { texts, chats, differs }: Verdict): void {
    const where = { engine: name, model, folder };
    if (texts && chats) this.#logger.info(where, "tokens are made here, as the engine makes them");
    else {
      const what = texts ? "of chats" : "of any prompt";
      this.#logger.warn(
        { ...where, differs },
        `the engine makes other tokens than the tokenizer here: ${what} it is asked for them`,
      );
    }
  }

  /** null: there are as many as there may be, or it is being opened. */
  async #open(folder: string): Promise<Opened | null> {
    if (this.#opened.has(folder) || this.#opened.size >= GATEWAY_TOKENIZERS_MAX) {
      return this.#opened.get(folder) ?? null;
    }
    this.#opened.set(folder, null);
    this.#core ??= await import("../../native.ts");
    const id = await this.#core.tokenizerOpen(folder);
    const opened = { id, ...(await readModelFolder(folder)) };
    if (this.#isClosed) this.#core.tokenizerClose(id);
    else this.#opened.set(folder, opened);
    return opened;
  }
}

/** null: the engine renders it. */
function renderedBy(
  { rendering }: Opened,
  { chats, tools }: Verdict,
  body: Fields,
): { text: string; isFramed: boolean } | null {
  const chat = chats ? chatOf(body) : null;
  if (rendering === null || chat === null || (chat.tools !== null && !tools)) return null;
  const text = render(rendering, chat);
  return text === null ? null : { text, isFramed: chat.isFramed };
}

function unusable(model: string, folder: string, error: unknown): TierkvError {
  return new TierkvError("CONFIG_BAD_VALUE", {
    where: "[gateway]",
    key: "tokenizers",
    value: `${model}=${folder}`,
    reason: toTierkvError(error).message,
    fix: "name a folder with the model's tokenizer.json, or leave the model out",
  });
}
