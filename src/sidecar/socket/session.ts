// Owns the frames about sessions: what a request says of its own, and what `tierkv session` asks.
import type { Namespace } from "../../block.ts";
import { PLAN_KEYS_MAX } from "../../limits/general.ts";
import { KEEP_S_MAX, SESSION_NAME_BYTES_MAX } from "../../limits/sessions.ts";
import { recordKeysTenant } from "../../native.ts";
import { parseAsked, readNamespace } from "./asked.ts";
import type { PrefetchGroup } from "./asked.ts";
import type { Reader } from "./reader.ts";

/** What is wanted of a session. */
export interface SessionUpdate {
  session: string;
  /** From now on; 0: as before. */
  keepS: number;
  /** It is over. */
  isReleased: boolean;
}

/** A request of a session has ended. */
export interface SessionMessage extends SessionUpdate {
  t: "session";
  namespace: Namespace;
  tenant: number;
  /** All blocks of the request; `from` on they are the session's, and above 0 those before are it no more. */
  groups: PrefetchGroup[];
}

/** An empty name: which sessions are there? */
export interface SessionsQuestion extends SessionUpdate {
  t: "sessions";
}

export function parseSession(message: Reader): SessionMessage {
  return {
    t: "session",
    ...parseUpdate(message),
    namespace: readNamespace(message),
    tenant: recordKeysTenant(message.count("tenant")),
    groups: parseAsked(message, PLAN_KEYS_MAX),
  };
}

export function parseSessions(message: Reader): SessionsQuestion {
  return { t: "sessions", ...parseUpdate(message) };
}

function parseUpdate(message: Reader): SessionUpdate {
  return {
    session: message.text("session", SESSION_NAME_BYTES_MAX),
    keepS: message.u32("keep_s", 0, KEEP_S_MAX),
    isReleased: message.u32("release", 0, 1) === 1,
  };
}
