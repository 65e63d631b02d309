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
  const down = (reason: string): TierkvError =>
    new TierkvError("GATEWAY_DOWN", { path: socketPath, reason });
  const strange = strangeSocket(socketPath, "[gateway] socket");
  if (strange !== null) throw down(strange);
  let answer: { code: number; text: string };
  try {
    answer = await withDeadline(ask(socketPath, method, path), GATEWAY_CONTROL_MS, "the gateway");
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    throw down(code === "ENOENT" ? "there is no socket" : toTierkvError(error).message);
  }
  const parsed = JSON.parse(answer.text) as { error?: string };
  if (answer.code === 200) return parsed;
  throw new TierkvError("BAD_ARGUMENT", { reason: parsed.error ?? answer.text });
}

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
