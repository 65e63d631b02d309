// Owns the proof that `tierkv explain` asks the sidecar of this machine and says in words what it decided.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { describe as explained } from "../../../src/control/explanation.ts";
import type { Account } from "../../../src/sidecar/trace/decisions.ts";
import { runInside } from "../../support/command-line.ts";
import { openSidecar, testDirectory } from "../../support/sidecars.ts";

const ACCOUNT: Account = {
  req: "cmpl-1",
  traceparent: "",
  receipt: "",
  plan: 3,
  block: "ab",
  gap: null,
  divergence: null,
  at: 0,
  engine: "e",
  startTokens: 0,
  askedTokens: 320,
  beyondTokens: 0,
  returns: false,
  ahead: 0,
  longerTokens: 0,
  heldTokens: 160,
  roomTokens: null,
  windows: 1,
  chosenTokens: 160,
  placedTokens: 160,
  fetched: { vault: 10, shared: 0 },
  bytes: 81_920,
  vaults: [],
  loadedTokens: 160,
  choice: "loaded",
  why: "cheaper",
  end: "complete",
  miss: "dropped_queue_full",
  predicted: { lookup: null, fetch: 4, load: 1, compute: 20, recompute: 40 },
  actual: { lookup: 0.5, fetch: 4.2, load: 1.1, compute: null },
  saved: 15.2,
};

test("an account in words names what was found, decided and missed", () => {
  const text = explained(ACCOUNT).join("\n");
  expect(text).toContain("offered and not stored: the queue of saves was full");
  expect(text).toContain("loaded up to 160: restoring answers first");
  expect(text).toContain("4.20 ms, predicted 4.00 ms");
  expect(text).toContain("saved:   15.2 ms of computing, less look-up, fetch and load");
  const first = { ...ACCOUNT, predicted: { ...ACCOUNT.predicted, fetch: 0, load: 0 } };
  const unmeasured = explained(first).join("\n");
  expect(unmeasured.match(/ms, not predicted/g)).toHaveLength(2);
  expect(text).not.toContain("shared memory");
  const shared = { ...ACCOUNT, fetched: { vault: 0, shared: 10 } };
  expect(explained(shared).join("\n")).toContain("placed up to 160, 10 blocks from shared memory");
  expect(explained({ ...ACCOUNT, saved: -3 }).join("\n")).toContain("3.00 ms faster");
  const ended = (heldTokens: number): string =>
    explained({ ...ACCOUNT, heldTokens, end: "end_of_hit" }).join("\n");
  expect(ended(160)).toContain("all held blocks were fetched, placed up to 160");
  expect(ended(320)).toMatch(/did not bring a block that it had reported: .*, placed up to 160/);
});

test("a prompt of which nothing is held has no rows of what did not happen", () => {
  const none = { lookup: null, fetch: null, load: null, compute: null, recompute: null };
  const miss: Account = {
    ...ACCOUNT,
    heldTokens: 0,
    chosenTokens: 0,
    placedTokens: 0,
    loadedTokens: 0,
    fetched: { vault: 0, shared: 0 },
    choice: "recomputed",
    why: "nothing_held",
    miss: "never_stored",
    end: "end_of_hit",
    predicted: none,
    actual: { ...none, lookup: 0.5, fetch: 1.9 },
    saved: null,
  };
  expect(explained(miss).slice(1)).toEqual([
    "  recomputed: its first missing block was never stored since this sidecar started: the prompt is new, its request or engine stores nothing, the engine has held it in its own cache since before, or it lies on a vault that owned it before the list of vaults changed",
    "  asked:   320 tokens, the engine held 0; look-up 0.50 ms",
    "  held:    0 tokens",
    "  fetch:   no more held than the engine has, nothing fetched",
    "  block:   ab, the last one looked up",
  ]);
});

test("a look-up that was stopped says nothing about what is held", () => {
  const none = { lookup: null, fetch: null, load: null, compute: null, recompute: null };
  const stopped: Account = {
    ...ACCOUNT,
    heldTokens: null,
    chosenTokens: null,
    placedTokens: null,
    loadedTokens: 0,
    fetched: { vault: 0, shared: 0 },
    choice: "undecided",
    why: "",
    miss: null,
    end: "slower",
    predicted: none,
    actual: none,
    saved: null,
  };
  expect(explained(stopped).slice(1)).toEqual([
    "  undecided: computing the rest answered sooner, so the look-up or the restore was stopped",
    "  asked:   320 tokens, the engine held 0; look-up -",
    "  fetch:   the look-up had not ended, nothing fetched",
    "  block:   ab, the last one looked up",
  ]);
});

