// Owns `tierkv demo`: starts the demonstration.
import type { Call } from "../call.ts";
import type { Command } from "../command.ts";

interface DemoOptions {
  keep?: true;
  quick?: true;
  realSize?: true;
}

export function addDemo(program: Command): void {
  program
    .command("demo")
    .summary("show a restore with a real engine on this machine")
    .description(
      "Starts two vaults, a sidecar and a real vLLM on the CPU with a small seeded model, sends a long text, and\n" +
        "measures the time to the first token: computed, from the engine's own cache, and restored from the vault.\n" +
        "Exit code 0 only when every restore came from the vault and the tokens are the same.",
    )
    .option("--keep", "leave everything running and print what to try")
    .option("--quick", "a smaller model and a shorter text")
    .option(
      "--real-size",
      "also with Llama-3.1-8B's KV, up to 16,000 tokens: takes 12 GiB of memory",
    )
    .example("tierkv demo --keep")
    .does(demonstrate);
}

async function demonstrate(call: Call<DemoOptions>): Promise<number> {
  const { runDemo } = await import("../../demo/demo.ts");
  const { keep, quick, realSize } = call.options;
  return runDemo({
    keep: keep === true,
    json: call.isJson,
    quick: quick === true,
    realSize: realSize === true,
  });
}
