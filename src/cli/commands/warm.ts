// Owns `tierkv warm`: sends a file's prompts through an engine, with one token answered each, so that their blocks are stored.
import { readFileSync, statSync } from "node:fs";
import { fileReason, TierkvError, toTierkvError } from "../../base/errors.ts";
import { parseJson } from "../../base/json.ts";
import {
  WARM_AT_ONCE_DEFAULT,
  WARM_AT_ONCE_MAX,
  WARM_FILE_BYTES_MAX,
} from "../../base/limits/tools.ts";
import { showMs } from "../../base/text.ts";
import { integer } from "../../config/kinds.ts";
import { optionOr, parseOption } from "../../config/override.ts";
import { untilSaved } from "../../control/ask-sidecar.ts";
import type { EngineAsker, Warmed } from "../../extras/fidelity/engine-asker.ts";
import type { Call } from "../shell/call.ts";
import type { Command } from "../shell/command.ts";
import { engineUrl } from "../shell/option-kinds.ts";
import { Progress } from "../shell/progress.ts";

interface WarmFlags {
  engine: string;
  atOnce?: string;
}

type Body = Record<string, unknown>;

/** Request of one line of the file. */
interface Asked {
  line: number;
  body: Body;
}

export function addWarm(program: Command): void {
  program
    .command("warm")
    .argument("<file>", "file with one prompt per line, as JSON")
    .summary("compute and store prompts before users send them")
    .description(
      "Sends each prompt of the file to the engine, which computes it and answers one token; tierKV stores the new\n" +
        "blocks. A line is a text, a list of token ids, a list of messages, or an OpenAI API request with `prompt` or\n" +
        "`messages`. A request may name its session. Run it on the engine's machine to see the number of stored blocks.\n" +
        "Exit code 1 if a request failed.",
    )
    .requiredOption("--engine <url>", "address of the engine, like http://127.0.0.1:8000")
    .option(
      "--at-once <n>",
      `number of requests in flight at once (default: ${WARM_AT_ONCE_DEFAULT})`,
    )
    .example("tierkv warm prompts.jsonl --engine http://127.0.0.1:8000")
    .does(warm);
}

interface Sum {
  prompts: number;
  failed: number;
  /** Error of the first failed prompt. */
  reason: string | null;
  promptTokens: number;
  restoredTokens: number;
  computedTokens: number;
  savedMs: number;
  /** Blocks that the sidecar stored; null: no sidecar answers here. */
  savedBlocks: number | null;
}

async function warm(call: Call<WarmFlags>): Promise<boolean> {
  const [file = ""] = call.args;
  const { engine: given, atOnce: most } = call.options;
  const url = parseOption(engineUrl, "--engine", given);
  const atOnce = optionOr(integer(1, WARM_AT_ONCE_MAX), "--at-once", most, WARM_AT_ONCE_DEFAULT);
  const prompts = readPrompts(file);
  const { EngineAsker } = await import("../../extras/fidelity/engine-asker.ts");
  const engine = new EngineAsker(url);
  const model = await engine.model();
  const sum: Sum = {
    prompts: prompts.length,
    failed: 0,
    reason: null,
    promptTokens: 0,
    restoredTokens: 0,
    computedTokens: 0,
    savedMs: 0,
    savedBlocks: null,
  };
  sum.savedBlocks = await countSaves(call, () =>
    sendAll(engine, model, prompts, atOnce, new Progress(call.io), sum),
  );
  call.print(sum, describe(sum));
  return sum.failed === 0;
}

async function sendAll(
  engine: EngineAsker,
  model: string,
  prompts: readonly Asked[],
  atOnce: number,
  progress: Progress,
  sum: Sum,
): Promise<void> {
  const queue = prompts.values();
  let done = 0;
  const worker = async (): Promise<void> => {
    // All workers draw from one iterator.
    for (const { line, body } of queue) {
      try {
        add(sum, await engine.warm(requestOf(body, model)));
      } catch (error) {
        sum.failed += 1;
        sum.reason ??= `line ${line}: ${toTierkvError(error).message}`;
      }
      done += 1;
      progress.at(done, prompts.length, `${sum.computedTokens} tokens computed`);
    }
  };
  await Promise.all(Array.from({ length: atOnce }, worker));
}

