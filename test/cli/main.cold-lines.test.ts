// Owns the proof that the lines of the page about Valkey and S3 do what it says, as printed: configurations, access list, a cluster's making.
import { spawnSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";
import { ItemStatus } from "../../src/base/block.ts";
import { ColdStore } from "../../src/client/cold/cold-store.ts";
import { ENTRIES } from "../../src/config/schema.ts";
import { certify } from "../../src/vault/access/identity.ts";
import { runInside } from "../support/command-line.ts";
import { Pages } from "../support/lanes.ts";
import { NAMESPACE } from "../support/records.ts";
import { testDirectory } from "../support/sidecars.ts";
import { HAS_VALKEY, HAS_VALKEY_CLI, VALKEY_CLI, ValkeyServer } from "../support/stores.ts";
import { closeAfterTest, logger, SOON_MS, until } from "../support/vaults.ts";

const PAGE = fileURLToPath(new URL("../../docs/how-to/valkey-and-s3.md", import.meta.url));
const TEXT = readFileSync(PAGE, "utf8");
/** Blocks by language; the empty one is of commands and of servers' files. */
const BLOCKS = [...TEXT.matchAll(/^```([a-z]*)\n([\s\S]*?)^```/gm)].map(
  ([, language = "", text = ""]) => ({ language, text }),
);
const TEST_MS_MAX = 180_000;
const COMMAND_MS_MAX = 60_000;
/** User and password as the page prints them. */
const LOGIN = { user: "tierkv", password: "PASSWORD" };
const NODES = 6;

/** Returns the block that has a line with this beginning. */
function blockWith(beginning: string): string {
  const block = BLOCKS.find(({ text }) => `\n${text}`.includes(`\n${beginning}`));
  expect(block, `a block with the line ${beginning}`).toBeDefined();
  return block!.text;
}

const linesOf = (text: string): string[] => text.split("\n").filter((line) => line !== "");
const wordsOf = (line: string): string[] =>
  line.split(/\s+/).map((word) => word.replaceAll('"', ""));

describe("configurations", () => {
  const all = BLOCKS.filter(({ language }) => language === "toml").map(({ text }) => text);

  test("there are two, and each is one that a sidecar starts with", async () => {
    expect(all).toHaveLength(2);
    for (const text of all) {
      const dir = testDirectory();
      const { certPem } = certify({ usage: "server", commonName: "valkey", hosts: ["here"] });
      const files = { "valkey-password": "word\n", "valkey-ca.pem": certPem };
      for (const [name, content] of Object.entries(files))
        writeFileSync(join(dir, name), content, { mode: 0o600 });
      const path = join(dir, "tierkv.toml");
      writeFileSync(path, text.replaceAll("/etc/tierkv", dir));
      const env = { HOME: dir, XDG_RUNTIME_DIR: dir };
      const checked = await runInside(["config", "check", "--config", path], { env });
      expect([checked.exitCode, checked.stderr], text).toEqual([0, ""]);
    }
  });

  test("keys that sentences name are keys", () => {
    const named = [...TEXT.matchAll(/`(store_\w+|insecure_lan|kv_cold|ssm_cold)\b/g)];
    const keys = new Set(named.map(([, key = ""]) => key));
    expect(keys.size).toBeGreaterThan(4);
    const known = ENTRIES.filter(({ section }) => section === "cluster").map(({ name }) => name);
    for (const key of keys) expect(known).toContain(key);
  });
});

test("each of Valkey's words in the table is one that is counted by its name", () => {
  const rows = linesOf(TEXT.slice(TEXT.indexOf("## When something is wrong")));
  const words = rows.flatMap((row) => {
    const [, first = ""] = row.split("|");
    return [...first.matchAll(/`([A-Z]+)`/g)].map(([, word = ""]) => word);
  });
  expect(words.length).toBeGreaterThan(6);
  const source = new URL("../../crates/cold/src/valkey/refusals.rs", import.meta.url);
  const counted = readFileSync(fileURLToPath(source), "utf8");
  for (const word of words) expect(counted, word).toContain(`"${word}"`);
});

test("the policy of a bucket is one of S3's, for the bucket of the page's configuration", () => {
  const { text = "" } = BLOCKS.find(({ language }) => language === "json") ?? {};
  const { Statement: statements } = JSON.parse(text) as {
    Statement: { Effect: string; Action: string | string[]; Resource: string }[];
  };
  const allowed = Object.fromEntries(
    statements.flatMap(({ Action, Resource }) => [Action].flat().map((name) => [name, Resource])),
  );
  const [, address = ""] = /"s3:\/\/([^"]+)"/.exec(TEXT) ?? [];
  const [bucket] = address.split("/");
  const objects = `arn:aws:s3:::${address}/*`;
  expect(allowed).toEqual({
    "s3:GetObject": objects,
    "s3:PutObject": objects,
    "s3:DeleteObject": objects,
    "s3:ListBucket": `arn:aws:s3:::${bucket}`,
  });
  // What a client is told that lacks one.
  const source = new URL("../../crates/cold/src/s3.rs", import.meta.url);
  const told = readFileSync(fileURLToPath(source), "utf8");
  for (const right of Object.keys(allowed)) expect(told).toContain(right);
});

function openStore(address: string): ColdStore {
  const settings = { class: 1, ...LOGIN };
  return closeAfterTest(new ColdStore({ address, name: "kv", settings, logger }));
}

/** Does all that sidecars and commands do at a store. */
async function useAll(store: ColdStore): Promise<void> {
  const pages = await Pages.open(8, 4096);
  await store.hello(SOON_MS);
  store.learnModel(NAMESPACE, "m");
  await store.nameModel(NAMESPACE, "m", SOON_MS);
  const stored = await store.store(NAMESPACE, pages.encode(), SOON_MS);
  expect(new Set(stored)).toEqual(new Set([ItemStatus.ACCEPTED]));
  const held = await store.lookup(NAMESPACE, pages.keys, SOON_MS);
  expect(held[0]).toBe(0xff);
  const { statuses } = await store.fetch(NAMESPACE, pages.plan(), { deadlineMs: SOON_MS });
  expect(new Set(statuses)).toEqual(new Set([ItemStatus.ACCEPTED]));
  for (const node of await store.nodes(SOON_MS)) expect(node.trouble).toBe("");
}

const refusalsOf = (store: ColdStore): string[] =>
  Object.entries(store.counts())
    .filter(([name, count]) => name.startsWith("refused_") && count > 0)
    .map(([name, count]) => `${name}: ${count}`);

/** Types the lines that give the user its rights and the node a limit. */
async function typeRights(server: ValkeyServer): Promise<void> {
  for (const line of linesOf(blockWith("ACL SETUSER")))
    expect(await server.say(...wordsOf(line)), line).toBe("+OK\r\n");
}

test.skipIf(!HAS_VALKEY)(
  "the printed rights are enough for all that is done at a server, a flush and a damaged record included",
  async () => {
    const server = await ValkeyServer.start();
    await typeRights(server);
    const store = openStore(server.address);
    await useAll(store);
    await server.damageAll();
    const pages = await Pages.open(8, 4096);
    const reported = await store.report(NAMESPACE, pages.keys, "damaged", SOON_MS);
    expect(new Set(reported)).toEqual(new Set([ItemStatus.QUARANTINED]));
    for (const model of ["m", null]) await store.flush(null, SOON_MS, "kv", model);
    expect(refusalsOf(store)).toEqual([]);
    expect(await server.say("ACL", "LOG")).toBe("*0\r\n");
    const [node] = await store.nodes(SOON_MS);
    expect(node).toMatchObject({ maxBytes: 64 * 2 ** 30, policy: "allkeys-lfu" });
  },
);

interface Doctor {
  findings: { code: string; text: string }[];
  vaults: { address: string; error: string | null }[];
}

test.skipIf(!HAS_VALKEY)(
  "`tierkv doctor` says whether it reaches the server, and whether that has a limit and evicts; its records expire",
  async () => {
    const server = await ValkeyServer.start();
    const [acl = "", ...limits] = linesOf(blockWith("ACL SETUSER"));
    const dir = testDirectory();
    const password = join(dir, "valkey-password");
    writeFileSync(password, `${LOGIN.password}\n`, { mode: 0o600 });
    const config = join(dir, "tierkv.toml");
    const cluster = `role = "inference"\nkv_cold = "${server.address}"\nstore_user = "${LOGIN.user}"\nstore_password = "${password}"`;
    const socket = `[sidecar]\nsocket = "${join(dir, "none.sock")}"`;
    writeFileSync(config, `[cluster]\n${cluster}\n${socket}\n`);
    const asked = async (): Promise<Doctor> => {
      const { stdout } = await runInside(["doctor", "--json", "--config", config]);
      const { findings, vaults } = JSON.parse(stdout) as Doctor;
      // No sidecar runs here, which is a finding, too.
      const ours = findings.filter(({ text }) => text.includes(`127.0.0.1:${server.port}`));
      return { findings: ours, vaults };
    };
    const ask = async (): Promise<{ codes: string[]; error: string | null }> => {
      const { findings, vaults } = await asked();
      return { codes: findings.map(({ code }) => code), error: vaults[0]?.error ?? null };
    };
    // There is no such user yet.
    expect((await asked()).findings[0]?.text).toMatch(
      /WRONGPASS .*; correct \[cluster\] store_user and store_password/,
    );
    expect(await server.say(...wordsOf(acl))).toBe("+OK\r\n");
    expect(await ask()).toEqual({ codes: ["store_unbounded"], error: null });
    const [limit = "", policy = ""] = limits;
    await server.ask(...wordsOf(limit));
    expect(await ask()).toEqual({ codes: ["store_never_free"], error: null });
    await server.ask(...wordsOf(policy));
    expect(await ask()).toEqual({ codes: [], error: null });
    const records = await server.keys("tierkv:1:*");
    expect(records.length).toBeGreaterThan(0);
    for (const key of records)
      expect(Number(String(await server.ask("TTL", key)).slice(1))).toBeGreaterThan(0);
  },
  TEST_MS_MAX,
);

test.skipIf(!HAS_VALKEY)(
  "a right that is left out is missed: none of the printed ones is there for nothing",
  async () => {
    const [line = ""] = linesOf(blockWith("ACL SETUSER"));
    const rights = wordsOf(line).filter((word) => word.startsWith("+"));
    // Only clusters ask for slots, redirect, and have replicas.
    const ofClusters = ["+asking", "+readonly"];
    const server = await ValkeyServer.start();
    for (const right of rights.filter((word) => !ofClusters.includes(word))) {
      await server.ask("ACL", "DELUSER", LOGIN.user);
      await server.ask("FLUSHALL");
      await server.ask("ACL", "LOG", "RESET");
      await server.ask(...wordsOf(line).filter((word) => word !== right));
      const store = openStore(server.address);
      await useAll(store).catch(() => {});
      await server.damageAll();
      const pages = await Pages.open(8, 4096);
      await store.report(NAMESPACE, pages.keys, "damaged", SOON_MS).catch(() => {});
      await store.flush(null, SOON_MS, "kv", "m").catch(() => {});
      store.close();
      expect(await server.say("ACL", "LOG"), right).toContain(right.slice(1).split("|")[0]);
    }
  },
  TEST_MS_MAX,
);

const LLAMA = {
  _name_or_path: "meta-llama/Llama-3.1-8B",
  model_type: "llama",
  num_hidden_layers: 32,
  num_attention_heads: 32,
  num_key_value_heads: 8,
  hidden_size: 4096,
  torch_dtype: "bfloat16",
};

test("the plan ends with the lines that the page shows", async () => {
  const dir = testDirectory();
  writeFileSync(join(dir, "config.json"), JSON.stringify(LLAMA));
  const [line = ""] = linesOf(blockWith("tierkv plan"));
  const [, ...argv] = wordsOf(line).map((word) =>
    word === "config.json" ? join(dir, word) : word,
  );
  const { exitCode, stdout } = await runInside(argv);
  expect(exitCode).toBe(0);
  const shown = blockWith("  A record of");
  expect(stdout.slice(-shown.length)).toBe(shown);
});

/** Starts the six nodes with the printed file, which gives the user its rights. */
async function startNodes(): Promise<ValkeyServer[]> {
  const file = join(testDirectory(), "valkey.conf");
  writeFileSync(file, blockWith("cluster-enabled"));
  const nodes: ValkeyServer[] = [];
  const password = "ADMIN_PASSWORD";
  for (let at = 0; at < NODES; at += 1)
    nodes.push(await ValkeyServer.start([], { file, password }));
  return nodes;
}

test("the user of the printed file has the rights of the printed command", () => {
  const [typed = ""] = linesOf(blockWith("ACL SETUSER"));
  expect(linesOf(blockWith("cluster-enabled"))).toContain(typed.replace("ACL SETUSER", "user"));
});

test.skipIf(!HAS_VALKEY || !HAS_VALKEY_CLI)(
  "the printed file and line make a cluster of three primaries and three replicas, which any member's address opens",
  async () => {
    const nodes = await startNodes();
    for (const line of linesOf(blockWith("cluster-enabled"))) {
      const [name = "", ...values] = wordsOf(line);
      if (name === "port" || name === "user") continue;
      const told = await nodes[0]!.say("CONFIG", "GET", name);
      const value = told.split("\r\n").at(-2);
      const wanted = name === "maxmemory" ? `${64 * 2 ** 30}` : values.join(" ");
      expect(value, line).toBe(wanted);
    }
    const [line = ""] = linesOf(blockWith("valkey-cli -a ADMIN_PASSWORD --cluster create"));
    const [, ...words] = wordsOf(line);
    let at = 0;
    const typed: string[] = [];
    for (const word of words) {
      // A node's bus lies 10,000 ports above by default, which may be taken here.
      const own = /^10\.0\.0\.\d:6379$/.test(word) ? await busAddress(nodes[at++]!) : word;
      typed.push(own);
    }
    expect(at).toBe(NODES);
    const options = { input: "yes\n", encoding: "utf8", timeout: COMMAND_MS_MAX } as const;
    const made = spawnSync(VALKEY_CLI ?? "", typed, options);
    expect(made.status, `${made.stdout}${made.stderr}`).toBe(0);
    for (const node of nodes) {
      await until(async () => {
        const info = await node.say("CLUSTER", "INFO");
        return info.includes("cluster_state:ok") && info.includes(`cluster_known_nodes:${NODES}`);
      }, "the cluster to agree");
    }
    const listed = linesOf((await nodes[5]!.say("CLUSTER", "NODES")).replaceAll("\r", ""));
    const count = (role: RegExp): number => listed.filter((node) => role.test(node)).length;
    expect([count(/\bmaster\b/), count(/\bslave\b/)]).toEqual([3, 3]);
    const store = openStore(nodes[5]!.address);
    await useAll(store);
    expect(refusalsOf(store)).toEqual([]);
  },
  TEST_MS_MAX,
);

async function busAddress(node: ValkeyServer): Promise<string> {
  const bus = (await node.say("CONFIG", "GET", "cluster-port")).split("\r\n").at(-2) ?? "";
  return `127.0.0.1:${node.port}@${bus}`;
}
