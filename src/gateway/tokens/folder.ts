// Owns reading a model's folder: its special tokens, its chat template, and a stamp that changes with its files.
import { readFile, stat } from "node:fs/promises";
import { join } from "node:path";
import {
  GATEWAY_PROBE_MARKS_MAX,
  GATEWAY_TOKENIZER_CONFIG_BYTES_MAX,
} from "../../base/limits/gateway.ts";
import type { Rendering } from "./chat.ts";
import { templateOf } from "./template.ts";

export interface ModelFolder {
  /** null: the engine renders chats. */
  rendering: Rendering | null;
  /** Some of the special tokens, as they stand in texts. */
  marks: string[];
}

/** Names of special tokens in templates and tokenizer_config.json. */
const SPECIAL = /^(?:bos|eos|unk|sep|pad|cls|mask)_token$/;
/** Templates with a clock are left to the engine, because its time zone decides the date. */
const CLOCK = "strftime_now";

const TOKENIZER = "tokenizer.json";
const CONFIG = "tokenizer_config.json";
const TEMPLATE = "chat_template.jinja";

/** Returns a stamp that changes when a file does. */
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

/** Returns a token's text; the file has it as a string or within an object. */
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

/** Returns null where the file is missing or larger than such files are. */
async function textIn(folder: string, name: string): Promise<string | null> {
  try {
    const path = join(folder, name);
    const { size } = await stat(path);
    return size > GATEWAY_TOKENIZER_CONFIG_BYTES_MAX ? null : await readFile(path, "utf8");
  } catch {
    return null;
  }
}
