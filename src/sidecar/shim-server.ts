// Owns the local socket's server: admission, the hello, and the assignment of connections to engines.
import { createServer } from "node:net";
import type { Server, Socket } from "node:net";
import type { RecordClass } from "../base/block.ts";
import { TierkvError } from "../base/errors.ts";
import { REFUSALS_SAID_MAX } from "../base/limits/access.ts";
import {
  HELLO_TIMEOUT_MS,
  SHIM_CONNECTIONS_MAX,
  SHIM_COUNTERS_MAX,
} from "../base/limits/general.ts";
import type { Logger } from "../base/log.ts";
import type { SidecarCounters } from "../base/metrics.ts";
import { coreInfo } from "../base/native.ts";
import { isOwnPeer, listenOn, ofServer } from "../base/socket-file.ts";
import { nowMs } from "../base/time.ts";
import type { Takes } from "../client/flush-feed.ts";
import type { EngineStatus } from "./engine/engine-status.ts";
import { Engine } from "./engine/engine.ts";
import type { EngineOptions } from "./engine/engine.ts";
import type { WorkerRank } from "./engine/worker-rank.ts";
import type { Copies } from "./save/reoffer.ts";
import { Connection } from "./socket/connection.ts";
import { LOCAL_PROTOCOL } from "./socket/hello.ts";
import type { Hello } from "./socket/hello.ts";
import type {
  CommonMessage,
  ShimMessage,
  SidecarMessage,
  WorkerMessage,
} from "./socket/messages.ts";
import type { SessionMessage } from "./socket/session.ts";
import type { Sessions } from "./vaults/sessions.ts";

export interface ShimServerOptions {
  socketPath: string;
  engine: EngineOptions;
  /** Message that every shim gets after its hello. */
  welcome: Extract<SidecarMessage, { t: "welcome" }>;
  status(): object;
  /** Called when an engine has connected. */
  onEngine(): void;
  sessions: Sessions;
  /** Returns the latest `most` accounts of requests whose id begins with `req`. */
  explain(req: string, most: number): object[];
  counters: SidecarCounters;
  logger: Logger;
}

/** Role of a connection after its hello. */
type Place =
  | { role: "scheduler"; engine: Engine }
  | { role: "worker"; engine: Engine; worker: WorkerRank }
  | { role: "status" };

interface Peer {
  connection: Connection;
  place: Place | null;
  hello: NodeJS.Timeout;
}

export class ShimServer {
  readonly #options: ShimServerOptions;
  readonly #server: Server;
  readonly #peers = new Set<Peer>();
  /** By id, engines that new connections may join. */
  readonly #engines = new Map<string, Engine>();
  /** All engines, also leaving ones whose saves are still being encoded. */
  readonly #alive = new Set<Engine>();
  readonly #shimCounters = new Set<string>();
  /** Causes of refusals without their numbers, because free memory, say, differs each time. */
  readonly #refusals = new Set<string>();
  #lastId = 0;
  /** Time at which the last engine left; null while there is one. */
  #idleSinceMs: number | null = nowMs();
  #stopListening: () => Promise<void> = () => Promise.resolve();

  constructor(options: ShimServerOptions) {
    this.#options = options;
    this.#server = createServer((socket) => this.#accept(socket));
  }

