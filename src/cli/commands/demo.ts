// Owns `tierkv demo`: starts the demonstration.
import type { Call } from "../shell/call.ts";
import type { Command } from "../shell/command.ts";

interface DemoOptions {
  keep?: true;
  quick?: true;
  realSize?: true;
  model?: string;
}

export function addDemo(program: Command): void {
  program
    .command("demo")
    .summary("show a restore with a real engine on this machine")
    .description(
      "Starts two vaults, a sidecar and vLLM on the CPU with a small seeded model, and sends a long text. Measures the\n" +
        "time to the first token: computed, from the engine's own cache, and restored from the vault. Before that, a\n" +
        "published model answers a question about a document: computed, restored exactly, and restored as INT8. Exit code\n" +
        "0 only if every restore came from the vault with the same tokens.",
    )
    .option("--keep", "leave everything running and print commands to try")
    .option("--quick", "use a smaller model and a shorter text")
    .option(
      "--real-size",
      "repeat with Llama-3.1-8B's KV size, up to 16,000 tokens; takes 12 GiB of memory",
    )
    .option(
      "--model <dir>",
      "read with this model's folder; else a small instruct model of the hub, or Gemma 3 270M",
    )
    .example("tierkv demo --keep")
    .does(demonstrate);
}

async function demonstrate(call: Call<DemoOptions>): Promise<number> {
  const { runDemo } = await import("../../extras/demo/demo.ts");
  const { keep, quick, realSize, model } = call.options;
  return runDemo({
    keep: keep === true,
    json: call.isJson,
    quick: quick === true,
    realSize: realSize === true,
    model,
  });
}
