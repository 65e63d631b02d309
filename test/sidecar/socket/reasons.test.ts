// Owns the proof that every cause has its own answer: each is caused at a real sidecar, and `explain` tells them apart.
import { readFileSync } from "node:fs";
import { afterAll, describe, expect, test, vi } from "vitest";
import { TierkvError } from "../../../src/base/errors.ts";
import { VaultClient } from "../../../src/client/vault/vault-client.ts";
import { describe as explained } from "../../../src/control/explanation.ts";
import {
  REASONS,
  reasonOf,
  reasonText,
  UNASKED_REASONS,
} from "../../../src/sidecar/socket/reasons.ts";
import type { Account } from "../../../src/sidecar/trace/decisions.ts";
import { openClosedVault, shown } from "../../support/closed-vaults.ts";
import { openHybrid, ATTENTION, STATES } from "../../support/hybrids.ts";
import { digest } from "../../support/records.ts";
import {
  FakeEngine,
  hashesOf,
  helloFrame,
  makeBlocks,
  ShimClient,
} from "../../support/shim-client.ts";
import { openSidecar } from "../../support/sidecars.ts";
import type { TestSidecar } from "../../support/sidecars.ts";
import { closeAfterTest, logger, openClient, openVault, until } from "../../support/vaults.ts";
import type { TestVault } from "../../support/vaults.ts";

vi.mock("../../../src/base/limits/general.ts", async (original) => ({
  ...(await original<object>()),
  PLANS_MAX: 2,
}));

const PAGE = 8192;

/** Returns the latest account, as `tierkv explain` gets it. */
async function account(sidecar: TestSidecar): Promise<Account> {
  const asker = new ShimClient(sidecar.socketPath);
  asker.send(helloFrame({ role: "status" }));
  asker.send({ t: "explain", req: "", most: 100 });
  const { accounts } = await asker.wait("explain_reply");
  asker.close();
  return (accounts as Account[]).at(-1)!;
}

/** Asks as an engine does; returns the outcome. */
async function asked(
  sidecar: TestSidecar,
  shape: { name?: string; namespace?: Buffer; from?: number; handoff?: number } = {},
): Promise<Account> {
  const { name = "chain", namespace, from = 0, handoff = 0 } = shape;
  const id = `asker-${name}`;
  const engine = await FakeEngine.start(sidecar.socketPath, {
    engine: id,
    ...(namespace === undefined ? {} : { namespace }),
  });
  const hashes = hashesOf(makeBlocks(name, 4, PAGE));
  const plan = engine.prefetchGroups([{ group: 0, class: "kv", hashes, from }], { handoff });
  await engine.done(plan);
  engine.release(plan);
  return await account(sidecar);
}

async function saved(sidecar: TestSidecar, namespace?: Buffer): Promise<void> {
  const shape = namespace === undefined ? {} : { namespace };
  const engine = await FakeEngine.start(sidecar.socketPath, { engine: "writer", ...shape });
  engine.save(makeBlocks("chain", 4, PAGE));
  const { counters } = sidecar;
  const settled = (): number =>
    counters.get("blocks_saved") + counters.get("saves_present") + counters.get("dropped_no_vault");
  await until(() => settled() === 4, "the saves");
  engine.close();
  await until(() => counters.get("engines_gone") > 0, "the writer to go");
}

async function withVault(): Promise<{
  sidecar: TestSidecar;
  kv: VaultClient;
  vault: TestVault;
  address: string;
}> {
  const vault = await openVault();
  const kv = openClient(vault);
  const sidecar = await openSidecar({ when: "always", vaults: { kv, ssm: null } });
  return { sidecar, kv, vault, address: vault.address };
}

const other = digest("another namespace");

