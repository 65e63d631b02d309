// Owns the requests of `tierkv gateway` subcommands to a running gateway: HTTP on its local socket.
import { request } from "node:http";
import { TierkvError, toTierkvError } from "../base/errors.ts";
import { GATEWAY_CONTROL_MS } from "../base/limits/gateway.ts";
import { strangeSocket } from "../base/socket-file.ts";
import { withDeadline } from "../base/time.ts";

/** Returns the parsed answer. Throws GATEWAY_DOWN without one, BAD_ARGUMENT with the gateway's objection. */
export async function askGateway(
  socketPath: string,
  method: "GET" | "POST",
  path: string,
): Promise<unknown> {
  const down = (reason: string, fix = ABSENT): TierkvError =>
    new TierkvError("GATEWAY_DOWN", { path: socketPath, reason, fix });
  const strange = strangeSocket(socketPath, "[gateway] socket");
  if (strange !== null) throw down(strange);
  let answer: { code: number; text: string };
  try {
    answer = await withDeadline(ask(socketPath, method, path), GATEWAY_CONTROL_MS, "the gateway");
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === "ENOENT") throw down("there is no socket");
    if (code === "ECONNREFUSED") throw down("nobody listens on its socket", KILLED);
    const known = toTierkvError(error);
    throw down(known.message, known.code === "DEADLINE" ? STUCK : ABSENT);
  }
  const parsed = JSON.parse(answer.text) as { error?: string };
  if (answer.code === 200) return parsed;
  throw new TierkvError("BAD_ARGUMENT", { reason: parsed.error ?? answer.text });
}

const ABSENT = "start it with `tierkv gateway`";
/** Remedy for a gateway that ended without removing its socket. */
export const KILLED =
  "it was killed: start it again with `tierkv gateway`, or remove that file if it is not to run here";
/** Remedy for a gateway that has a socket and does not answer. */
export const STUCK =
  "it runs, and is busy or stuck: try again, and if that lasts, end its process and start it again";

function ask(
  socketPath: string,
  method: string,
  path: string,
): Promise<{ code: number; text: string }> {
  return new Promise((resolve, reject) => {
    const asked = request({ socketPath, method, path }, (answer) => {
      let text = "";
      answer.setEncoding("utf8").on("data", (chunk: string) => (text += chunk));
      answer.on("end", () => resolve({ code: answer.statusCode ?? 0, text })).on("error", reject);
    });
    asked.on("error", reject).end();
  });
}
