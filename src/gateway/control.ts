// Owns the local socket on which `tierkv gateway status` and `tierkv gateway drain` reach the gateway: this user's alone.
import { createServer } from "node:http";
import type { IncomingMessage, ServerResponse } from "node:http";
import { toTierkvError } from "../errors.ts";
import type { Running } from "../lifecycle.ts";
import { GATEWAY_CONTROL_MS } from "../limits-gateway.ts";
import { isOwnPeer, listenOn, ofServer } from "../socket-file.ts";
import type { Fleet } from "./engines/fleet.ts";

/** `GET /status`, `POST /drain?engine=NAME`, `POST /undrain?engine=NAME`; answers are JSON, errors `{ "error": TEXT }`. */
export async function startControl(path: string, fleet: Fleet): Promise<Running> {
  const server = createServer({ requestTimeout: GATEWAY_CONTROL_MS }, (request, response) =>
    answer(request, response, fleet),
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

function answer(request: IncomingMessage, response: ServerResponse, fleet: Fleet): void {
  request.resume();
  const { pathname, searchParams } = new URL(request.url ?? "/", "http://gateway");
  const say = (code: number, what: object): void => {
    response.writeHead(code, { "content-type": "application/json", connection: "close" });
    response.end(JSON.stringify(what));
  };
  try {
    const name = searchParams.get("engine") ?? "";
    if (request.method === "GET" && pathname === "/status") {
      say(200, { engines: fleet.engines.map((engine) => engine.status()), waiting: fleet.waiting });
    } else if (request.method === "POST" && pathname === "/drain") {
      say(200, fleet.drain(name, true));
    } else if (request.method === "POST" && pathname === "/undrain") {
      say(200, fleet.drain(name, false));
    } else {
      say(404, { error: "GET /status, POST /drain or POST /undrain" });
    }
  } catch (error) {
    say(400, { error: toTierkvError(error).message });
  }
}
