// Owns the proof of where a vault's lanes are: a fixed step above its port, and anywhere else before nowhere.
import { once } from "node:events";
import { createServer } from "node:net";
import type { AddressInfo, Server } from "node:net";
import { expect, test } from "vitest";
import { LANE_PORT_STEP } from "../../src/limits.ts";
import { createLogger } from "../../src/log.ts";
import { newVaultCounters } from "../../src/metrics.ts";
import { startVault } from "../../src/vault/server.ts";
import { closeAfterTest, MIB, openClient, SOON_MS } from "../support/vaults.ts";

const HOST = "127.0.0.1";

async function listening(port: number): Promise<Server> {
  const server = closeAfterTest(createServer());
  server.listen(port, HOST);
  await once(server, "listening");
  return server;
}

/** A port that is free, as is the one LANE_PORT_STEP above it: the server there is returned, too. */
async function freePair(): Promise<{ port: number; above: Server }> {
  for (;;) {
    const probe = await listening(0);
    const { port } = probe.address() as AddressInfo;
    probe.close();
    if (port + LANE_PORT_STEP > 65_535) continue;
    const above = await listening(port + LANE_PORT_STEP).catch(() => null);
    if (above !== null) return { port, above };
  }
}

/** The port of the lanes of a vault on `port`, and what its log said. */
async function lanePort(port: number): Promise<{ lanes: number; log: string }> {
  const lines: string[] = [];
  const logger = createLogger("vault", {
    level: "warn",
    destination: { write: (line: string) => void lines.push(line) },
  });
  const vault = await startVault({
    config: {
      listen: { host: HOST, port, text: `${HOST}:${port}` },
      maxBytes: 16 * MIB,
      lanePort: "beside",
    },
    recordClass: "kv",
    logger,
    counters: newVaultCounters(),
  });
  closeAfterTest(vault);
  const { laneAddress } = await openClient(vault).hello(SOON_MS);
  return { lanes: Number(laneAddress.slice(1)), log: lines.join("") };
}

test("lanes are a step above the vault's port, where a firewall expects them", async () => {
  const { port, above } = await freePair();
  above.close();
  expect(await lanePort(port)).toEqual({ lanes: port + LANE_PORT_STEP, log: "" });
});

test("where that port is taken, the vault serves on another and says so", async () => {
  const { port } = await freePair();
  const { lanes, log } = await lanePort(port);
  expect(lanes).toBeGreaterThan(0);
  expect(lanes).not.toBe(port + LANE_PORT_STEP);
  expect(log).toContain("another port than the usual one");
});
