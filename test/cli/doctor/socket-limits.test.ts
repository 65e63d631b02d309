// Owns the proof that `tierkv doctor` names TCP limits that slow lanes, and no others.
import { describe, expect, it } from "vitest";
import { socketFindings } from "../../../src/cli/doctor/socket-limits.ts";

const USUAL: Record<string, string> = {
  "core/rmem_max": "212992\n",
  "core/wmem_max": "212992\n",
  "ipv4/tcp_rmem": "4096\t131072\t6291456\n",
  "ipv4/tcp_wmem": "4096\t16384\t4194304\n",
};

function found(changes: Record<string, string> = {}): string[] {
  return socketFindings((name) => ({ ...USUAL, ...changes })[name] ?? null).map(({ text }) => text);
}

describe("the limits on TCP buffers", () => {
  it("are no finding where Linux has its usual ones, because lanes leave the tuning to it", () => {
    expect(found()).toEqual([]);
  });

  it("are named with the value and the fix where tuning ends early", () => {
    const [text, ...others] = found({ "ipv4/tcp_rmem": "4096 87380 524288\n" });
    expect(text).toContain("receives at most 524 kB");
    expect(text).toContain('sysctl -w net.ipv4.tcp_rmem="4096 87380 4194304"');
    expect(others).toEqual([]);
    expect(found({ "ipv4/tcp_wmem": "4096 16384 1048576" })[0]).toContain("net.ipv4.tcp_wmem");
  });

  it("are no finding where a program may set more", () => {
    const small = { "ipv4/tcp_rmem": "4096 87380 524288", "core/rmem_max": "4194304" };
    expect(found(small)).toEqual([]);
  });

  it("are no finding on a system without them", () => {
    expect(socketFindings(() => null)).toEqual([]);
  });
});
