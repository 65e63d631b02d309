// Owns the ids that the gateway makes of prompts: a folder's name first, then lines of [path, body] in and of ids out; null where an engine is asked.
import { createInterface } from "node:readline";
import { tokenizerEncode, tokenizerOpen } from "../../../dist/base/native.js";
import { chatOf, render } from "../../../dist/gateway/tokens/chat.js";
import { readModelFolder } from "../../../dist/gateway/tokens/folder.js";
import { promptOf } from "../../../dist/gateway/tokens/prompt.js";

const [folder] = process.argv.slice(2);
const id = await tokenizerOpen(folder);
const { rendering } = await readModelFolder(folder);
for await (const line of createInterface({ input: process.stdin })) {
  const { own } = promptOf(...JSON.parse(line));
  const chat = "chat" in own ? chatOf(own.chat) : null;
  const text = "chat" in own ? chat && render(rendering, chat) : own.text;
  const isFramed = chat === null ? own.isFramed : chat.isFramed;
  const ids = text === null ? null : [...(await tokenizerEncode(id, text, isFramed))];
  process.stdout.write(`${JSON.stringify(ids)}\n`);
}