test("a load that brought less than was chosen is not called loaded", () => {
  const cut = { ...ACCOUNT, end: "vault_down", placedTokens: 64, loadedTokens: 0 } as const;
  const text = explained(cut).join("\n");
  expect(text).toContain(
    "to be loaded up to 160, loaded 0 tokens: the vault did not answer, or refused",
  );
  expect(text).not.toContain("  loaded up to 160");
  const gone = explained({ ...cut, end: "end_of_hit" }).join("\n");
  expect(gone).toMatch(/loaded 0 tokens: a vault did not bring a block that it had reported/);
  expect(gone).not.toContain("all held blocks were fetched");
});

test("a prompt that is longer than one look-up takes says how much was left out", () => {
  expect(explained(ACCOUNT).join("\n")).not.toContain("beyond");
  const text = explained({ ...ACCOUNT, beyondTokens: 64 }).join("\n");
  expect(text).toContain("64 more tokens are beyond what one look-up takes");
});

test("a hand-off from longer blocks says that they are cut", () => {
  expect(explained(ACCOUNT).join("\n")).not.toContain("cut from");
  const text = explained({ ...ACCOUNT, longerTokens: 128 }).join("\n");
  expect(text).toContain("blocks:  cut from another engine's blocks of 128 tokens");
});

test("a request that goes on from another says that its blocks are saved first", () => {
  expect(explained(ACCOUNT).join("\n")).not.toContain("first time");
  expect(explained({ ...ACCOUNT, returns: true }).join("\n")).toContain(
    "a prompt that has come back, or of a session: saved before other new prompts",
  );
});

test("a gap before held blocks that nobody stored is put down to a vault that joined", () => {
  const gap = { vault: "a:1", behind: 188 };
  const never = {
    ...ACCOUNT,
    gap,
    choice: "recomputed",
    why: "nothing_held",
    placedTokens: 0,
  } as const;
  const joined = "188 blocks behind it are held (its vault joined the list, was away,";
  expect(explained({ ...never, miss: "never_stored" }).join("\n")).toContain(joined);
  expect(explained({ ...never, miss: "vault_down" }).join("\n")).not.toContain(joined);
});

test("a rest whose computing nobody has measured is not predicted", () => {
  const predicted = { ...ACCOUNT.predicted, compute: 0, recompute: 8600 };
  expect(explained({ ...ACCOUNT, predicted }).join("\n")).toContain(
    "compute: predicted 8.6 s for all",
  );
});

test("how many requests came before it is said where any did", () => {
  expect(explained(ACCOUNT).join("\n")).not.toContain("queue:");
  expect(explained({ ...ACCOUNT, ahead: 12 }).join("\n")).toContain("12 requests came before it");
});

test("what shared memory cannot hold is said with the key to set", () => {
  expect(explained(ACCOUNT).join("\n")).not.toContain("room:");
  const text = explained({ ...ACCOUNT, roomTokens: 96 }).join("\n");
  expect(text).toContain("room:    shared memory holds 96 of them");
  expect(text).toContain("[sidecar] arena_bytes");
  const passing = explained({ ...ACCOUNT, windows: 7 }).join("\n");
  expect(passing).toContain("room:    larger than shared memory: its blocks come in 7 windows");
});

test("a request the sidecar does not know is said to be unknown", async () => {
  const sidecar = await openSidecar();
  const config = join(testDirectory(), "tierkv.toml");
  writeFileSync(config, `[sidecar]\nsocket = "${sidecar.socketPath}"\n`);
  const { exitCode, stdout } = await runInside(["explain", "nobody", "--config", config]);
  expect([exitCode, stdout.trim()]).toEqual([1, 'the sidecar remembers no request "nobody"']);
  const all = await runInside(["explain", "--config", config]);
  expect(all.stdout).toBe("the sidecar remembers no request yet: no engine has sent one\n");
});
