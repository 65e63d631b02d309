// Owns the gateway's own tokenizers: which models have one, and what an engine must agree with before it is used.
import { existsSync } from "node:fs";
import { isAbsolute, join } from "node:path";
import { TierkvError } from "../../base/errors.ts";
import { GATEWAY_ENCODE_CHARS_MAX, GATEWAY_PROBE_RETRY_MS } from "../../base/limits/gateway.ts";
import type { Logger } from "../../base/log.ts";
import { nowMs } from "../../base/time.ts";
import type { Engine } from "../engines/engine.ts";
import { chatOf, render } from "./chat.ts";
import { Folders } from "./folders.ts";
import type { Opened } from "./folders.ts";
import { probe } from "./probe.ts";
import type { Verdict } from "./probe.ts";
import type { Fields, Prompt } from "./prompt.ts";
import { Turns } from "./turns.ts";

/** For `tierkv gateway status`: one model at one engine. */
export interface ShownTokenizer {
  engine: string;
  model: string;
  folder: string;
  /** `asking`: no verdict yet, so the engine makes the tokens; `failed`: the folder cannot be opened. */
  state: "agrees" | "differs" | "asking" | "failed";
  /** Why the folder failed; empty unless it did. */
  reason: string;
  /** Whether chats are rendered here, and chats with tools. */
  chats: boolean;
  tools: boolean;
}

/** Result of comparing an engine's tokens with ours. */
interface Check {
  folder: string;
  /** The engine's `rises` at the check; another number means another process. */
  rises: number;
  /** Tokenizer that the engine was compared with; null: it is being opened, or the folder failed. */
  opened: Opened | null;
  /** null: the check runs, got no answer, or the folder failed. */
  verdict: Verdict | null;
  /** When the check is repeated, if there is no verdict. */
  againMs: number;
}

/** Half a character cannot be passed to the tokenizer, so the engine decides what becomes of it. */
const HALF = /\p{Surrogate}/u;

const NO_IDS = new Uint32Array();

export class OwnTokenizers {
  readonly #named: ReadonlyMap<string, string>;
  readonly #folders: Folders;
  readonly #logger: Logger;
  readonly #checks = new WeakMap<Engine, Map<string, Check>>();
  readonly #turns = new Turns();
  #isClosed = false;

  /** `named`: folders by model; other models use the engine's own folder where it can be read here. */
  constructor(named: ReadonlyMap<string, string>, logger: Logger) {
    this.#named = named;
    this.#folders = new Folders(logger);
    this.#logger = logger;
  }

  /** Throws CONFIG_BAD_VALUE for a configured folder that cannot be used. */
  async start(): Promise<void> {
    for (const [model, folder] of this.#named) {
      const found = await this.#folders.open(folder);
      if ("reason" in found) throw unusable(model, folder, found.reason);
    }
  }

  close(): Promise<void> {
    this.#isClosed = true;
    this.#folders.close();
    return Promise.resolve();
  }

  /** Returns null where the engine must be asked; the promise resolves to null on a time-out or failure. */
  make(
    { model, own }: Prompt,
    engine: Engine,
    withinMs: number,
  ): Promise<Uint32Array | null> | null {
    if (own === null) return null;
    const { opened = null, verdict = null } = this.#checkOf(model, engine) ?? {};
    if (opened === null || verdict === null || !verdict.texts) return null;
    const asked = "text" in own ? own : renderedBy(opened, verdict, own.chat);
    if (asked === null) return null;
    return this.#encode(opened, asked.text, asked.isFramed, withinMs)?.catch(() => null) ?? null;
  }

  shown(engines: readonly Engine[]): ShownTokenizer[] {
    return engines.flatMap((engine) =>
      [...(this.#checks.get(engine) ?? [])].map(([model, { folder, verdict }]) => {
        const failed = verdict === null ? this.#folders.failedOf(folder) : null;
        const undecided = failed === null ? "asking" : "failed";
        return {
          engine: engine.name,
          model,
          folder,
          state: verdict === null ? undecided : verdict.texts ? "agrees" : "differs",
          reason: failed?.reason ?? "",
          chats: verdict?.chats ?? false,
          tools: verdict?.tools ?? false,
        };
      }),
    );
  }

