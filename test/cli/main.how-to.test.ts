// Owns the proof that the lines of README and the how-to pages do as printed what they say, typed on two vaults' machines and an engine's.
// @module-tag nightly
import { spawn, spawnSync } from "node:child_process";
import type { ChildProcess } from "node:child_process";
import { once } from "node:events";
import { chmodSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import type { AddressInfo } from "node:net";
import { hostname } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterEach, expect, test } from "vitest";
import { FakeEngine, hashesOf, makeBlocks } from "../support/shim-client.ts";
import { testDirectory } from "../support/sidecars.ts";
import { closeAfterTest, until } from "../support/vaults.ts";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const FENCED = /^```[a-z]*\n([\s\S]*?)^```/gm;
const TEST_MS_MAX = 600_000;
const LINE_MS_MAX = 60_000;
const PAGE_BYTES = 4096;
const BLOCKS = 20;
const BLOCK_TOKENS = 16;

/** Pages with lines for the engine's machine; others need a gateway, a registry, a Mac or another engine. */
const PAGES = [
  "README.md",
  ...["vaults", "monitor", "no-hits", "plan", "sessions"].map((name) => `docs/how-to/${name}.md`),
];
/** A page for a vault's machine. */
const OF_VAULTS = "docs/how-to/services.md";
/** Beginnings of lines that are not run here, and why. */
const NOT_HERE: Readonly<Record<string, string>> = {
  "tierkv init": "typed on the vaults' machines, first",
  "tierkv vault ": "typed on the vaults' machines, first",
  "tierkv join": "the code of a reader's own vault; joined first",
  "tierkv sidecar": "typed first",
  "tierkv bundle": "needs a registry and keys",
  "tierkv service install vault":
    "wants tierKV below /opt; test/packaging/install-lines.test.ts has it there",
  "tierkv service install sidecar": "no systemd runs here",
  "tierkv service uninstall": "no systemd runs here",
  "tierkv plan --model config.json --trace": "needs a trace of the reader's",
  "tierkv doctor --engine": "needs a server; test/engine/test_first_minutes.py has one",
};
/** Beginnings of lines that run on: ended after their first output. */
const RUN_ON = ["tierkv top  ", "tierkv top --web", "tierkv status --watch"];
/** Exit codes other than 0. */
const CODES: Readonly<Record<string, number>> = {
  "tierkv session show chat-17": 1,
  "tierkv session keep chat-17": 1,
  "tierkv session release chat-17": 1,
  "tierkv service status": 1,
  // The engine has reported no step.
  "tierkv doctor": 1,
};

function linesOf(page: string): string[] {
  const text = readFileSync(join(ROOT, page), "utf8");
  const lines = [...text.matchAll(FENCED)].flatMap(([, block = ""]) => block.split("\n"));
  return lines.filter((line) => line.startsWith("tierkv "));
}

const begins = (line: string) => (text: string) => `${line} `.startsWith(text);

interface Ran {
  exitCode: number | null;
  text: string;
}

const children: ChildProcess[] = [];
afterEach(async () => {
  for (const child of children.splice(0)) {
    if (child.exitCode === null && child.signalCode === null) {
      child.kill("SIGKILL");
      await once(child, "close");
    }
  }
});

/** A machine with a home of its own, on which somebody types. */
class Machine {
  readonly dir = testDirectory();
  readonly #env: Record<string, string>;

  constructor() {
    for (const name of ["bin", "run"]) mkdirSync(join(this.dir, name), { mode: 0o700 });
    const program = join(this.dir, "bin", "tierkv");
    const script = `#!/bin/sh\nexec "${process.execPath}" "${join(ROOT, "bin", "tierkv.js")}" "$@"\n`;
    writeFileSync(program, script);
    chmodSync(program, 0o755);
    const path = `${join(this.dir, "bin")}:${process.env["PATH"] ?? ""}`;
    this.#env = { PATH: path, HOME: this.dir, XDG_RUNTIME_DIR: join(this.dir, "run") };
  }

