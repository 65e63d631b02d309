// Owns the Valkey servers of benches: one alone, or the nodes of a cluster.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync } from "node:fs";
import { connect } from "node:net";
import { join } from "node:path";
import { becomes } from "../../dist/base/time.js";
import { freePort } from "./ports.js";

const PROGRAM = process.env.TIERKV_TEST_VALKEY ?? "valkey-server";
const START_MS = 20_000;
const POLL_MS = 50;
const SLOTS = 16_384;

function isUp(host, port) {
  return new Promise((resolve) => {
    const socket = connect(port, host);
    socket.once("connect", () => resolve(true)).once("error", () => resolve(false));
    socket.once("connect", () => socket.destroy());
  });
}

/**
 * Starts a server that keeps its records in memory; `under`: words before its command; `memory`: enough for all rounds, as a full
 * store would evict what a round has just saved. Resolves to `{ child, host, port }`.
 */
export async function startValkey({
  dir,
  host = "127.0.0.1",
  port: given,
  under = [],
  memory: most = "8gb",
  more = [],
}) {
  const port = given ?? (await freePort());
  const folder = join(dir, `valkey-${host}-${port}`);
  mkdirSync(folder, { recursive: true });
  const memory = ["--maxmemory", most, "--maxmemory-policy", "allkeys-lfu", "--save", ""];
  const where = ["--port", String(port), "--bind", host, "--dir", folder];
  // Networks of a bench are its own.
  const open = ["--protected-mode", "no"];
  const [file, ...args] = [...under, PROGRAM, ...where, ...memory, ...open, ...more];
  const child = spawn(file, args, { stdio: "ignore" });
  const failed = new Promise((_resolve, reject) => {
    child.once("error", (error) =>
      reject(new Error(`${PROGRAM}: ${error.message}; TIERKV_TEST_VALKEY names valkey-server`)),
    );
    child.once("exit", (code) => reject(new Error(`${PROGRAM} ended with ${code}`)));
  });
  failed.catch(() => {});
  const started = becomes(() => isUp(host, port), START_MS, POLL_MS);
  if (!(await Promise.race([started, failed]))) throw new Error(`${PROGRAM} does not answer`);
  return { child, host, port };
}

/** Sends one command of words and resolves to the raw answer. */
export async function ask({ host, port }, ...words) {
  const socket = connect(port, host);
  const chunks = [];
  socket.on("data", (chunk) => chunks.push(chunk));
  const parts = words.map((word) => `$${Buffer.byteLength(`${word}`)}\r\n${word}\r\n`);
  socket.write(`*${words.length}\r\n${parts.join("")}*1\r\n$4\r\nQUIT\r\n`);
  await once(socket, "close");
  const text = Buffer.concat(chunks).toString("latin1");
  if (text.startsWith("-")) throw new Error(`${words.join(" ")}: ${text.trim()}`);
  return text;
}

export const CLUSTERED = ["--cluster-enabled", "yes"];

/** Makes a cluster of these servers, each a primary with an equal part of the slots. */
export async function cluster(servers) {
  const first = servers[0];
  for (const [at, server] of servers.entries()) {
    const [from, to] = [at, at + 1].map((part) => Math.floor((part * SLOTS) / servers.length));
    await ask(server, "CLUSTER", "ADDSLOTSRANGE", from, to - 1);
    if (server !== first) await ask(first, "CLUSTER", "MEET", server.host, server.port);
  }
  for (const server of servers) {
    const agrees = async () => {
      const info = await ask(server, "CLUSTER", "INFO");
      const known = `cluster_known_nodes:${servers.length}`;
      return info.includes("cluster_state:ok") && info.includes(known);
    };
    if (!(await becomes(agrees, START_MS, POLL_MS))) throw new Error("the cluster does not agree");
  }
}
