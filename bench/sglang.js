// Owns the figures of restores into SGLang's host pool, and of its server's first tokens: tierKV's storage beside SGLang's own file back-end.
import { fileURLToPath } from "node:url";
import { figure, gigabytesPerSecond } from "./lib/figures.js";
import { at } from "./lib/paths.js";
import { Stand } from "./lib/stand.js";

const POOLS = fileURLToPath(new URL("./sglang_pages.py", import.meta.url));
const SERVERS = fileURLToPath(new URL("./sglang_servers.py", import.meta.url));
const TIMEOUT_MS = 1_200_000;
const GIB = 2 ** 30;
const WORK = { tokens: 4096, rounds: 9 };
const QUICK = { tokens: 1024, rounds: 3 };
/** Pages of 64 tokens are SGLang's choice on GPUs; 16 shows the cost of each page. */
const PAGES = [64, 16];
const LAYOUTS = ["page_first_direct", "layer_first"];
const TWICE = { on: "ratio", least: 2 };
/** Of SGLang's server: short, because SGLang's attention on a CPU takes time with the square of the prompt, hits included. */
const SERVED = { tokens: 1024, page: 64, layout: LAYOUTS[0] };
const NEARLY = { on: "ratio", most: 1.1 };

export const title =
  "SGLang with Llama-3.1-8B's KV: tierKV beside SGLang's file back-end, into host memory and in its server";

export async function run({ isQuick, say }) {
  const work = isQuick ? QUICK : WORK;
  const figures = [];
  for (const page of PAGES) {
    for (const layout of LAYOUTS) {
      say(`pages of ${page}, ${layout}`);
      const { bytes, files, ours } = await ofPools({ ...work, page, layout });
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
  say("SGLang's server");
  figures.push(...(await firstTokens(work.rounds)));
  return {
    figures,
    notes: [
      `host memory: a prompt of ${work.tokens} tokens in reads of 128 pages, as HiCache makes them; both in one process, in turn; every read is compared with what was saved`,
      `server: a prompt of ${SERVED.tokens + 1} tokens, an answer of one; both servers in turn, the other one stopped`,
      "the file back-end's pages lie in the page cache; ours in a vault on this machine, as they are (raw)",
    ],
  };
}

async function firstTokens(rounds) {
  const alone = await ofPools({ ...SERVED, rounds });
  const { ours, files } = await ofServers({ ...SERVED, rounds });
  const ms = (seconds) => seconds.map((each) => each * 1e3);
  const least = ours.host.map((each, round) => each + alone.ours[round]);
  const what = `server, ${SERVED.tokens} tokens from tierKV: first token`;
  return [
    figure(what, "ms", ms(ours.storage), {
      beside: ms(least),
      of: "a hit in SGLang's host memory, and the look-up and reads alone",
      floor: NEARLY,
    }),
    figure(what, "ms", ms(ours.storage), {
      beside: ms(files.storage),
      of: "SGLang's HiCacheFile",
    }),
    figure("server, a hit in SGLang's host memory: first token", "ms", ms(ours.host), {
      beside: ms(ours.device),
      of: "a hit in the device's memory",
    }),
  ];
}

/** Measures reads into host pools, without a server. */
async function ofPools(work) {
  const shape = { layers: 1, hidden: 64 };
  return await measured(work, { shape, script: POOLS, arenaBytes: 1.5 * GIB }, () => ({
    python: process.env.TIERKV_TEST_SGLANG ?? at(".venv-sglang", "bin", "python"),
    env: {
      PYTHONPATH: [at("test", "engine", "harness", "sglang_cpu"), at("python-shim")].join(":"),
      SGLANG_USE_CPU_ENGINE: "1",
      HF_HUB_OFFLINE: "1",
    },
  }));
}

/** Measures two servers. */
async function ofServers(work) {
  const shape = { geometry: "llama-3.1-8b" };
  return await measured(work, { shape, script: SERVERS, arenaBytes: GIB / 2 }, (stand) => ({
    env: {
      PYTHONPATH: [at("test", "engine"), at("python-shim")].join(":"),
      XDG_STATE_HOME: stand.path("state"),
    },
  }));
}

async function measured({ tokens, page, layout, rounds }, { shape, script, arenaBytes }, run) {
  const stand = new Stand();
  try {
    const model = await stand.makeModel(shape);
    const address = await stand.vault(2 * GIB);
    const { config } = await stand.sidecar(address, { arenaBytes, codec: "raw" });
    const flags = { config, folder: stand.path("pages"), model, layout, tokens, page, rounds };
    const args = Object.entries(flags).flatMap(([name, value]) => [`--${name}`, `${value}`]);
    return await stand.python(["-P", script, ...args], { ...run(stand), timeoutMs: TIMEOUT_MS });
  } finally {
    await stand.close();
  }
}