/** Counts the blocks that this machine's sidecar stores during `work` and until none waits; null: no sidecar answers. */
async function countSaves(call: Call, work: () => Promise<void>): Promise<number | null> {
  const { SidecarLink } = await import("../../control/sidecar-link.ts");
  const link = new SidecarLink(call.loadConfig().sidecar.socket);
  const saved = async (): Promise<number> => (await link.status()).counters["blocks_saved"] ?? 0;
  try {
    let before: number | null = null;
    try {
      await link.hello();
      before = await saved();
    } catch {
      // The engine may be on another machine.
    }
    await work();
    if (before === null) return null;
    await untilSaved(link);
    return (await saved()) - before;
  } finally {
    link.close();
  }
}

function add(sum: Sum, { promptTokens, restoredTokens, cachedTokens, savedMs }: Warmed): void {
  sum.promptTokens += promptTokens;
  sum.restoredTokens += restoredTokens;
  sum.computedTokens += Math.max(0, promptTokens - cachedTokens);
  sum.savedMs += savedMs;
}

const NOTHING_STORED =
  "          only whole blocks are stored: the prompts may be shorter than a block, or the engine held them already;\n" +
  "          `tierkv explain` says it of each, and `tierkv status` whether the engine stores at all";

function describe(sum: Sum): string[] {
  const { prompts, failed, reason, promptTokens, restoredTokens, computedTokens, savedMs } = sum;
  const time = savedMs > 0 ? `, which saved ${showMs(savedMs)}` : "";
  const isNothing = sum.savedBlocks === 0 && restoredTokens === 0 && failed < prompts;
  return [
    `${prompts - failed} of ${prompts} prompts with ${promptTokens} tokens`,
    `computed: ${computedTokens} tokens at most`,
    `restored: ${restoredTokens} tokens${time}`,
    `stored:   ${sum.savedBlocks === null ? "not known: no sidecar answers here" : `${sum.savedBlocks} blocks`}`,
    ...(isNothing ? [NOTHING_STORED] : []),
    ...(reason === null ? [] : [`failed:   ${failed}, the first: ${reason}`]),
  ];
}

/** Returns the request for one token, unstreamed, with a report of restored tokens. */
function requestOf(body: Body, model: string): Body {
  const { max_completion_tokens: _max, stream_options: _options, ...rest } = body;
  const params = (body["kv_transfer_params"] ?? {}) as Body;
  const ours = (params["tierkv"] ?? {}) as Body;
  return {
    model,
    ...rest,
    max_tokens: 1,
    stream: false,
    kv_transfer_params: { ...params, tierkv: { ...ours, report: true } },
  };
}

function readPrompts(file: string): Asked[] {
  let text: string;
  try {
    if (statSync(file).size > WARM_FILE_BYTES_MAX) {
      throw new TierkvError("USAGE", { reason: `it has more than ${WARM_FILE_BYTES_MAX} bytes` });
    }
    text = readFileSync(file, "utf8");
  } catch (error) {
    throw new TierkvError(
      "USAGE",
      { reason: `${file} cannot be read: ${fileReason(error)}` },
      { cause: error },
    );
  }
  const prompts = text
    .split("\n")
    .flatMap((said, index) =>
      said.trim() === "" ? [] : [{ line: index + 1, body: bodyOf(said, index + 1) }],
    );
  if (prompts.length > 0) return prompts;
  throw new TierkvError("USAGE", { reason: `${file} has no prompt: write one a line, as JSON` });
}

function bodyOf(line: string, number: number): Body {
  const value = parseJson(line);
  if (typeof value === "string" && value !== "") return { prompt: value };
  if (Array.isArray(value) && value.length > 0) {
    if (value.every((item) => Number.isSafeInteger(item))) return { prompt: value };
    if (value.every((item) => typeof item === "object" && item !== null))
      return { messages: value };
  } else if (typeof value === "object" && value !== null) {
    if ("messages" in value || "prompt" in value) return { ...value };
  }
  const expected = "a text, token ids, messages, or an object with `prompt` or `messages`";
  throw new TierkvError("USAGE", { reason: `line ${number}: expected ${expected}` });
}
