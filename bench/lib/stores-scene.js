// Owns a scene of a Valkey cluster whose nodes each have a link of their own, in network namespaces: `unshare -rn node stores-scene.js JSON` prints JSON.
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createLogger } from "../../dist/base/log.js";
import { ColdStore } from "../../dist/client/cold/cold-store.js";
import { killAll, machineOnSwitch, makeSwitch } from "./rails-cables.js";
import { StoreSet } from "./store-set.js";
import { ask, cluster, CLUSTERED, startValkey } from "./valkey.js";

/** Nodes, each link's rate in Mb/s, bytes of a block and of a set of them, and rounds. */
const { nodes, mbit, bytes, setBytes, rounds } = JSON.parse(process.argv[2]);
const PORT = 6379;
/** A third of all rounds' sets, and more. */
const MEMORY = "2gb";

const rate = (ms) => (setBytes * 8) / ms / 1e3;

async function main(dir, children) {
  execFileSync("ip", ["link", "set", "lo", "up"]);
  makeSwitch();
  const servers = [];
  for (let at = 0; at < nodes; at += 1) {
    const { host, under } = await machineOnSwitch(at, mbit);
    const place = { dir, host, port: PORT, under, memory: MEMORY };
    const server = await startValkey({ ...place, more: CLUSTERED });
    children.push(server.child);
    servers.push(server);
  }
  await cluster(servers);
  const logger = createLogger("scene", { level: "silent" });
  const address = `valkey://${servers.map(({ host, port }) => `${host}:${port}`).join(",")}`;
  const client = new ColdStore({ address, name: "kv", settings: { class: 1 }, logger });
  const set = await StoreSet.open(bytes, setBytes);
  const result = { save: [], restore: [], shares: [] };
  // The first round warms up.
  for (let round = 0; round <= rounds; round += 1) {
    set.renew(round);
    for (const what of ["save", "restore"]) {
      const begunMs = performance.now();
      await set[what](client);
      if (round > 0) result[what].push(rate(performance.now() - begunMs));
    }
  }
  const sizes = [];
  for (const server of servers)
    sizes.push(Number.parseInt((await ask(server, "DBSIZE")).slice(1), 10));
  const all = sizes.reduce((sum, size) => sum + size, 0);
  result.shares = sizes.map((size) => size / all);
  set.close();
  client.close();
  return result;
}

const dir = mkdtempSync(join(tmpdir(), "tierkv-stores-"));
const children = [];
try {
  process.stdout.write(`${JSON.stringify(await main(dir, children))}\n`);
} finally {
  for (const child of children) child.kill("SIGKILL");
  killAll();
  rmSync(dir, { recursive: true, force: true });
}
process.exit();
