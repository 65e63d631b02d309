// Owns a scene of two rails to one vault, in network namespaces of its own: `unshare -rn node rails-scene.js JSON` prints JSON.
import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, readFileSync, readlinkSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { BenchSet } from "../../dist/cli/bench-set.js";
import { VaultClient } from "../../dist/client/vault-client.js";
import { FETCH_WINDOW_BYTES, FETCHES_IN_FLIGHT_MAX } from "../../dist/limits/general.js";
import { createLogger } from "../../dist/log.js";
import { TIERKV } from "./paths.js";

/** What is asked for: the pace of both rails in Mb/s, blocks of one restore, rounds, and restores with a cut. */
const { paces, blocks, rounds, cuts } = JSON.parse(process.argv[2]);
const PORT = 50_051;
const CALL_MS = 120_000;
const MIB = 2 ** 20;
/** From the block that is set aside for benchmarks (RFC 2544): near end .1, far end .2. */
const net = (number) => `198.18.${70 + number}`;
const SLOW_SHUT_MS = 20_000;
/** A way that was cut again and again is left out for longer each time. */
const BACK_MS_MAX = 150_000;

const run = (command, ...args) =>
  execFileSync(command, args, { stdio: ["ignore", "pipe", "pipe"] });
const ip = (...args) => run("ip", ...args);
const within = (pid, command, ...args) => run("nsenter", "-t", String(pid), "-n", command, ...args);
const children = [];

/** A namespace, as long as this process lives. */
async function newSpace() {
  const child = spawn("unshare", ["-n", "sleep", "600"], { stdio: "ignore" });
  children.push(child);
  for (let left = SLOW_SHUT_MS; left > 0; left -= 20) {
    if (isOwnSpace(child.pid)) return child.pid;
    await sleep(20);
  }
  throw new Error("no namespace of its own");
}

const spaceOf = (pid) => readlinkSync(`/proc/${pid}/ns/net`);
const isOwnSpace = (pid) => spaceOf(pid) !== spaceOf(process.pid);

/** A cable to a namespace; `mbit` null: as fast as it goes. */
function plug(pid, number, mbit) {
  const [near, far] = [`near${number}`, `far${number}`];
  ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", String(pid));
  ip("addr", "add", `${net(number)}.1/30`, "dev", near);
  ip("link", "set", near, "up");
  within(pid, "ip", "addr", "add", `${net(number)}.2/30`, "dev", far);
  within(pid, "ip", "link", "set", far, "up");
  if (mbit === null) return;
  const pace = ["root", "tbf", "rate", `${mbit}mbit`, "burst", "128kb", "latency", "50ms"];
  run("tc", "qdisc", "add", "dev", near, ...pace);
  within(pid, "tc", "qdisc", "add", "dev", far, ...pace);
}

async function startVault(pid, dir, name, addresses) {
  const state = join(dir, name);
  const listen = `${addresses[0]}:${PORT}`;
  const more = addresses.slice(1).map((host) => `${host}:${PORT}`);
  const config = [
    '[cluster]\nrole = "kv_cold"\n[vault]',
    `listen = "${listen}"\naddresses = ${JSON.stringify(more)}`,
    `max_bytes = ${1024 * MIB}\nstate_dir = "${state}"\n`,
  ].join("\n");
  writeFileSync(`${state}.toml`, config);
  const args = ["-t", String(pid), "-n", process.execPath, TIERKV, "vault", "--json"];
  const child = spawn("nsenter", [...args, "--config", `${state}.toml`], {
    stdio: ["ignore", "pipe", "ignore"],
  });
  children.push(child);
  await new Promise((resolve, reject) => {
    let said = "";
    child.stdout.on("data", (data) => (said += data).includes('"ready"') && resolve());
    child.once("exit", () => reject(new Error(`the vault ended: ${said}`)));
  });
  const certificate = readFileSync(join(state, "vault.pem"));
  const [, token] = /^admin:(\S+)/m.exec(readFileSync(join(state, "tokens"), "utf8"));
  const security = {
    caPem: Buffer.from(
      /-----BEGIN CERTIFICATE-----[^]*?-----END CERTIFICATE-----/.exec(certificate)[0],
    ),
    serverName: "tierkv-vault",
    isPinned: true,
    certPem: null,
    keyPem: null,
    token: () => token,
  };
  return { address: listen, security };
}

const isTaken = (statuses) => [...statuses].every((status) => status === 1 || status === 10);

