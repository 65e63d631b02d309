// Owns the proof that another user of the machine gets nowhere: not to the sockets, not to the shared memory, not past the second lock.
import { spawn } from "node:child_process";
import { chmodSync, existsSync, mkdtempSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { expect, test } from "vitest";
import { Arena } from "../../src/arena/arena.ts";
import { newVaultCounters } from "../../src/base/metrics.ts";
import { encodeFrame } from "../../src/sidecar/socket/frames.ts";
import { startVault } from "../../src/vault/server.ts";
import { helloFrame, ShimClient } from "../support/shim-client.ts";
import { openSidecar, testDirectory } from "../support/sidecars.ts";
import { closeAfterTest, logger, MIB, until } from "../support/vaults.ts";

const NOBODY = 65_534;
const ATTEMPTS = 100;

/** Connects, or opens, ATTEMPTS times as nobody; how often each outcome came. */
const TRY = `
import json, socket, sys
what, path, attempts = sys.argv[1], sys.argv[2], int(sys.argv[3])
outcomes = {}
for _ in range(attempts):
    try:
        if what == "connect":
            with socket.socket(socket.AF_UNIX) as peer:
                peer.settimeout(20)
                peer.connect(path)
                try:
                    peer.sendall(bytes.fromhex(sys.argv[4]))
                except OSError:
                    pass
                try:
                    outcome = "served" if peer.recv(1) else "closed"
                except OSError:
                    outcome = "closed"
        else:
            open(path, "rb").close()
            outcome = "opened"
    except OSError as error:
        outcome = type(error).__name__
    outcomes[outcome] = outcomes.get(outcome, 0) + 1
print(json.dumps(outcomes))
`;

const canBeNobody = process.getuid?.() === 0 && existsSync("/usr/bin/python3");

async function asNobody(what: "connect" | "open", path: string): Promise<unknown> {
  const hello = Buffer.from(encodeFrame(helloFrame({ role: "status" }))).toString("hex");
  const child = spawn("/usr/bin/python3", ["-c", TRY, what, path, String(ATTEMPTS), hello], {
    uid: NOBODY,
    gid: NOBODY,
    cwd: "/",
    stdio: ["ignore", "pipe", "inherit"],
  });
  let text = "";
  for await (const chunk of child.stdout) text += String(chunk);
  return JSON.parse(text) as unknown;
}

test("F39 a sidecar's socket refuses another user by its mode and its directory's", async () => {
  const { socketPath } = await openSidecar();
  expect(statSync(socketPath).mode & 0o777).toBe(0o600);
  expect(statSync(dirname(socketPath)).mode & 0o777).toBe(0o700);
});

test.runIf(canBeNobody)("F39 a sidecar's socket refuses another user, 100 of 100", async () => {
  const sidecar = await openSidecar();
  expect(await asNobody("connect", sidecar.socketPath)).toEqual({ PermissionError: ATTEMPTS });
  // With both modes opened the second lock holds.
  chmodSync(dirname(sidecar.socketPath), 0o755);
  chmodSync(sidecar.socketPath, 0o666);
  expect(await asNobody("connect", sidecar.socketPath)).toEqual({ closed: ATTEMPTS });
  await until(() => sidecar.counters.get("peers_refused") === ATTEMPTS, "the last of them");
  const own = closeAfterTest(new ShimClient(sidecar.socketPath));
  own.send(helloFrame({ role: "status" }));
  await own.wait("welcome");
});

test.runIf(canBeNobody)("F39 a vault's socket refuses another user, 100 of 100", async () => {
  const path = join(testDirectory(), "vault.sock");
  const counters = newVaultCounters();
  const listen = { host: "", port: 0, text: `unix:${path}` };
  const config = { listen, maxBytes: 16 * MIB, lanes: false };
  const vault = closeAfterTest(await startVault({ config, recordClass: "kv", logger, counters }));
  expect(await asNobody("connect", path)).toEqual({ PermissionError: ATTEMPTS });
  chmodSync(dirname(path), 0o755);
  chmodSync(path, 0o666);
  expect(await asNobody("connect", path)).toEqual({ closed: ATTEMPTS });
  await until(() => vault.counts()["connections_refused"] === ATTEMPTS, "the last of them");
});

test.runIf(canBeNobody)(
  "shared memory is opened by nobody else, with and without a file",
  async () => {
    const size = { slotBytes: 4096, slotCount: 64 };
    const hidden = new Arena({ ...size, dir: null });
    expect(await asNobody("open", hidden.path)).toEqual({ PermissionError: ATTEMPTS });
    hidden.close();
    const dir = mkdtempSync(join(tmpdir(), "tierkv-arena-"));
    closeAfterTest({ close: () => rmSync(dir, { recursive: true }) });
    const filed = new Arena({ ...size, dir });
    expect(statSync(filed.path).mode & 0o777).toBe(0o600);
    chmodSync(dir, 0o755);
    expect(await asNobody("open", filed.path)).toEqual({ PermissionError: ATTEMPTS });
    filed.close();
  },
);