  types(line: string): Ran {
    const { status, stdout, stderr } = spawnSync("bash", ["-c", line], {
      cwd: this.dir,
      env: this.#env,
      encoding: "utf8",
      timeout: LINE_MS_MAX,
    });
    return { exitCode: status, text: stdout + stderr };
  }

  /** Types a line that must end with 0; returns what it printed. */
  does(line: string): string {
    const { exitCode, text } = this.types(line);
    expect(exitCode, `${line}\n${text}`).toBe(0);
    return text;
  }

  /** Starts a line that runs on, until its output or log has this text; resolves to its output. */
  async starts(line: string, says = "\n"): Promise<{ child: ChildProcess; first: string }> {
    const child = spawn("bash", ["-c", `exec ${line}`], { cwd: this.dir, env: this.#env });
    children.push(child);
    const said = { out: "", err: "" };
    child.stdout.setEncoding("utf8").on("data", (text: string) => (said.out += text));
    child.stderr.setEncoding("utf8").on("data", (text: string) => (said.err += text));
    const isUp = (): boolean => said.out.includes("\n") || said.err.includes(says);
    await until(() => isUp() || child.exitCode !== null, `output of ${line}`);
    expect(child.exitCode, `${line}\n${said.out}${said.err}`).toBeNull();
    return { child, first: said.out };
  }
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, "close");
  return port;
}

interface OnVault {
  machine: Machine;
  address: string;
  child: ChildProcess;
  /** The line that it printed for an engine's machine. */
  join: string;
}

/** README's first step, but for a free port of the loopback. */
async function openVault(): Promise<OnVault> {
  const machine = new Machine();
  const address = `127.0.0.1:${await freePort()}`;
  machine.does(`tierkv init --machine vault --listen ${address}`);
  const { child, first } = await machine.starts("tierkv vault", NOWHERE);
  const path = /\S+$/.exec(first.split("\n", 1)[0] ?? "")?.[0] ?? "";
  return { machine, address, child, join: readFileSync(path, "utf8").trim() };
}

/** An engine whose prompt was saved, and restored from the vaults. */
async function openEngine(machine: Machine): Promise<FakeEngine> {
  const engine = await FakeEngine.start(join(machine.dir, "run", "tierkv", "sidecar.sock"));
  closeAfterTest({ close: () => engine.scheduler.close() });
  for (const worker of engine.workers) closeAfterTest(worker);
  const blocks = makeBlocks("a prompt", BLOCKS, PAGE_BYTES);
  engine.save(blocks);
  await until(
    () => machine.types("tierkv status").text.includes(`${BLOCKS} blocks saved`),
    "the saves",
  );
  const { plan, reason } = await engine.done(engine.prefetch(hashesOf(blocks)));
  expect(reason).toBe("complete");
  engine.release(plan, { tokens: BLOCKS * BLOCK_TOKENS, load_us: 1000, begun: 1 });
  return engine;
}

/** Text that no log has: a vault prints where its line is. */
const NOWHERE = "\0";

const LLAMA = {
  _name_or_path: "meta-llama/Llama-3.1-8B",
  architectures: ["LlamaForCausalLM"],
  model_type: "llama",
  num_hidden_layers: 32,
  num_attention_heads: 32,
  num_key_value_heads: 8,
  hidden_size: 4096,
  max_position_embeddings: 131_072,
  torch_dtype: "bfloat16",
};

/** Types each page's lines on its machine; returns what did not do as it should. */
async function typed(box: Machine, vaults: Machine): Promise<string> {
  const skipped: string[] = [];
  const wrong: string[] = [];
  const all = [
    ...[...new Set(PAGES.flatMap(linesOf))].map((line) => ({ line, on: box })),
    ...linesOf(OF_VAULTS).map((line) => ({ line, on: vaults })),
  ];
  for (const { line, on } of all) {
    const why = Object.keys(NOT_HERE).find(begins(line));
    if (why !== undefined) {
      skipped.push(`${line}: ${NOT_HERE[why]}`);
      continue;
    }
    if (RUN_ON.some(begins(line))) {
      const { child } = await on.starts(line);
      child.kill("SIGTERM");
      continue;
    }
    const { exitCode, text } = on.types(line);
    const code = CODES[Object.keys(CODES).find(begins(line)) ?? ""] ?? 0;
    const isBroken = /INTERNAL|undefined|NaN|\bat .*\.js:\d+/.test(text);
    if (exitCode !== code || isBroken) wrong.push(`${line}: ${exitCode}\n${text}`);
  }
  process.stdout.write(`not run:\n${skipped.join("\n")}\n`);
  return wrong.join("\n");
}

test(
  "README's steps and each page's lines, then a vault leaves the pool by the printed steps",
  async () => {
    const [a, b] = [await openVault(), await openVault()];
    const box = new Machine();
    for (const vault of [a, b])
      expect(box.does(vault.join)).toContain(`joined the kv and ssm vault at ${vault.address}`);
    await box.starts("tierkv sidecar", "ready");
    const engine = await openEngine(box);
    writeFileSync(join(box.dir, "config.json"), JSON.stringify(LLAMA));
    expect(await typed(box, a.machine)).toBe("");
    // plan.md shows what its first line prints.
    const plan = readFileSync(join(ROOT, "docs", "how-to", "plan.md"), "utf8");
    const [first = "", shown] = [...plan.matchAll(FENCED)].map(([, block = ""]) => block);
    expect(box.does(first.split("\n", 1)[0]!)).toBe(shown);

    // vaults.md, "Take a vault out of the pool".
    for (const { machine } of [a, b]) {
      const [line = ""] = machine.does("tierkv invite --role admin").split("\n");
      box.does(line);
    }
    // A machine that joins again is listed once.
    const { peers } = JSON.parse(a.machine.does("tierkv peers --json")) as {
      peers: { name: string; role: string }[];
    };
    const name = hostname()
      .replaceAll(/[^\w.-]/g, "_")
      .slice(0, 64);
    expect(peers).toMatchObject([{ name, role: "admin" }]);
    expect(box.does(`tierkv vaults drain ${a.address}`)).toContain("records moved");
    expect(box.does("tierkv vaults ls")).toMatch(new RegExp(`kv +${a.address} .* drains `));
    for (const line of box.does(`tierkv vaults remove ${a.address}`).split("\n"))
      expect(line).not.toContain("PROBLEM");
    a.child.kill("SIGTERM");
    await once(a.child, "close");
    const blocks = makeBlocks("a prompt", BLOCKS, PAGE_BYTES);
    engine.scheduler.close();
    for (const worker of engine.workers) worker.close();
    const [sidecar] = children.filter(({ spawnargs }) => spawnargs.at(-1)?.includes("sidecar"));
    sidecar!.kill("SIGTERM");
    await once(sidecar!, "close");
    await box.starts("tierkv sidecar", "ready");
    expect(box.does("tierkv status")).not.toContain("PROBLEM");
    // All of the prompt came to the vault that stayed.
    const next = await FakeEngine.start(join(box.dir, "run", "tierkv", "sidecar.sock"));
    closeAfterTest({ close: () => next.scheduler.close() });
    for (const worker of next.workers) closeAfterTest(worker);
    const { reason, placed } = await next.done(next.prefetch(hashesOf(blocks)));
    expect([reason, placed.get(0)?.length]).toEqual(["complete", BLOCKS]);

    // Flushed as printed, and by a wrong name.
    const flushed = b.machine.types("tierkv flush --yes --model wrong");
    expect([flushed.exitCode, flushed.text]).toEqual([
      1,
      expect.stringContaining("they know test/model"),
    ]);
    expect(b.machine.does("tierkv flush --yes --model test/model")).toContain("records dropped");
  },
  TEST_MS_MAX,
);
