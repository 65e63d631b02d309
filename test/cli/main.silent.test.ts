// Owns the proof that nothing is sent to anybody: a sidecar, its vault and commands open no connection in a network of their own.
import { execFileSync, spawnSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";

const PROGRAM = fileURLToPath(new URL("../../bin/tierkv.js", import.meta.url));
const TIMEOUT_MS = 120_000;
const ALONE = ["unshare", "-rn", "sh", "-c"] as const;
const UP = "ip link set lo up";
const isPossible = spawnSync(ALONE[0], [...ALONE.slice(1), UP]).status === 0;

/** Runs lines of a shell in a network that has this process group alone; what the kernel counted of it since. */
function tried(dir: string, lines: string): Record<string, number> {
  const script = `set -e\n${UP}\n${lines}\ncat /proc/net/snmp`;
  const env = { ...process.env, HOME: dir, XDG_RUNTIME_DIR: dir, NODE: process.execPath, PROGRAM };
  const [command, ...args] = ALONE;
  const text = execFileSync(command, [...args, script], {
    env,
    encoding: "utf8",
    stdio: ["ignore", "pipe", "pipe"],
    timeout: TIMEOUT_MS,
  });
  const counts: Record<string, number> = {};
  for (const [, kind, names = "", values = ""] of text.matchAll(/^(\w+): (.*[A-Z].*)\n\1: (.*)$/gm))
    for (const [at, name] of names.split(" ").entries())
      counts[`${kind} ${name}`] = Number(values.split(" ")[at]);
  return counts;
}

/** Ways out that were looked for in vain, connections that were begun, and datagrams: names are asked for by those. */
const sent = (counts: Record<string, number>): (number | undefined)[] =>
  ["Ip OutNoRoutes", "Tcp ActiveOpens", "Udp OutDatagrams"].map((name) => counts[name]);

test.skipIf(!isPossible)(
  "without a vault of another machine no packet leaves, and none is tried",
  { timeout: TIMEOUT_MS },
  () => {
    const dir = mkdtempSync(join(tmpdir(), "tierkv-silent-"));
    try {
      const config = join(dir, "tierkv.toml");
      writeFileSync(config, "");
      const command = `"$NODE" "$PROGRAM" --config ${config}`;
      const alone = `${command} sidecar 2>${dir}/log & sidecar=$!
        until ${command} status >&2; do kill -0 $sidecar; sleep 0.1; done
        ${command} bench >&2
        kill $sidecar; wait $sidecar`;
      expect(sent(tried(dir, alone))).toEqual([0, 0, 0]);
      const asking = `${command} doctor --engine http://192.0.2.1:8000 >&2 || true`;
      expect(sent(tried(dir, asking))[0]).toBeGreaterThan(0);
    } finally {
      rmSync(dir, { recursive: true, force: true });
    }
  },
);
