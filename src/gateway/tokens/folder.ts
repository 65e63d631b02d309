// Owns reading a model's folder: its tokenizer's marks, what it takes to render chats, and whether its files are still the same.
import { readFile, stat } from "node:fs/promises";
import { join } from "node:path";
import {
  GATEWAY_PROBE_MARKS_MAX,
  GATEWAY_TOKENIZER_CONFIG_BYTES_MAX,
} from "../../limits/gateway.ts";
import type { Rendering } from "./chat.ts";
import { templateOf } from "./template.ts";

export interface ModelFolder {
  /** null: chats are the engine's. */
  rendering: Rendering | null;
  /** Special tokens, as they stand in texts: some of them. */
  marks: string[];
}

/** What a template calls these, as tokenizer_config.json does. */
const SPECIAL = /^(?:bos|eos|unk|sep|pad|cls|mask)_token$/;
/** Today's date would be the engine's, in its time zone. */
const CLOCK = "strftime_now";

const TOKENIZER = "tokenizer.json";
const CONFIG = "tokenizer_config.json";
const TEMPLATE = "chat_template.jinja";

/** Other files have another one. */
export async function stampOf(folder: string): Promise<string> {
  const each = [TOKENIZER, CONFIG, TEMPLATE].map(async (name) => {
    try {
      const { ino, size, mtimeMs } = await stat(join(folder, name));
      return `${ino} ${size} ${mtimeMs}`;
    } catch {
      return "none";
    }
  });
  return (await Promise.all(each)).join(", ");
}

export async function readModelFolder(folder: string): Promise<ModelFolder> {
  const config = (await jsonIn(folder, CONFIG)) ?? {};
  const entries = Object.entries(config);
  const special = entries.flatMap(([name, value]) => {
    const content = SPECIAL.test(name) ? contentOf(value) : null;
    return content === null ? [] : [[name, content] as const];
  });
  const added = Object.values(config["added_tokens_decoder"] ?? {}).map(contentOf);
  const marks = [...special.map(([, content]) => content), ...added].filter(
    (content) => content !== null,
  );
  const source = (await textIn(folder, TEMPLATE)) ?? config["chat_template"];
  return {
    rendering: renderingOf(source, Object.fromEntries(special)),
    marks: [...new Set(marks)].slice(0, GATEWAY_PROBE_MARKS_MAX),
  };
}

function renderingOf(source: unknown, special: Rendering["special"]): Rendering | null {
  if (typeof source !== "string" || source.includes(CLOCK)) return null;
  try {
    return { template: templateOf(source), special };
  } catch {
    return null;
  }
}

/** A token is written as its text, or as an object with it. */
function contentOf(value: unknown): string | null {
  if (typeof value === "string") return value;
  const { content } = (value ?? {}) as { content?: unknown };
  return typeof content === "string" ? content : null;
}

async function jsonIn(folder: string, name: string): Promise<Record<string, unknown> | null> {
  try {
    const read: unknown = JSON.parse((await textIn(folder, name)) ?? "null");
    return typeof read === "object" ? (read as Record<string, unknown> | null) : null;
  } catch {
    return null;
  }
}

/** null: there is none, or it is larger than such files are. */
async function textIn(folder: string, name: string): Promise<string | null> {
  try {
    const path = join(folder, name);
    const { size } = await stat(path);
    return size > GATEWAY_TOKENIZER_CONFIG_BYTES_MAX ? null : await readFile(path, "utf8");
  } catch {
    return null;
  }
}
