// Owns the proof that a question ends with its answer, with the end of input, and with Ctrl-C as any command does.
import { PassThrough } from "node:stream";
import { expect, onTestFinished, test, vi } from "vitest";
import { askPerson } from "../../src/cli/io.ts";

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
