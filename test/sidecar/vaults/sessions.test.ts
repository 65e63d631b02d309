// Owns the proof that a request's session is kept where its blocks are, and that `tierkv session` lists, keeps and releases it.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { SESSION_TELLS_MAX } from "../../../src/base/limits/sessions.ts";
import { runInside } from "../../support/command-line.ts";
import { ATTENTION, openHybrid, STATES } from "../../support/hybrids.ts";
import type { Hybrid } from "../../support/hybrids.ts";
import { hashesOf, makeBlocks } from "../../support/shim-client.ts";
import type { Block } from "../../support/shim-client.ts";
import { testDirectory } from "../../support/sidecars.ts";
import { until } from "../../support/vaults.ts";

const PAGE = 8192;

/** Ends a turn of a conversation, whose states count from block `from` on. */
function end(
  { engine }: Hybrid,
  blocks: readonly Block[],
  from: number,
  range: { keepS?: number; isReleased?: boolean } = {},
): void {
  const hashes = hashesOf(blocks);
  engine.scheduler.send({
    t: "session",
    session: "chat",
    keep_s: range.keepS ?? 3600,
    release: Number(range.isReleased ?? false),
    namespace: engine.namespace,
    tenant: 0,
    groups: [
      { group: ATTENTION, class: "kv", hashes, from: 0 },
      { group: STATES, class: "ssm", hashes, from },
    ],
  });
}

function configOf(scene: Hybrid): string {
  const config = join(testDirectory(), "tierkv.toml");
  writeFileSync(config, `[sidecar]\nsocket = "${scene.sidecar.socketPath}"\n`);
  return config;
}

async function run(scene: Hybrid, ...words: string[]) {
  const argv = ["session", ...words, "--json", "--config", configOf(scene)];
  const { exitCode, stdout } = await runInside(argv);
  return { exitCode, ...(JSON.parse(stdout) as { sessions: { kept: number }[] }) };
}

test("a session's attention is kept, and its latest states; states of an earlier turn leave it and go first", async () => {
  const scene = await openHybrid();
  const { kv, ssm } = scene;
  const turn = makeBlocks("talk", 8, PAGE);
  await scene.store(turn, ATTENTION);
  await scene.store([turn[1]!, turn[2]!, turn[6]!], STATES);
  end(scene, turn.slice(0, 4), 1);
  await until(() => ssm.stats().keptBytes > 0 && kv.stats().keptBytes > 0, "the first turn");
  const before = ssm.stats().keptBytes;
  end(scene, turn, 5);
  await until(() => ssm.stats().keptBytes === before / 2, "the second turn");
  expect(await run(scene, "ls")).toMatchObject({
    exitCode: 0,
    sessions: [{ name: "chat", model: "test/model", records: 9, kept: 9 }],
  });
  end(scene, turn, 5, { isReleased: true });
  await until(() => kv.stats().keptBytes + ssm.stats().keptBytes === 0, "its end");
  expect([kv.counters.get("demoted"), ssm.counters.get("demoted")]).toEqual([8, 1]);
});

test("a command keeps a session that is only named, and releases it; an unknown name is reported", async () => {
  const scene = await openHybrid();
  const turn = makeBlocks("talk", 4, PAGE);
  const listed = await runInside(["session", "ls", "--config", configOf(scene)]);
  expect([listed.exitCode, listed.stdout]).toEqual([
    0,
    "there are no sessions: a session begins with a request that names it\n",
  ]);
  await scene.store(turn, ATTENTION);
  end(scene, turn, 4, { keepS: 0 });
  await until(async () => (await run(scene, "ls")).sessions.length === 1, "the session");
  expect((await run(scene, "show", "chat")).sessions).toMatchObject([{ kept: 0, leftMs: 0 }]);
  expect((await run(scene, "keep", "chat", "--for", "2h")).sessions).toMatchObject([{ kept: 4 }]);
  const done = { exitCode: 0, sessions: [], released: true };
  expect(await run(scene, "release", "chat")).toMatchObject(done);
  const none = { exitCode: 1, sessions: [], released: false };
  expect(await run(scene, "release", "chat")).toMatchObject(none);
  expect(scene.kv.stats()).toMatchObject({ keptBytes: 0, sessions: 0 });
  expect((await run(scene, "show", "chat")).exitCode).toBe(1);
  expect(await run(scene, "release", "chat")).toMatchObject({ exitCode: 1, sessions: [] });
});

test.each(["", "n".repeat(129), "two\nlines"])(
  "a name that no session can have is refused, whatever is asked of it: %j",
  async (name) => {
    for (const what of ["show", "keep", "release"]) {
      const { exitCode, stderr } = await runInside(["session", what, name]);
      expect([exitCode, stderr]).toEqual([
        2,
        expect.stringMatching(/NAME = .*1 to 128 printable|an argument is empty/),
      ]);
    }
  },
);

test("vaults are told of a bounded number at a time; the rest is counted", async () => {
  const scene = await openHybrid();
  const { counters } = scene.sidecar;
  const turn = makeBlocks("talk", 2, PAGE);
  const count = 2 * SESSION_TELLS_MAX;
  for (let at = 0; at < count; at += 1) end(scene, turn, 1);
  const [told, dropped] = ["session_tells", "session_tells_dropped"] as const;
  await until(() => counters.get(told) + counters.get(dropped) === count, "all to be heard");
  expect(counters.get(dropped)).toBeGreaterThan(0);
  expect(counters.get("session_tells_failed")).toBe(0);
});
