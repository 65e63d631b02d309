// Owns network namespaces, cables between them and vaults in them, for scenes with several rails to one vault.
import { execFileSync, spawn } from "node:child_process";
import { readFileSync, readlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { TIERKV } from "./paths.js";

const PORT = 50_051;
const MIB = 2 ** 20;
/** From the range reserved for benchmarks (RFC 2544). */
const net = (number) => `198.18.${70 + number}`;
const ONE_NET = net(20);
const BURST_BYTES_MIN = 131_072;
const SLOW_SHUT_MS = 20_000;

const run = (command, ...args) =>
  execFileSync(command, args, { stdio: ["ignore", "pipe", "pipe"] });
const within = (pid, ...command) => run("nsenter", "-t", String(pid), "-n", ...command);
const children = [];

export function killAll() {
  for (const child of children) child.kill("SIGKILL");
}

/** Makes a namespace that lives as long as this process. */
async function newSpace() {
  const child = spawn("unshare", ["-n", "sleep", "600"], { stdio: "ignore" });
  children.push(child);
  for (let left = SLOW_SHUT_MS; left > 0; left -= 20) {
    if (isOwnSpace(child.pid)) {
      within(child.pid, "ip", "link", "set", "lo", "up");
      return child.pid;
    }
    await sleep(20);
  }
  throw new Error("no namespace of its own");
}

const spaceOf = (pid) => readlinkSync(`/proc/${pid}/ns/net`);
const isOwnSpace = (pid) => spaceOf(pid) !== spaceOf(process.pid);

/** `mbit` null: not shaped. */
function shape(pid, device, mbit) {
  if (mbit === null) return;
  // The burst holds 2 ms of traffic, because with less the timers would limit and not the rate.
  const burst = `${Math.max(BURST_BYTES_MIN, mbit * 250)}`;
  const pace = ["rate", `${mbit}mbit`, "burst", burst, "latency", "50ms"];
  within(pid, "tc", "qdisc", "add", "dev", device, "root", "tbf", ...pace);
}

/** Joins two namespaces by a cable. */
function plug([pid, device], [otherPid, other], mbit) {
  const peer = ["type", "veth", "peer", "name", other, "netns", String(otherPid)];
  within(pid, "ip", "link", "add", device, ...peer);
  within(pid, "ip", "link", "set", device, "up");
  within(otherPid, "ip", "link", "set", other, "up");
  shape(pid, device, mbit);
  shape(otherPid, other, mbit);
}

/** A switch to which machines have cables, and this process too. */
const SWITCH = "switch0";
const SWITCH_NET = net(22);

export function makeSwitch() {
  run("ip", "link", "add", SWITCH, "type", "bridge");
  run("ip", "addr", "add", `${SWITCH_NET}.254/24`, "dev", SWITCH);
  run("ip", "link", "set", SWITCH, "up");
}

/** Makes a machine behind a cable of `mbit` to the switch; resolves to its address, and words before a command that runs there. */
export async function machineOnSwitch(number, mbit) {
  const pid = await newSpace();
  const [door, host] = [`door${number}`, `${SWITCH_NET}.${number + 1}`];
  plug([process.pid, door], [pid, "eth0"], mbit);
  run("ip", "link", "set", door, "master", SWITCH);
  within(pid, "ip", "addr", "add", `${host}/24`, "dev", "eth0");
  return { host, under: ["nsenter", "-t", String(pid), "-n"] };
}

/** Starts a vault that listens at the first address and reports the others. */
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

/** Makes each cable a network; adds an address without a cable, and one where another vault answers. */
export async function networks(dir, paces) {
  const [space, strange] = [await newSpace(), await newSpace()];
  const cable = (pid, number, pace) => {
    const [near, far] = [`near${number}`, `far${number}`];
    plug([process.pid, near], [pid, far], pace);
    run("ip", "addr", "add", `${net(number)}.1/30`, "dev", near);
    within(pid, "ip", "addr", "add", `${net(number)}.2/30`, "dev", far);
  };
  paces.forEach((pace, number) => cable(space, number, pace));
  cable(space, 5, null);
  within(space, "ip", "link", "set", "far5", "down");
  cable(strange, 6, null);
  within(space, "ip", "addr", "add", `${net(6)}.2/32`, "dev", "lo");
  const told = [...paces.keys(), 5, 6].map((number) => `${net(number)}.2`);
  const vault = await startVault(space, dir, "vault", told);
  await startVault(strange, dir, "stranger", [`${net(6)}.2`]);
  return {
    ...vault,
    locals: [],
    ways: paces.length,
    pull: (number, how) => within(space, "ip", "link", "set", `far${number}`, how),
  };
}

/** Routes packets by source address to that address's cable, as an operator would. */
function route(pid, device, address, table) {
  within(pid, "ip", "addr", "add", `${address}/24`, "dev", device);
  within(pid, "ip", "route", "add", `${ONE_NET}.0/24`, "dev", device, "table", String(table));
  within(pid, "ip", "rule", "add", "from", address, "table", String(table));
  within(
    pid,
    "sysctl",
    "-qw",
    "net.ipv4.conf.all.arp_ignore=1",
    "net.ipv4.conf.all.arp_announce=2",
  );
}

/**
 * Joins all cables in one switch and one network. The engine's host has one cable per rate, and one address without
 * a way back; the vault has `vaults` addresses.
 */
export async function oneNetwork(dir, paces, vaults) {
  const [middle, space] = [await newSpace(), await newSpace()];
  within(middle, "ip", "link", "add", "switch", "type", "bridge");
  within(middle, "ip", "link", "set", "switch", "up");
  const cable = (pid, device, door, pace, address, table) => {
    plug([pid, device], [middle, door], pace);
    within(middle, "ip", "link", "set", door, "master", "switch");
    route(pid, device, address, table);
  };
  const nears = paces.map((pace, number) => {
    const address = `${ONE_NET}.${10 + number}`;
    cable(process.pid, `near${number}`, `port${number}`, pace, address, 100 + number);
    return address;
  });
  const fars = Array.from({ length: vaults }, (_, number) => {
    const address = `${ONE_NET}.${20 + number}`;
    cable(space, `far${number}`, `door${number}`, null, address, 100 + number);
    return address;
  });
  run("ip", "addr", "add", `${net(21)}.1/32`, "dev", "lo");
  return {
    ...(await startVault(space, dir, "vault", fars)),
    locals: [`${net(21)}.1`, ...nears],
    ways: nears.length * fars.length,
    pull: (number, how) => within(middle, "ip", "link", "set", `port${number}`, how),
  };
}