const CAUSES: Record<string, () => Promise<Account>> = {
  async always() {
    const { sidecar } = await withVault();
    await saved(sidecar);
    return await asked(sidecar);
  },
  async handed_over() {
    const { sidecar } = await withVault();
    await saved(sidecar);
    return await asked(sidecar, { handoff: 64 });
  },
  async never_stored() {
    return await asked((await withVault()).sidecar);
  },
  async evicted() {
    const { sidecar, kv } = await withVault();
    await saved(sidecar);
    vi.spyOn(kv, "find").mockResolvedValue([]);
    return await asked(sidecar);
  },
  async lost() {
    const { sidecar, address, kv, vault } = await withVault();
    await saved(sidecar);
    await vault.close();
    await openVault({ port: Number(address.split(":").at(-1)) });
    const isBack = (): Promise<boolean> =>
      kv.hello(10_000).then(
        () => true,
        () => false,
      );
    await until(isBack, "the vault");
    return await asked(sidecar);
  },
  async flushed() {
    const { sidecar, kv } = await withVault();
    await saved(sidecar);
    await kv.flush(null, 10_000);
    return await asked(sidecar);
  },
  async dropped_flushed() {
    const { sidecar, kv } = await withVault();
    vi.spyOn(kv, "store").mockResolvedValue([12, 12, 12, 12]);
    const engine = await FakeEngine.start(sidecar.socketPath, { engine: "writer" });
    engine.save(makeBlocks("chain", 4, PAGE));
    await until(() => sidecar.counters.get("dropped_flushed") === 4, "the refusals");
    return await asked(sidecar);
  },
  async other_namespace() {
    const { sidecar } = await withVault();
    await saved(sidecar, other);
    return await asked(sidecar);
  },
  async no_vault() {
    return await asked(await openSidecar());
  },
  async vault_down() {
    const kv = closeAfterTest(
      new VaultClient({ address: "127.0.0.1:1", name: "kv", logger, lanes: 0 }),
    );
    return await asked(await openSidecar({ vaults: { kv, ssm: null } }));
  },
  async vault_refused() {
    const refusal = new TierkvError("CREDENTIALS", { path: "x", reason: "gone", fix: "join" });
    const at = { address: "127.0.0.1:1", name: "kv", logger, lanes: 0 } as const;
    const kv = closeAfterTest(new VaultClient({ ...at, refusal }));
    return await asked(await openSidecar({ vaults: { kv, ssm: null } }));
  },
  async dropped_vault_denied() {
    const { sidecar, kv } = await withVault();
    const denied = { name: "kv", address: "x", call: "Store", reason: "role read" };
    vi.spyOn(kv, "store").mockRejectedValue(new TierkvError("VAULT_DENIED", denied));
    const engine = await FakeEngine.start(sidecar.socketPath, { engine: "writer" });
    engine.save(makeBlocks("chain", 4, PAGE));
    await until(() => sidecar.counters.get("dropped_vault_denied") === 4, "the refusals");
    return await asked(sidecar);
  },
  async own_cache() {
    return await asked((await withVault()).sidecar, { from: 4 });
  },
  async weights_unread() {
    const { sidecar } = await withVault();
    await saved(sidecar);
    const engine = await FakeEngine.start(sidecar.socketPath, { engine: "engine-2" });
    const plan = engine.prefetch(digest("one"));
    engine.release(plan, { begun: 1, why: "weights_unread" });
    await vi.waitFor(async () => expect((await account(sidecar)).loadedTokens).toBe(0));
    return await account(sidecar);
  },
  async let_go() {
    const { sidecar, kv } = await withVault();
    vi.spyOn(kv, "find").mockReturnValue(new Promise(() => {}));
    const engine = await FakeEngine.start(sidecar.socketPath);
    engine.release(engine.prefetch(digest("one")));
    await vi.waitFor(async () => expect((await account(sidecar)).loadedTokens).toBe(0));
    return await account(sidecar);
  },
  async state_not_handed_over() {
    const hybrid = await openHybrid();
    const blocks = makeBlocks("hybrid", 4, PAGE);
    await hybrid.store(blocks, ATTENTION);
    await hybrid.ask(blocks);
    return await account(hybrid.sidecar);
  },
  async overload() {
    const vault = await openVault();
    const sidecar = await openSidecar({ vaults: { kv: openClient(vault), ssm: null } });
    const engine = await FakeEngine.start(sidecar.socketPath);
    const plans = Array.from({ length: 3 }, () => engine.prefetch(digest("one")));
    await engine.done(plans[2]!);
    return await account(sidecar);
  },
};

const answers = new Map<string, string>();

describe("a cause and its answer", () => {
  test.each(Object.keys(CAUSES))("%s", async (cause) => {
    const found = await CAUSES[cause]!();
    expect(reasonOf(found)).toBe(cause);
    const [, answer = ""] = explained(found);
    expect(answer).toContain(reasonText(cause));
    answers.set(cause, answer.replaceAll(/\d+/g, "N"));
  });

  test.each(UNASKED_REASONS)("a request that its engine did not ask for: %s", async (why) => {
    const { sidecar } = await withVault();
    const engine = await FakeEngine.start(sidecar.socketPath);
    engine.scheduler.send({ t: "counts", counters: { said: 1 }, unasked: [["r", why, 40, 36]] });
    await until(() => sidecar.counters.get("shim_said") === 1, "the counts");
    const found = await account(sidecar);
    expect(found).toMatchObject({ req: "r", choice: "unasked", why, startTokens: 36 });
    const [, answer = ""] = explained(found);
    expect(answer).toBe(`  not looked up: ${reasonText(why)} (40 tokens, the engine held 36)`);
    answers.set(`unasked ${why}`, answer);
  });

  afterAll(() => {
    expect(new Set(answers.values()).size).toBe(answers.size);
  });
});

