// Owns the figures of restores into SGLang's host pool: tierKV's storage beside SGLang's own file back-end.
import { fileURLToPath } from "node:url";
import { figure, gigabytesPerSecond } from "./lib/figures.js";
import { at } from "./lib/paths.js";
import { Stand } from "./lib/stand.js";

const SCRIPT = fileURLToPath(new URL("./sglang_pages.py", import.meta.url));
const TIMEOUT_MS = 600_000;
const GIB = 2 ** 30;
const WORK = { tokens: 4096, rounds: 9 };
const QUICK = { tokens: 1024, rounds: 3 };
/** Pages of 64 tokens are SGLang's choice on GPUs; 16 shows the cost of each page. */
const PAGES = [64, 16];
const LAYOUTS = ["page_first_direct", "layer_first"];
const TWICE = { on: "ratio", least: 2 };

export const title =
  "Restores into SGLang's host memory (Llama-3.1-8B's KV): tierKV beside SGLang's file back-end";

export async function run({ isQuick, say }) {
  const work = isQuick ? QUICK : WORK;
  const figures = [];
  for (const page of PAGES) {
    for (const layout of LAYOUTS) {
      say(`pages of ${page}, ${layout}`);
      const { bytes, files, ours } = await measure({ ...work, page, layout });
      figures.push(
        figure(
          `pages of ${page} tokens, ${layout}: rate of a prompt's look-up and reads`,
          "GB/s",
          gigabytesPerSecond(bytes, ours),
          { beside: gigabytesPerSecond(bytes, files), of: "SGLang's HiCacheFile", floor: TWICE },
        ),
      );
    }
  }
  return {
    figures,
    notes: [
      `a prompt of ${work.tokens} tokens in reads of 128 pages, as HiCache makes them; both in one process, in turn; every read is compared with what was saved`,
      "the file back-end's pages lie in the page cache; ours in a vault on this machine, as they are (raw)",
    ],
  };
}

async function measure({ tokens, page, layout, rounds }) {
  const stand = new Stand();
  try {
    const model = await stand.makeModel({ layers: 1, hidden: 64 });
    const address = await stand.vault(2 * GIB);
    const { config } = await stand.sidecar(address, { arenaBytes: 1.5 * GIB, codec: "raw" });
    const flags = { config, folder: stand.path("pages"), model, layout, tokens, page, rounds };
    const args = Object.entries(flags).flatMap(([name, value]) => [`--${name}`, `${value}`]);
    const path = [at("test", "engine", "harness", "sglang_cpu"), at("python-shim")].join(":");
    return await stand.python(["-P", SCRIPT, ...args], {
      python: process.env.TIERKV_TEST_SGLANG ?? at(".venv-sglang", "bin", "python"),
      env: { PYTHONPATH: path, SGLANG_USE_CPU_ENGINE: "1", HF_HUB_OFFLINE: "1" },
      timeoutMs: TIMEOUT_MS,
    });
  } finally {
    await stand.close();
  }
}
