// Owns the proof that a question ends with its answer, the end of input, or Ctrl-C, that progress goes before what is said, and that output is whole.
import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { PassThrough } from "node:stream";
import { expect, onTestFinished, test, vi } from "vitest";
import { askPerson, processIo } from "../../../src/cli/shell/io.ts";

function asked(): { input: PassThrough; answer: Promise<string>; kill: ReturnType<typeof vi.fn> } {
  const kill = vi.spyOn(process, "kill").mockReturnValue(true);
  onTestFinished(() => kill.mockRestore());
  const input = new PassThrough();
  const output = Object.assign(new PassThrough(), { isTTY: true });
  return { input, answer: askPerson("Which?", input, output), kill };
}

test("a question ends with its answer or the end of input", async () => {
  const { input, answer, kill } = asked();
  input.write(" this one \n");
  expect(await answer).toBe("this one");
  const other = asked();
  other.input.end();
  expect(await other.answer).toBe("");
  expect(kill).not.toHaveBeenCalled();
});

test("Ctrl-C at a question ends the command, and is no answer", async () => {
  const { input, answer, kill } = asked();
  input.write("\u0003");
  await answer;
  expect(kill).toHaveBeenCalledExactlyOnceWith(process.pid, "SIGINT");
});

test("a line of progress is gone before anything else is said, and once", () => {
  const { stderr, stdout } = process;
  const said: string[] = [];
  const write = (text: string | Uint8Array): boolean => said.push(String(text)) > 0;
  const spies = [stderr, stdout].map((stream) =>
    vi.spyOn(stream, "write").mockImplementation(write),
  );
  const { isTTY } = stderr;
  Object.assign(stderr, { isTTY: true, columns: 10 });
  onTestFinished(() => {
    for (const spy of spies) spy.mockRestore();
    Object.assign(stderr, { isTTY });
  });
  const io = processIo();
  io.progress("half of it is there");
  io.out("result");
  io.err("error");
  expect(said).toEqual(["\rhalf of i\u001B[K", "\r\u001B[K", "result\n", "error\n"]);
});

test("output that does not fit on its disk is an error, also where the first part fits", () => {
  const folder = mkdtempSync(join(tmpdir(), "tierkv-io-"));
  onTestFinished(() => rmSync(folder, { recursive: true }));
  const script = `"${process.execPath}" bin/tierkv.js config docs`;
  const full = ["/dev/full", `${folder}/out`].map((path) =>
    spawnSync("bash", ["-c", `ulimit -f 4; ${script} > ${path}`], { encoding: "utf8" }),
  );
  expect(full.map(({ status }) => status)).toEqual([1, 1]);
  expect(full.map(({ stderr }) => stderr)).toEqual([
    "tierkv: ENOSPC: no space left on device, write (SYSTEM)\n",
    "tierkv: EFBIG: file too large, write (SYSTEM)\n",
  ]);
});
