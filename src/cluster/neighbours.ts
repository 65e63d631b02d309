// Owns the discovery of this host's engines: the ones its sidecar knows, at the address where their server listens.
import { readdirSync, readFileSync, readlinkSync } from "node:fs";
import { splitAddress } from "../base/hosts.ts";
import { NEIGHBOUR_ANCESTORS_MAX, NEIGHBOUR_ANSWER_MS } from "../base/limits/tools.ts";
import type { Logger } from "../base/log.ts";
import { askSidecar } from "../control/ask-sidecar.ts";
import type { Neighbour } from "../gateway/engines/discovery.ts";
import type { SidecarStatus } from "../sidecar/status.ts";
import { reachable } from "./targets.ts";

type Known = SidecarStatus["engines"][number];

interface Found {
  pid: number;
  neighbour: Neighbour;
}

/** Looks at parent processes, because vLLM serves HTTP from the one that started the process the sidecar knows. */
export class Neighbours {
  readonly #socket: string;
  readonly #logger: Logger;
  /** Found engines by id and process, so that none is probed again. */
  #found = new Map<string, Found>();
  readonly #hidden = new Set<string>();

  constructor(socket: string, logger: Logger) {
    this.#socket = socket;
    this.#logger = logger;
  }

  /** Returns the engines that listen now. Throws SIDECAR_DOWN. */
  async look(): Promise<Neighbour[]> {
    const now = new Map<string, Found>();
    for (const engine of await this.#known()) {
      const key = `${engine.id} ${engine.pid}`;
      const neighbour = this.#found.get(key)?.neighbour ?? (await locate(engine));
      if (neighbour !== null) now.set(key, { pid: engine.pid, neighbour });
      else this.#tellHidden(engine);
    }
    // An engine that still listens stays, because a restarted sidecar knows no engines for a moment.
    for (const [key, found] of this.#found) {
      if (!now.has(key) && listening(found.pid).includes(found.neighbour.address))
        now.set(key, found);
    }
    this.#found = now;
    return oneEach([...now.values()].map(({ neighbour }) => neighbour));
  }

  async #known(): Promise<Known[]> {
    const { engines } = await askSidecar(this.#socket, (link) => link.status());
    return engines.filter(({ hasScheduler }) => hasScheduler);
  }

  #tellHidden({ id, pid }: Known): void {
    if (this.#hidden.has(id)) return;
    this.#hidden.add(id);
    const reason = "neither its process nor those above it serve /v1/models on TCP yet";
    const fix =
      "where it stays so (a container, a Unix socket, TLS, an API key), set [gateway] engines";
    this.#logger.warn({ engine: id, pid, reason, fix }, "an engine's address is not known");
  }
}

/** Returns one engine for each server. Its ranks all name the first rank's endpoints; others do not tell who publishes there. */
function oneEach(found: readonly Neighbour[]): Neighbour[] {
  const each = new Map<string, Neighbour>();
  for (const neighbour of found) {
    const { address, events, replays } = neighbour;
    const known = each.get(address) ?? neighbour;
    const isSame = known.events === events && known.replays === replays;
    each.set(address, isSame ? known : { address, events: null, replays: null });
  }
  return [...each.values()];
}

async function locate({ pid, events, replays }: Known): Promise<Neighbour | null> {
  const own = { events: addressIn(events), replays: addressIn(replays) };
  const publishing = new Set(Object.values(own));
  for (const address of listening(pid)) {
    if (publishing.has(address)) continue;
    if (await isEngine(address)) return { address, ...own };
  }
  return null;
}

/** Returns `tcp://*:5557` as an address reachable from here; null: not TCP. */
function addressIn(endpoint: string): string | null {
  const [, text] = /^tcp:\/\/(.*:\d+)$/.exec(endpoint.replace("//*:", "//127.0.0.1:")) ?? [];
  return text === undefined ? null : reachable({ ...splitAddress(text), text }).text;
}

async function isEngine(address: string): Promise<boolean> {
  try {
    const signal = AbortSignal.timeout(NEIGHBOUR_ANSWER_MS);
    const answer = await fetch(`http://${address}/v1/models`, { signal });
    const { data } = (await answer.json()) as { data?: unknown };
    return answer.ok && Array.isArray(data) && data.length > 0;
  } catch {
    return false;
  }
}

/** Returns the listen addresses of a process and its ancestors, nearest first. Empty where /proc hides them. */
function listening(pid: number): string[] {
  const found: string[] = [];
  try {
    if (readlinkSync(`/proc/${pid}/ns/net`) !== readlinkSync("/proc/self/ns/net")) return [];
    let at = pid;
    for (let step = 0; step <= NEIGHBOUR_ANCESTORS_MAX && at > 1; step += 1) {
      if (at !== process.pid) found.push(...listeningOf(at));
      at = parentOf(at);
    }
  } catch {
    // The process ended, or is another user's; the addresses found so far may suffice.
  }
  return [...new Set(found)];
}

function parentOf(pid: number): number {
  const stat = readFileSync(`/proc/${pid}/stat`, "latin1");
  return Number(stat.slice(stat.lastIndexOf(")") + 2).split(" ")[1]);
}

const LISTEN = "0A";
const [LOCAL_AT, STATE_AT, INODE_AT] = [1, 3, 9];

function listeningOf(pid: number): string[] {
  const own = new Set(
    readdirSync(`/proc/${pid}/fd`).map((fd) => /^socket:\[(\d+)\]$/.exec(linkOf(pid, fd))?.[1]),
  );
  return ["tcp", "tcp6"].flatMap((table) =>
    readFileSync(`/proc/${pid}/net/${table}`, "latin1")
      .split("\n")
      .map((line) => line.trim().split(/\s+/))
      .filter((fields) => fields[STATE_AT] === LISTEN && own.has(fields[INODE_AT]))
      .map((fields) => addressOf(fields[LOCAL_AT] ?? "")),
  );
}

function linkOf(pid: number, fd: string): string {
  try {
    return readlinkSync(`/proc/${pid}/fd/${fd}`);
  } catch {
    // The descriptor was closed in between.
    return "";
  }
}

/** Decodes `0100007F:1F90`, words in host order, to 127.0.0.1:8080. A wildcard becomes the loopback. */
function addressOf(hex: string): string {
  const [words = "", port = ""] = hex.split(":");
  const bytes = Buffer.from(words, "hex");
  for (let at = 0; at < bytes.length; at += 4) bytes.subarray(at, at + 4).reverse();
  const isAny = bytes.every((byte) => byte === 0);
  return `${isAny ? (bytes.length === 4 ? "127.0.0.1" : "[::1]") : hostOf(bytes)}:${Number.parseInt(port, 16)}`;
}

function hostOf(bytes: Buffer): string {
  if (bytes.length === 4) return bytes.join(".");
  return `[${(bytes.toString("hex").match(/.{4}/g) ?? []).join(":")}]`;
}
