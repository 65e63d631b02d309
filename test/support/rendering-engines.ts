// Owns engines that render requests of every form into tokens, report the blocks of each, and stand behind one gateway.
import { onTestFinished } from "vitest";
import type { Preset } from "../../src/config/config.ts";
import { call, gatewayBefore, until } from "./gateways.ts";
import type { Scene } from "./gateways.ts";
import { tokensOf } from "./sim-engine.ts";
import { SimPublisher } from "./sim-publisher.ts";

/** As an engine with a template of its own: whatever is in these fields is in the prompt, in this order. */
export function rendered(_path: string, fields: Readonly<Record<string, unknown>>): number[] {
  const { prompt, reasoning_effort, documents, tools, system, instructions, messages, input } =
    fields;
  if (prompt !== undefined) {
    const one =
      Array.isArray(prompt) && typeof prompt[0] !== "number" ? (prompt[0] as string) : prompt;
    return tokensOf(one as string | number[]);
  }
  const said = [reasoning_effort, documents, tools, system, instructions, messages, input];
  return tokensOf(said.map((one) => JSON.stringify(one) ?? "").join("|"));
}

/** Starts a gateway before engines that render every form, report their blocks, and hold all that they computed. */
export async function renderingEngines(
  count = 4,
  preset: Preset = "earliest-token",
): Promise<Scene & { publishers: SimPublisher[] }> {
  const publishers = await Promise.all(
    Array.from({ length: count }, () => new SimPublisher({ blockSize: 16 }).start()),
  );
  onTestFinished(() => {
    for (const publisher of publishers) publisher.stop();
  });
  const models = publishers.map(() => ["m"]);
  const scene = await gatewayBefore(models, { preset }, publishers);
  for (const [at, engine] of scene.engines.entries()) {
    engine.rendered = rendered;
    engine.tokenize = (body) => rendered("", JSON.parse(body) as Record<string, unknown>);
    engine.onPrompt = (tokens) => publishers[at]!.take(tokens);
  }
  await until(async () => {
    const { text } = await call(scene.url, "/metrics");
    return [...text.matchAll(/events_live\{.*\} 1$/gm)].length === count;
  });
  return { ...scene, publishers };
}
