// Owns failpoints: named places where a test makes a step fail, wait or crash; armed only by TIERKV_FAILPOINTS at start.
import { TierkvError } from "./errors.ts";
import type { Logger } from "./log.ts";
import { sleep } from "./time.ts";

export const FAILPOINTS_VARIABLE = "TIERKV_FAILPOINTS";

/** Every failpoint of the sidecar, with the state at that point. None returns a value, so none can make a byte wrong. */
export const FAILPOINTS = {
  "sidecar.save.taken": "a save is the sidecar's, its slots with it; nothing is encoded",
  "sidecar.save.encoded": "records are encoded and their slots free; nothing is sent",
  "sidecar.save.stored": "the vault has answered for records; nothing is counted or let go",
  "sidecar.restore.found": "what the vaults hold is known; nothing is decided or fetched",
  "sidecar.fetch.begun": "slots are taken for blocks; no vault is asked for them",
  "sidecar.fetch.placed": "records lie verified and decoded in their slots; nobody is told",
} as const;

export type Failpoint = keyof typeof FAILPOINTS;
/** Prefix of the shim's own failpoints in the same variable. */
const SHIM_PREFIX = "shim.";

const ACTIONS = ["off", "return", "sleep", "abort"] as const;
type Action = (typeof ACTIONS)[number];

/** `[count*]action[(ms)]`, as in tikv's fail crate; without a count the action repeats for ever. */
interface Term {
  action: Action;
  ms: number;
  left: number;
}

/** Six digits of ms are 17 minutes. */
const TERM = /^(?:(\d{1,6})\*)?(\w+)(?:\((\d{1,6})\))?$/;

let armed: ReadonlyMap<string, Term[]> = new Map();
let acting: Logger | null = null;

/** Number of failpoints armed in this process; 0 outside of tests. */
export function armedFailpoints(): number {
  return armed.size;
}

export interface Circumstances {
  /** TIERKV_FAILPOINTS: `name=3*off->1*return;name=sleep(50)`. */
  text: string | undefined;
  /** Whether the process serves or asks another machine. */
  isOnNetwork: boolean;
  logger: Logger;
}

/** Arms a sidecar's failpoints and logs an error. Throws FAILPOINTS for unknown ones, and where other machines would suffer. */
export function armFailpoints({ text, isOnNetwork, logger }: Circumstances): void {
  if (text === undefined || text === "") return;
  const all = parseFailpoints(text);
  if (isOnNetwork) {
    throw refusal(text, "this process serves other machines, or uses theirs", FIX_UNSET);
  }
  armed = new Map([...all].filter(([name]) => !name.startsWith(SHIM_PREFIX)));
  acting = logger;
  logger.error(
    { failpoints: text },
    `FAILPOINTS ARE ARMED: this process fails, waits and ends on purpose; ${FIX_UNSET} and start it again`,
  );
}

/** Parses failpoints by name. Throws FAILPOINTS. */
function parseFailpoints(text: string): Map<string, Term[]> {
  const points = text.split(";").filter((part) => part.trim() !== "");
  return new Map(
    points.map((part) => {
      const [name = "", terms = ""] = part.split("=", 2).map((side) => side.trim());
      if (!Object.hasOwn(FAILPOINTS, name) && !name.startsWith(SHIM_PREFIX)) {
        throw refusal(text, `there is no failpoint "${name}"`, FIX_READ);
      }
      return [name, terms.split("->").map((term) => parseTerm(text, term.trim()))];
    }),
  );
}

function parseTerm(text: string, term: string): Term {
  const [, count, word = "", ms] = TERM.exec(term) ?? [];
  const action = ACTIONS.find((name) => name === word);
  const left = count === undefined ? Infinity : Number(count);
  if (action === undefined || (action === "sleep") !== (ms !== undefined)) {
    throw refusal(text, `"${term}" is no action`, FIX_READ);
  }
  return { action, ms: Number(ms ?? 0), left };
}

const FIX_UNSET = `unset ${FAILPOINTS_VARIABLE}`;
const FIX_READ = `${FIX_UNSET}, or see docs/faults.md for names and actions`;

function refusal(value: string, reason: string, fix: string): TierkvError {
  return new TierkvError("FAILPOINTS", { key: FAILPOINTS_VARIABLE, value, reason, fix });
}

/** Marks a step that may wait. Rejects with FAILPOINT when armed to fail; nothing to wait for while none is armed. */
export function failpoint(name: Failpoint): Promise<void> | undefined {
  return armed.size === 0 ? undefined : struck(name);
}

async function struck(name: Failpoint): Promise<void> {
  const ms = strike(name);
  if (ms > 0) await sleep(ms);
}

/** Returns the ms to wait; throws or crashes the process where armed for that. */
function strike(name: Failpoint): number {
  const term = armed.get(name)?.find(({ left }) => left > 0);
  if (term === undefined || term.action === "off") {
    if (term !== undefined) term.left -= 1;
    return 0;
  }
  term.left -= 1;
  acting?.warn({ failpoint: name, action: term.action }, "a failpoint acts");
  if (term.action === "abort") process.kill(process.pid, "SIGKILL");
  if (term.action === "return") throw new TierkvError("FAILPOINT", { name });
  return term.ms;
}
