// Owns which client carries requests to an engine: the core's, or undici where the engine speaks TLS.
import type { EngineAccess } from "./access.ts";
import type { Calls } from "./calls.ts";
import { CoreCalls } from "./core-calls.ts";
import { UndiciCalls } from "./undici-calls.ts";

/** `name`: `host:port` or `unix:/path`; `most`: connections at once. */
export const openCalls = (name: string, most: number, access: EngineAccess): Calls =>
  access.isSecure ? new UndiciCalls(name, most, access) : new CoreCalls(name, most);
