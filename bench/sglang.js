// Owns the figures of restores into SGLang's host pool, and of its server's first tokens: tierKV's storage beside SGLang's own file back-end.
import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { figure, gigabytesPerSecond } from "./lib/figures.js";
import { at } from "./lib/paths.js";
import { Stand } from "./lib/stand.js";

const POOLS = fileURLToPath(new URL("./sglang_pages.py", import.meta.url));
const SERVERS = fileURLToPath(new URL("./sglang_servers.py", import.meta.url));
/** Environment with Mooncake, where bench/rivals/setup.sh has made it. */
const RIVALS = at("bench", "rivals", ".venv");
const MOONCAKE = existsSync(RIVALS) ? RIVALS : null;
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

const TITLES = {
  pools:
    "Restores into SGLang's host memory (Llama-3.1-8B's KV): tierKV beside SGLang's storages in files and Mooncake",
  server:
    "First tokens of SGLang's server (Llama-3.1-8B's KV): tierKV beside SGLang's storage in files",
};
const NOTES = [
  "the file back-end's pages lie in the page cache; ours in a vault on this machine, as they are (raw)",
];

export const titleOf = (part) => TITLES[part];

export async function run({ isQuick, say, part }) {
  const work = isQuick ? QUICK : WORK;
  return part === "pools" ? await reads(work, say) : await firstTokens(work.rounds);
}

async function reads(work, say) {
  const figures = [];
  for (const page of PAGES) {
    for (const layout of LAYOUTS) {
      say(`pages of ${page}, ${layout}`);
      const { bytes, files, ours, mooncake } = await ofPools({ ...work, page, layout });
      const rate = (seconds) => gigabytesPerSecond(bytes, seconds);
      const what = `pages of ${page} tokens, ${layout}: rate of a prompt's look-up and reads`;
      const beside = { beside: rate(files), of: "SGLang's HiCacheFile", floor: TWICE };
      figures.push(figure(what, "GB/s", rate(ours), beside));
      if (mooncake !== undefined) {
        const other = { beside: rate(mooncake), of: "SGLang's MooncakeStore over TCP" };
        figures.push(figure(what, "GB/s", rate(ours), other));
      }
    }
  }
  return {
    figures,
    notes: [
      ...NOTES,
      `a prompt of ${work.tokens} tokens in reads of 128 pages, as HiCache makes them; all in one process, in turn; every read is compared with what was saved`,
      MOONCAKE === null
        ? "Mooncake: not measured; bench/rivals/setup.sh installs it"
        : "Mooncake's pages lie in a node on this machine, without checksums; four connections, as for us",
    ],
  };
}

async function firstTokens(rounds) {
  const alone = await ofPools({ ...SERVED, rounds });
  const { ours, files } = await ofServers({ ...SERVED, rounds });
  const ms = (seconds) => seconds.map((each) => each * 1e3);
  const least = ours.host.map((each, round) => each + alone.ours[round]);
  const what = `${SERVED.tokens} tokens from tierKV: first token`;
  const figures = [
    figure(what, "ms", ms(ours.storage), {
      beside: ms(least),
      of: "a hit in SGLang's host memory, and the look-up and reads alone",
      floor: NEARLY,
    }),
    figure(what, "ms", ms(ours.storage), {
      beside: ms(files.storage),
      of: "SGLang's HiCacheFile",
    }),
    figure("a hit in SGLang's host memory: first token", "ms", ms(ours.host), {
      beside: ms(ours.device),
      of: "a hit in the device's memory",
    }),
  ];
  const asked = `a prompt of ${SERVED.tokens + 1} tokens, an answer of one; both servers in turn, the other one stopped`;
  return { figures, notes: [...NOTES, asked] };
}

/** Measures reads into host pools, without a server; with Mooncake in a network of its own, where there is a Mooncake. */
async function ofPools(work) {
  const python = process.env.TIERKV_TEST_SGLANG ?? at(".venv-sglang", "bin", "python");
  const path = [at("bench"), at("test", "engine", "harness", "sglang_cpu"), at("python-shim")];
  const env = {
    PYTHONPATH: path.join(":"),
    SGLANG_USE_CPU_ENGINE: "1",
    HF_HUB_OFFLINE: "1",
  };
  const inside = ["--net", "--fork", "--kill-child", "sh", "-c", 'ip link set lo up && exec "$@"'];
  // Mooncake's objects are whole pages, which lie in pieces where layers come first.
  const how =
    MOONCAKE === null || work.layout === "layer_first"
      ? { python, env, before: [], more: {} }
      : {
          python: "unshare",
          env,
          before: [...inside, "sh", python],
          more: { mooncake: MOONCAKE },
        };
  const shape = { layers: 1, hidden: 64 };
  return await measured(work, { shape, script: POOLS, arenaBytes: 1.5 * GIB }, () => how);
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

async function measured({ tokens, page, layout, rounds }, { shape, script, arenaBytes }, howIn) {
  const stand = new Stand();
  try {
    const model = await stand.makeModel(shape);
    const address = await stand.vault(2 * GIB);
    const { config } = await stand.sidecar(address, { arenaBytes, codec: "raw" });
    const { before = [], more = {}, ...how } = howIn(stand);
    const own = { config, folder: stand.path("pages"), model, layout, tokens, page, rounds };
    const flags = Object.entries({ ...own, ...more });
    const args = flags.flatMap(([name, value]) => [`--${name}`, `${value}`]);
    return await stand.python([...before, "-P", script, ...args], {
      ...how,
      timeoutMs: TIMEOUT_MS,
    });
  } finally {
    await stand.close();
  }
}