  /** Returns null where the text is not tokenized here; the promise resolves to null on a time-out. */
  #encode(
    opened: Opened,
    text: string,
    isFramed: boolean,
    withinMs: number,
  ): Promise<Uint32Array | null> | null {
    const isLong = text.length > GATEWAY_ENCODE_CHARS_MAX;
    if (isLong || HALF.test(text)) return null;
    return this.#turns.take(() => opened.encode(text, isFramed), withinMs);
  }

  /** Returns the engine's latest check, or begins one for a new process or new files. null: no tokenizer here. */
  #checkOf(model: string, engine: Engine): Check | null {
    const folder = this.#folderOf(model, engine);
    if (folder === null) return null;
    const checks = this.#checks.get(engine) ?? new Map<string, Check>();
    this.#checks.set(engine, checks);
    const { rises } = engine;
    const last = checks.get(model);
    if (last?.rises === rises && last.folder === folder && this.#isCurrent(last)) return last;
    const check: Check = { folder, rises, opened: null, verdict: null, againMs: Infinity };
    checks.set(model, check);
    void this.#check(model, engine, check);
    return check;
  }

  /** Whether a check is of the current files and not due again. */
  #isCurrent({ folder, opened, verdict, againMs }: Check): boolean {
    const isOfFiles = opened === null || opened === this.#folders.openedOf(folder);
    return isOfFiles && (verdict !== null || nowMs() < againMs);
  }

  #folderOf(model: string, engine: Engine): string | null {
    const told = engine.models.find(({ id }) => id === model);
    const base = told?.parent ?? model;
    const named = this.#named.get(model) ?? this.#named.get(base);
    if (named !== undefined) return named;
    const root = engine.models.find(({ id }) => id === base)?.root ?? "";
    if (!isAbsolute(root)) return null;
    const isTried = this.#folders.openedOf(root) ?? this.#folders.failedOf(root);
    return isTried !== null || existsSync(join(root, "tokenizer.json")) ? root : null;
  }

  async #check(model: string, engine: Engine, check: Check): Promise<void> {
    const { folder } = check;
    const opened = await this.#folders.open(folder);
    if ("reason" in opened) {
      check.againMs = opened.againMs;
      return;
    }
    check.opened = opened;
    const verdict = await probe(model, engine, {
      marks: opened.marks,
      encode: (text, isFramed, ms) =>
        (this.#encode(opened, text, isFramed, ms) ?? Promise.resolve(NO_IDS)).catch(() => NO_IDS),
      render: (chat) => (opened.rendering === null ? null : render(opened.rendering, chat)),
    });
    // Files were replaced meanwhile; the next check compares the new ones.
    if (this.#isClosed || this.#folders.openedOf(folder) !== opened) return;
    check.verdict = verdict;
    if (verdict === null) check.againMs = nowMs() + GATEWAY_PROBE_RETRY_MS;
    else this.#say(model, engine, folder, verdict);
  }

  #say(model: string, { name }: Engine, folder: string, { texts, chats, differs }: Verdict): void {
    const where = { engine: name, model, folder };
    if (texts && chats)
      this.#logger.info(
        where,
        "the gateway makes token ids itself, because they equal the engine's",
      );
    else {
      const what = texts ? "of chats" : "of any prompt";
      this.#logger.warn(
        { ...where, differs },
        `the engine makes other token ids than the tokenizer here: the gateway asks it for those ${what}`,
      );
    }
  }
}

/** Returns null where the engine renders the chat. */
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

function unusable(model: string, folder: string, reason: string): TierkvError {
  return new TierkvError("CONFIG_BAD_VALUE", {
    where: "[gateway]",
    key: "tokenizers",
    value: `${model}=${folder}`,
    reason,
    fix: "name a folder with the model's tokenizer.json, or leave the model out",
  });
}
