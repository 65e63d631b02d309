// Owns the proof of which addresses are this machine's alone.
import { expect, test } from "vitest";
import { isLocal } from "../../src/base/hosts.ts";

const isLocalHost = (host: string): boolean => isLocal({ host, text: `${host}:1` });

test("the loopback, Unix sockets and shared memory are this machine's alone", () => {
  for (const host of ["127.0.0.1", "127.9.8.7", "localhost", "::1"]) {
    expect(isLocalHost(host), host).toBe(true);
  }
  expect(isLocal({ host: "", text: "unix:/run/tierkv.sock" })).toBe(true);
  expect(isLocal({ host: "", text: "shm:/dev/shm/x" })).toBe(true);
});

test("a name that looks like a loopback address is none", () => {
  for (const host of [
    "127.0.0.1.example.org",
    "127.example",
    "localhost.example",
    "0.0.0.0",
    "::",
  ]) {
    expect(isLocalHost(host), host).toBe(false);
  }
  expect(isLocalHost("10.0.0.1")).toBe(false);
});
