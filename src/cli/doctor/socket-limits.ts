// Owns the finding of `tierkv doctor` about the system's limits on TCP buffers, which bound a lane's rate on a long link.
import { readFileSync } from "node:fs";
import { LANE_SOCKET_BYTES } from "../../base/limits/general.ts";
import { showBytes } from "../../base/text.ts";
import type { Finding } from "../../diagnosis/findings.ts";

/** Directions of a lane, with the two limits that count: what tuning reaches, and what a program may set. */
const SIDES = [
  { does: "receives", tuned: "ipv4/tcp_rmem", settable: "core/rmem_max" },
  { does: "sends", tuned: "ipv4/tcp_wmem", settable: "core/wmem_max" },
] as const;

/** Names each direction whose buffer stays below what lanes need. Says nothing where the system has no such limits. */
export function socketFindings(read: (name: string) => string | null = readSetting): Finding[] {
  return SIDES.flatMap(({ does, tuned, settable }) => {
    const values = read(tuned)?.trim().split(/\s+/) ?? [];
    const tunedBytes = Number(values.at(-1) ?? Number.NaN);
    const settableBytes = Number(read(settable) ?? 0);
    // Linux doubles what a program sets; the limit of tuning includes that.
    const bytes = Math.max(tunedBytes, 2 * Math.min(settableBytes, LANE_SOCKET_BYTES));
    if (!(bytes < LANE_SOCKET_BYTES)) return [];
    const name = `net.${tuned.replace("/", ".")}`;
    const value = [...values.slice(0, -1), LANE_SOCKET_BYTES].join(" ");
    const what = `this machine ${does} at most ${showBytes(bytes)} per connection and round trip (${name} = ${values.join(" ")}), which slows lanes on a link with latency`;
    const text = `${what}; raise it: sysctl -w ${name}="${value}"`;
    return [{ code: "socket_limit", severity: "note", text }];
  });
}

function readSetting(name: string): string | null {
  try {
    return readFileSync(`/proc/sys/net/${name}`, "utf8");
  } catch {
    return null;
  }
}