test("a state that was offered and dropped, or evicted, is told from one that was never handed over", async () => {
  const hybrid = await openHybrid();
  const blocks = makeBlocks("hybrid", 4, PAGE);
  await hybrid.store(blocks, ATTENTION);
  await hybrid.store(blocks.slice(3), STATES);
  const ssm = openClient(hybrid.ssm, "ssm");
  await ssm.flush(null, 10_000);
  const reader = await FakeEngine.start(hybrid.sidecar.socketPath, {
    engine: "reader",
    groups: hybrid.engine.groups,
  });
  const hashes = hashesOf(blocks);
  const groups = [
    { group: STATES, class: "ssm", hashes, from: 0 },
    { group: ATTENTION, class: "kv", hashes, from: 0 },
  ];
  await reader.done(reader.prefetchGroups(groups));
  expect((await account(hybrid.sidecar)).miss).toBe("flushed");
});

test("a vault that refuses this machine is not called one that does not answer", async () => {
  const closed = await openClosedVault();
  const kv = openClient(closed, "kv", { security: shown(closed, "x".repeat(40)) });
  const sidecar = await openSidecar({ vaults: { kv, ssm: null } });
  const reasons = [reasonOf(await asked(sidecar))];
  await until(() => kv.isDown, "the vault to be taken out of use");
  reasons.push(reasonOf(await asked(sidecar, { name: "again" })));
  expect(reasons).toEqual(["vault_refused", "vault_refused"]);
});

test("no two reasons share a sentence", () => {
  const texts = Object.values(REASONS);
  expect(new Set(texts).size).toBe(texts.length);
  expect(reasonText("dropped_system")).toContain("offered and not stored: system");
});

test("no-hits.md has a row for each reason, and names no other", () => {
  const page = readFileSync(new URL("../../../docs/how-to/no-hits.md", import.meta.url), "utf8");
  const rows = [...page.matchAll(/^\| (`[^|]+) \| ([^|]+) \|/gm)];
  const wordsOf = (cell: string): string[] =>
    [...cell.matchAll(/`([a-z_]+)`/g)].map(([, word = ""]) => word);
  const named = rows.flatMap(([, cell = ""]) => wordsOf(cell));
  const isDropped = (word: string): boolean => word.startsWith("dropped_");
  const all = Object.keys(REASONS);
  expect([...new Set(named)].toSorted()).toEqual(all.filter((word) => !isDropped(word)).toSorted());
  const [, , dropped = ""] = rows.find(([row]) => row.includes("`dropped_...`"))!;
  expect(wordsOf(dropped).length).toBeGreaterThan(3);
  for (const word of wordsOf(dropped)) expect(all).toContain(`dropped_${word}`);
});

const DONE = {
  choice: "loaded",
  why: "cheaper",
  end: "complete",
  miss: null,
  startTokens: 0,
  askedTokens: 64,
  placedTokens: 64,
  loadedTokens: null,
};

test.each([
  ["cheaper", {}],
  ["cheaper", { end: "deadline" }],
  ["deadline", { end: "deadline", placedTokens: 0 }],
  ["no_slot", { end: "no_slot", placedTokens: 0 }],
  ["bad_records", { end: "bad_record", placedTokens: 0 }],
  ["slower", { end: "slower", placedTokens: 0 }],
  ["flushed", { end: "flushed", placedTokens: 0 }],
  ["vault_down", { end: "vault_down", placedTokens: 0 }],
  ["slow_link", { choice: "recomputed", why: "slow_link", end: "slower", placedTokens: 0 }],
  ["not_ready", { choice: "undecided", why: "", end: "not_ready", placedTokens: 0 }],
  ["vault_down", { choice: "undecided", why: "", end: "vault_down", placedTokens: 0 }],
  ["undecided", { choice: "undecided", why: "", end: null, placedTokens: null }],
  ["let_go", { choice: "undecided", why: "", end: null, placedTokens: null, loadedTokens: 0 }],
  ["nothing_held", { choice: "recomputed", why: "nothing_held", placedTokens: 0 }],
] as const)("%s is the reason of %j", (reason, change) => {
  expect(reasonOf({ ...DONE, ...change })).toBe(reason);
});
