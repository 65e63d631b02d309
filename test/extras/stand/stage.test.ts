// Owns the proof that a stage's processes get logs whatever they are called.
import { readdirSync } from "node:fs";
import { expect, onTestFinished, test } from "vitest";
import { Stage } from "../../../src/extras/stand/stage.ts";
import { Workspace } from "../../../src/extras/stand/workspace.ts";

test("a process that is named like a model of the hub has a log", async () => {
  const workspace = await Workspace.create({ arenaBytes: 2 ** 24, vaultBytes: 2 ** 24 });
  onTestFinished(() => workspace.remove());
  const stage = new Stage(workspace, new AbortController().signal);
  const { done } = stage.runModule("fetch Owner/Model from the hub", "tierkv_absent", [], 20_000);
  await expect(done).rejects.toThrow(/exit code 1/);
  expect(readdirSync(workspace.logs)).toEqual(["fetch-Owner-Model-from-the-hub-1.log"]);
});
