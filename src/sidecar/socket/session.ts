// Owns the frames about sessions: updates that come with requests, and the questions of `tierkv session`.
import type { Namespace } from "../../base/block.ts";
import { PLAN_KEYS_MAX } from "../../base/limits/general.ts";
import { KEEP_S_MAX, SESSION_NAME_BYTES_MAX } from "../../base/limits/sessions.ts";
import { recordKeysTenant } from "../../base/native.ts";
import { parseAsked, readNamespace } from "./asked.ts";
import type { PrefetchGroup } from "./asked.ts";
import type { Reader } from "./reader.ts";

/** A change to a session. */
export interface SessionUpdate {
  session: string;
  /** Seconds to keep it from now on; 0: unchanged. */
  keepS: number;
  /** True when the session is over. */
  isReleased: boolean;
}

/** Sent when a request of a session has ended. */
export interface SessionMessage extends SessionUpdate {
  t: "session";
  namespace: Namespace;
  tenant: number;
  /** Blocks of the request: from `from` on they belong to the session; above 0, the earlier ones no longer do. */
  groups: PrefetchGroup[];
}

/** Asks for sessions; an empty name asks for all. */
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