/** As a sidecar does it: windows in need order, some at once. */
async function restore(client, set, onProgress = () => {}) {
  const step = Math.max(1, Math.floor(FETCH_WINDOW_BYTES / (set.wireBytes / set.count)));
  let [next, missed] = [0, 0];
  const begunMs = performance.now();
  const worker = async () => {
    while (next < set.count) {
      const from = next;
      next = Math.min(set.count, from + step);
      const call = { deadlineMs: CALL_MS, onProgress };
      const { statuses } = await client.fetchInto(set.namespace, set.plan(from, next), call);
      missed += [...statuses].filter((status) => status !== 1).length;
    }
  };
  await Promise.all(Array.from({ length: FETCHES_IN_FLIGHT_MAX }, worker));
  return { ms: performance.now() - begunMs, missed };
}

async function save(client, set) {
  const items = set.deferred(0, set.count);
  const begunMs = performance.now();
  const statuses = await client.store(set.namespace, items, CALL_MS);
  set.wireBytes = items.reduce((sum, { record }) => sum + record.bytes, 0);
  for (const { record } of items) record.drop();
  if (!isTaken(statuses)) throw new Error(`not stored: ${statuses.join()}`);
  return performance.now() - begunMs;
}

async function untilOver(client, ways) {
  for (let left = BACK_MS_MAX; client.lanesOver !== ways; left -= 10) {
    if (left < 0) throw new Error(`lanes are over ${client.lanesOver} ways, not ${ways}`);
    await sleep(10);
  }
}

const rate = (set, ms) => (set.wireBytes * 8) / ms / 1e3;

/** Bytes over each cable so far: column 0 of the kernel's counts came, column 8 went. */
function carried(column) {
  const lines = readFileSync("/proc/self/net/dev", "utf8").split("\n");
  return paces.map((_, number) => {
    const line = lines.find((one) => one.trim().startsWith(`near${number}:`)) ?? "";
    return Number(line.split(":")[1]?.trim().split(/\s+/)[column]);
  });
}

async function main(dir) {
  ip("link", "set", "lo", "up");
  const [space, strange] = [await newSpace(), await newSpace()];
  within(space, "ip", "link", "set", "lo", "up");
  paces.forEach((pace, number) => plug(space, number, pace));
  // An address without a cable, and one where another vault answers.
  plug(space, 5, null);
  within(space, "ip", "link", "set", "far5", "down");
  plug(strange, 6, null);
  within(space, "ip", "addr", "add", `${net(6)}.2/32`, "dev", "lo");
  const told = [...paces.keys(), 5, 6].map((number) => `${net(number)}.2`);
  const vault = await startVault(space, dir, "vault", told);
  await startVault(strange, dir, "stranger", [`${net(6)}.2`]);
  const logger = createLogger("scene", { level: "silent" });
  const client = new VaultClient({ ...vault, name: "kv", logger });
  const set = await BenchSet.open(blocks, "kv", { codec: 0, fidelity: 0 });
  const result = { saves: [], restores: [], alone: [], cuts: [] };
  await client.hello(CALL_MS);
  const ways = await client.rails();
  result.ways = ways.map(({ address, isOpen }) => ({ address, isOpen }));
  await untilOver(client, paces.length);
  for (let round = 0; round < rounds; round += 1) {
    set.renew();
    await client.measure(set.namespace, CALL_MS);
    const savedMs = await save(client, set);
    result.saves.push(rate(set, savedMs));
    result.restores.push(rate(set, (await restore(client, set)).ms));
  }
  result.carried = { saved: carried(8), restored: carried(0), each: set.wireBytes };
  for (const number of cuts) {
    await untilOver(client, paces.length);
    let [arrived, cutMs] = [0, null];
    const begunMs = performance.now();
    const onProgress = (bytes) => {
      arrived += bytes;
      if (cutMs !== null || arrived < set.wireBytes / 4) return;
      within(space, "ip", "link", "set", `far${number}`, "down");
      cutMs = performance.now() - begunMs;
      result.arrived = arrived;
    };
    const { ms, missed } = await restore(client, set, onProgress);
    const held = await client.lookup(set.namespace, set.keys(), CALL_MS);
    const alone = await restore(client, set);
    const restMs = ((set.wireBytes - result.arrived) * 8) / rate(set, alone.ms) / 1e3;
    const found = [...held].reduce(
      (sum, byte) => sum + byte.toString(2).replaceAll("0", "").length,
      0,
    );
    result.alone.push(rate(set, alone.ms));
    result.cuts.push({
      rail: number,
      missed: missed + alone.missed,
      found,
      costMs: ms - cutMs - restMs,
    });
    within(space, "ip", "link", "set", `far${number}`, "up");
  }
  if (cuts.length > 0) await untilOver(client, paces.length);
  result.ended = { over: client.lanesOver, ...client.retries };
  set.close();
  client.close();
  return result;
}

const dir = mkdtempSync(join(tmpdir(), "tierkv-rails-"));
try {
  process.stdout.write(`${JSON.stringify(await main(dir))}\n`);
} finally {
  for (const child of children) child.kill("SIGKILL");
  rmSync(dir, { recursive: true, force: true });
}