  /** Throws ADDRESS_IN_USE when another sidecar serves the socket, LISTEN_FAILED when the path is unfit. */
  async listen(): Promise<void> {
    this.#stopListening = await listenOn(ofServer(this.#server), {
      path: this.#options.socketPath,
      key: "[sidecar] socket",
      whenTaken:
        "one sidecar serves all engines of a host; stop the other one, or set another [sidecar] socket",
    });
    this.#server.on("error", (error) =>
      this.#options.logger.error({ err: error }, "local socket failed"),
    );
  }

  /** Stops listening and retires all engines; resolves when they have gone, bounded by their own limits. */
  async close(): Promise<void> {
    await this.#stopListening();
    for (const engine of this.#alive) engine.retire();
    for (const { connection } of this.#peers) connection.close();
    while (this.#peers.size > 0 || this.#alive.size > 0) {
      await new Promise<void>((resolve) => {
        this.#onLess = resolve;
      });
    }
  }

  #onLess: () => void = () => {};

  engines(): EngineStatus[] {
    return [...this.#engines.values()].map((engine) => engine.status());
  }

  /** Returns the blocks in the arenas of all engines. */
  copies(): Copies[] {
    return [...this.#engines.values()].flatMap((engine) => engine.copies() ?? []);
  }

  /** Flushes the arenas of all engines. */
  flush(
    recordClass: RecordClass,
    takes: Takes,
    vault: number | null,
  ): { blocks: number; bytes: number } {
    const total = { blocks: 0, bytes: 0 };
    for (const engine of this.#engines.values()) {
      const { blocks, bytes } = engine.flush(recordClass, takes, vault);
      total.blocks += blocks;
      total.bytes += bytes;
    }
    return total;
  }

  /** Milliseconds without a connected engine; 0 while there is one. */
  idleMs(): number {
    return this.#idleSinceMs === null ? 0 : nowMs() - this.#idleSinceMs;
  }

  #accept(socket: Socket): void {
    if (!isOwnPeer(socket)) {
      this.#options.counters.add("peers_refused");
      socket.destroy();
      return;
    }
    this.#lastId += 1;
    const { logger } = this.#options;
    const connection = new Connection(
      this.#lastId,
      socket,
      {
        onMessage: (message) => this.#onMessage(peer, message),
        onEnd: () => this.#onEnd(peer),
        onRefused: (error) => this.#onRefused(error),
      },
      logger,
    );
    const peer: Peer = {
      connection,
      place: null,
      hello: setTimeout(() => {
        const timeoutMs = HELLO_TIMEOUT_MS;
        connection.refuse(new TierkvError("DEADLINE", { what: "the hello", timeoutMs }));
      }, HELLO_TIMEOUT_MS),
    };
    this.#peers.add(peer);
    if (this.#peers.size <= SHIM_CONNECTIONS_MAX) return;
    const limit = SHIM_CONNECTIONS_MAX;
    connection.refuse(
      new TierkvError("OVERLOAD", { what: "connections", count: this.#peers.size, limit }),
    );
  }

  #onMessage(peer: Peer, message: ShimMessage): void {
    if (message.t === "hello") this.#onHello(peer, message);
    else if (peer.place === null) throw misplaced(peer, message, "hello first");
    else if (isCommon(message)) this.#onCommon(peer, peer.place, message);
    else if (message.t === "session") this.#onSession(peer, peer.place, message);
    else dispatch(peer, peer.place, message);
  }

  #onHello(peer: Peer, hello: Hello): void {
    if (peer.place !== null) throw misplaced(peer, hello, "one hello");
    if (hello.protocol !== LOCAL_PROTOCOL) {
      throw new TierkvError("VERSION_MISMATCH", {
        peer: hello.shim === "" ? "the shim" : `shim ${hello.shim}`,
        theirs: `local protocol ${hello.protocol}`,
        ours: `local protocol ${LOCAL_PROTOCOL} (sidecar ${coreInfo().version})`,
      });
    }
    const { connection } = peer;
    peer.place = this.#assign(connection, hello);
    clearTimeout(peer.hello);
    connection.send(this.#options.welcome);
    if (peer.place.role === "status") return;
    connection.trust();
    connection.peer = `${hello.role} ${hello.rank} of engine ${hello.engine}`;
    peer.place.engine.sayHello(connection);
    this.#options.logger.info(
      {
        engine: hello.engine,
        role: hello.role,
        rank: hello.rank,
        pid: hello.pid,
        vllm: hello.vllm,
      },
      "an engine's process connected",
    );
  }

  #assign(connection: Connection, hello: Hello): Place {
    if (hello.role === "status") return { role: "status" };
    const engine = this.#engines.get(hello.engine) ?? this.#addEngine(hello);
    if (hello.role === "worker") {
      return { role: "worker", engine, worker: engine.addWorker(connection, hello) };
    }
    engine.addScheduler(connection, hello);
    return { role: "scheduler", engine };
  }

  #addEngine(hello: Hello): Engine {
    const { counters } = this.#options;
    const engine = new Engine(hello, this.#options.engine, {
      onRetired: () => this.#engines.delete(engine.id),
      onGone: () => {
        this.#alive.delete(engine);
        if (this.#alive.size === 0) this.#idleSinceMs = nowMs();
        counters.add("engines_gone");
        this.#onLess();
      },
    });
    this.#engines.set(engine.id, engine);
    this.#alive.add(engine);
    this.#idleSinceMs = null;
    counters.add("engines_connected");
    this.#options.onEngine();
    return engine;
  }

  #onCommon({ connection }: Peer, place: Place, message: CommonMessage): void {
    if (message.t === "ping") {
      connection.send({ t: "pong", n: message.n });
    } else if (message.t === "status") {
      if (place.role !== "status") throw misplaced({ connection }, message, "role status");
      connection.send({ t: "status_reply", status: this.#options.status() });
    } else if (message.t === "explain") {
      if (place.role !== "status") throw misplaced({ connection }, message, "role status");
      const accounts = this.#options.explain(message.req, message.most);
      connection.send({ t: "explain_reply", accounts });
    } else if (message.t === "sessions") {
      if (place.role !== "status") throw misplaced({ connection }, message, "role status");
      void this.#options.sessions
        .ask(message)
        .then((seen) => connection.send({ t: "sessions_reply", ...seen }));
    } else {
      for (const [name, count] of message.counters) this.#countForShim(name, count);
      if (place.role === "worker") place.engine.learn(message.steps);
      if (place.role === "scheduler") place.engine.hear(message);
    }
  }

  #onSession(peer: Peer, place: Place, message: SessionMessage): void {
    if (place.role !== "scheduler") throw misplaced(peer, message, "role scheduler");
    this.#options.sessions.tell(message, place.engine.shards);
  }

  /** Logs each cause once, because a refused engine comes back for ever. */
  #onRefused({ code, message }: TierkvError): boolean {
    this.#options.counters.add("frames_refused");
    const cause = `${code} ${message.replaceAll(/\d+/gu, "#")}`;
    if (this.#refusals.has(cause) || this.#refusals.size >= REFUSALS_SAID_MAX) return false;
    this.#refusals.add(cause);
    return true;
  }

  #countForShim(name: string, count: number): void {
    const isKnown = this.#shimCounters.has(name) || this.#shimCounters.size < SHIM_COUNTERS_MAX;
    if (isKnown) this.#shimCounters.add(name);
    this.#options.counters.add(isKnown ? `shim_${name}` : "shim_other", count);
  }

  #onEnd(peer: Peer): void {
    clearTimeout(peer.hello);
    this.#peers.delete(peer);
    const { place, connection } = peer;
    if (place !== null && place.role !== "status") {
      this.#options.logger.info({ peer: connection.peer }, "an engine's process is gone");
      place.engine.onEnd(connection);
    }
    this.#onLess();
  }
}

type RoleMessage = Exclude<ShimMessage, Hello | CommonMessage | SessionMessage>;

const COMMON: ReadonlySet<string> = new Set(["ping", "counts", "status", "explain", "sessions"]);

function isCommon(message: ShimMessage): message is CommonMessage {
  return COMMON.has(message.t);
}

const OF_WORKERS: ReadonlySet<string> = new Set([
  "register",
  "mapped",
  "unmapped",
  "save",
  "return",
]);

function isOfWorkers(message: RoleMessage): message is WorkerMessage {
  return OF_WORKERS.has(message.t);
}

function dispatch(peer: Peer, place: Place, message: RoleMessage): void {
  if (isOfWorkers(message)) {
    if (place.role !== "worker") throw misplaced(peer, message, "role worker");
    place.engine.onWorkerMessage(place.worker, message);
  } else {
    if (place.role !== "scheduler") throw misplaced(peer, message, "role scheduler");
    place.engine.onSchedulerMessage(message);
  }
}

function misplaced(
  { connection }: Pick<Peer, "connection">,
  message: ShimMessage,
  expected: string,
): TierkvError {
  return new TierkvError("BAD_FRAME", {
    peer: connection.peer,
    reason: `t = "${message.t}": expected ${expected}`,
  });
}
