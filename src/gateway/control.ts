// Owns the local socket on which `tierkv gateway status` and `tierkv gateway drain` reach the gateway; only this user may connect.
import { createServer } from "node:http";
import type { IncomingMessage, ServerResponse } from "node:http";
import { toTierkvError } from "../base/errors.ts";
import type { Running } from "../base/lifecycle.ts";
import {
  GATEWAY_CONTROL_MS,
  GATEWAY_DECISIONS_KEPT_MAX,
  GATEWAY_DECISIONS_SHOWN,
} from "../base/limits/gateway.ts";
import { isOwnPeer, listenOn, ofServer } from "../base/socket-file.ts";
import type { EngineStatus } from "./engines/engine.ts";
import type { Fleet } from "./engines/fleet.ts";
import type { EventFeed } from "./events/feed.ts";
import type { Keys, ShownKey } from "./front/keys.ts";
import type { AgreementState } from "./hashes/agreement.ts";
import type { BlockIndex } from "./index/index-of-blocks.ts";
import type { Roster } from "./roster.ts";
import type { Recent } from "./score/decisions.ts";
import type { Router } from "./score/router.ts";
import type { OwnTokenizers, ShownTokenizer } from "./tokens/own.ts";

/** The parts of the gateway that the commands read and change. */
export interface Controlled {
  fleet: Fleet;
  roster: Roster;
  index: BlockIndex;
  router: Router;
  /** null: clients need no key. */
  keys: Keys | null;
  own: OwnTokenizers;
}

/** One engine and its blocks; `events` is null where the engine publishes no events to the gateway. */
export interface ShownEngine extends EngineStatus {
  /** Data-parallel ranks that are followed; 1: the engine has none, or nobody tells of them. */
  ranks: number;
  /** State of the engine's events; with several ranks, the state that is furthest from `live`. */
  events: EventFeed["state"] | null;
  /** Blocks that the engine holds, as its events report them. */
  blocks: number;
  /** Blocks in vaults, as the engine's events report them. */
  vaultBlocks: number;
  /** Whether the gateway can compute the engine's block hashes; null: no events are published to it. */
  hashes: AgreementState | null;
  /** Form of these hashes; empty: not known. */
  form: string;
  /** Namespace of the engine's blocks in vaults, hex; empty: not announced. */
  namespace: string;
  /** Prompts computed or queued there. */
  prompts: number;
  /** Milliseconds until one more prompt could begin. */
  queueMs: number;
  /** Latest requests. */
  recent: Recent;
}

export interface ShownFleet {
  /** Engines behind the gateway. */
  engines: ShownEngine[];
  /** Requests waiting for an engine with room. */
  waiting: number;
  /** Names whose keys have limits, and what remains of each limit. */
  keys: ShownKey[];
  /** Models that the gateway tokenizes itself, or could. */
  tokenizers: ShownTokenizer[];
}

/** `GET /status`, `GET /decisions?id=BEGINNING`, `POST /drain?engine=NAME`, `POST /undrain?engine=NAME`; answers are JSON, errors `{ "error": TEXT }`. */
export async function startControl(path: string, controlled: Controlled): Promise<Running> {
  const server = createServer({ requestTimeout: GATEWAY_CONTROL_MS }, (request, response) =>
    answer(request, response, controlled),
  );
  server.on("connection", (socket) => {
    if (!isOwnPeer(socket)) socket.destroy();
  });
  const stop = await listenOn(ofServer(server), {
    path,
    key: "[gateway] socket",
    whenTaken: "a gateway of this user runs already: stop it, or set another [gateway] socket",
  });
  return {
    async close(): Promise<void> {
      server.closeAllConnections();
      await stop();
    },
  };
}

function answer(request: IncomingMessage, response: ServerResponse, controlled: Controlled): void {
  request.resume();
  const [pathname = "", query = ""] = (request.url ?? "/").split("?");
  const searchParams = new URLSearchParams(query);
  const say = (code: number, what: object): void => {
    response.writeHead(code, { "content-type": "application/json", connection: "close" });
    response.end(JSON.stringify(what));
  };
  const action = ACTIONS.get(`${request.method} ${pathname}`);
  if (action === undefined) return say(404, { error: `one of ${[...ACTIONS.keys()].join(", ")}` });
  try {
    say(200, action(controlled, searchParams));
  } catch (error) {
    say(400, { error: toTierkvError(error).message });
  }
}

const nameIn = (asked: URLSearchParams): string => asked.get("engine") ?? "";

type Action = (of: Controlled, asked: URLSearchParams) => object;

const ACTIONS: ReadonlyMap<string, Action> = new Map<string, Action>([
  ["GET /status", shown],
  [
    "GET /decisions",
    ({ router: { decisions } }, asked) => {
      const id = asked.get("id") ?? "";
      const most = id === "" ? GATEWAY_DECISIONS_SHOWN : GATEWAY_DECISIONS_KEPT_MAX;
      return { requests: decisions.latest(id, most) };
    },
  ],
  ["POST /drain", ({ fleet }, asked) => fleet.drain(nameIn(asked), true)],
  ["POST /undrain", ({ fleet }, asked) => fleet.drain(nameIn(asked), false)],
]);

function shown(of: Controlled): ShownFleet {
  const { fleet, roster, router, keys, own } = of;
  const engines = fleet.engines.map((engine) => {
    const agreement = roster.agreementOf(engine);
    return {
      ...engine.status(),
      ranks: roster.membersOf(engine).length,
      events: roster.feedOf(engine)?.state ?? null,
      blocks: roster.blocksOf(engine),
      vaultBlocks: roster.blocksOf(engine, "vault"),
      hashes: agreement?.state ?? null,
      form: agreement?.form ?? "",
      namespace: agreement?.named?.namespace.toString("hex") ?? "",
      ...router.queueOf(engine),
      recent: router.decisions.recent(engine.name),
    };
  });
  const tokenizers = own.shown(fleet.engines);
  return { engines, waiting: fleet.waiting, keys: keys?.status() ?? [], tokenizers };
}
