// Owns the proof that a connection delivers what came before its end, and nothing after it.
import { once } from "node:events";
import { connect, createServer } from "node:net";
import type { Socket } from "node:net";
import { join } from "node:path";
import { expect, test } from "vitest";
import { LOOP_SLICE_MS } from "../../../src/base/limits/general.ts";
import { nowMs, yieldToLoop } from "../../../src/base/time.ts";
import { Connection } from "../../../src/sidecar/socket/connection.ts";
import { encodeFrame } from "../../../src/sidecar/socket/frames.ts";
import { testDirectory } from "../../support/sidecars.ts";
import { closeAfterTest, logger, until } from "../../support/vaults.ts";

const FRAMES = 3;

/** Sends frames that each take longer than a slice, ends our direction, and returns what the other side saw. */
async function seenOf(onFirst: (ours: Socket) => void): Promise<string[]> {
  const path = join(testDirectory(), "pair.sock");
  const server = closeAfterTest(createServer());
  await new Promise<void>((resolve) => {
    server.listen(path, resolve);
  });
  const theirs = connect(path);
  const [ours] = (await once(server, "connection")) as [Socket];
  const seen: string[] = [];
  const onMessage = (): void => {
    if (seen.length === 0) onFirst(ours);
    seen.push("frame");
    for (const startedMs = nowMs(); nowMs() - startedMs <= LOOP_SLICE_MS;);
  };
  const events = { onMessage, onEnd: () => void seen.push("end"), onRefused: () => true };
  expect(new Connection(1, ours, events, logger).id).toBe(1);
  const all = Array.from({ length: FRAMES }, (_, n) => encodeFrame({ t: "ping", n }));
  theirs.end(Buffer.concat(all));
  await until(() => seen.includes("end"), "the end of the connection");
  for (let turn = 0; turn < FRAMES; turn += 1) await yieldToLoop();
  return seen;
}

test("frames that a peer sent before its end are read", async () => {
  expect(await seenOf(() => {})).toEqual(["frame", "frame", "frame", "end"]);
});

test("frames that wait for their turn when a connection breaks are dropped", async () => {
  expect((await seenOf((ours) => void ours.destroy())).at(-1)).toBe("end");
});
