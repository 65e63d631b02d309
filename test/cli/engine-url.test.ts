// Owns the proof that an engine's address without `http://` is refused with what to write.
import { expect, test } from "vitest";
import { engineUrl } from "../../src/cli/engine-url.ts";
import { runInside } from "../support/command-line.ts";

test.each(["http://a:1", "https://a.example/", "http://[::1]:8000//"])("%s is one", (text) => {
  expect(engineUrl(text)).toBe(text.replace(/\/+$/, ""));
});

test.each([
  ["127.0.0.1:8000", "127.0.0.1:8000"],
  ["localhost:8000", "localhost:8000"],
  ["//host:1", "host:1"],
  ["", "127.0.0.1:8000"],
])("%s is none", (text, host) => {
  expect(() => engineUrl(text)).toThrow(`not an address of HTTP; write http://${host}`);
});

test.each([["doctor"], ["warm", "package.json"], ["fidelity", "--text", "package.json"]])(
  "%s says so",
  async (...command) => {
    const { exitCode, stderr } = await runInside([...command, "--engine", "127.0.0.1:8000"]);
    expect([exitCode, stderr]).toEqual([2, expect.stringContaining("write http://127.0.0.1:8000")]);
  },
);
