// Owns the rule that nothing waits without a bound: every await in the rooms that talk to others, and what ends it.
import { lineOf, under, type Rule, type Source } from "./sources.ts";

const ROOMS_THAT_WAIT = ["client", "codec", "exposition", "gateway", "sidecar", "vault", "wire"];

/** Bounded by themselves, wherever they stand. */
const HELPERS: ReadonlySet<string> = new Set([
  "withDeadline",
  "sleep",
  "quietSleep",
  "yieldToLoop",
  // Waits only where a test has armed it, for as long as that says.
  "failpoint",
]);

const CALL = "the deadline that the caller gives, which every call of a session has";
const DRAIN = "the drain of the process, which ends after DRAIN_TIMEOUT_MS";
const DISK = "the disk's own limits: DISK_STALL_MS to read, DISK_SYNC_WAIT_MS to write";
const LOCAL = "files and sockets of this machine";
const KEYS = "its keys, at most KEYS_MAX";
const WATCHING = "WATCH_TIMEOUT_MS";
const LEAVING = "FLUSH_LEAVE_MS";
const ABORTED = "they were all aborted before";
const HEALTH = "GATEWAY_CONNECT_MS and GATEWAY_HEALTH_TIMEOUT_MS";
const ANSWER = "GATEWAY_ANSWER_MS, and GATEWAY_SILENCE_MS once it began";
const ENCODING = "ENCODE_TIMEOUT_MS";

/** What ends each of the others: by file, and by what is awaited. */
const BOUNDS: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  "src/client/breaker.ts": { "this.#options.probe": "HELLO_TIMEOUT_MS" },
  "src/client/ask.ts": { "channel.unary": CALL },
  "src/client/lanes.ts": {
    "Promise.race": "LANES_OPEN_WAIT_MS, one of the two",
    "this.#run": CALL,
    Promise: "a timer of the call's deadline, which cancels the request",
    "this.#options.renew": "HELLO_TIMEOUT_MS",
  },
  "src/client/session.ts": {
    "this.direct": CALL,
    work: CALL,
    "this.#greeted": CALL,
    "this.#sayHello": CALL,
    "channel.unary": CALL,
    "this.#lanes.offer": "LANES_OPEN_WAIT_MS",
    "this.hello": "HELLO_TIMEOUT_MS",
  },
  "src/client/store-call.ts": {
    "writer.write": "the writer's stall limit",
    "Promise.race": CALL,
    ended: CALL,
  },
  "src/client/vault-client.ts": {
    "attempt.lanes.lookup": CALL,
    "attempt.channel.unary": CALL,
    "Promise.all": CALL,
    "channel.unary": CALL,
    storeBatch: CALL,
    "this.#session.call": CALL,
    "this.store": CALL,
    viewed: ENCODING,
    runFetch: CALL,
    "this.#session.direct": CALL,
    "this.#session.listen": CALL,
  },
  "src/codec/pool.ts": { "this.#piscina.destroy": DRAIN },
  "src/codec/record.ts": { "this.#make": ENCODING },
  "src/exposition/server.ts": { Promise: LOCAL },
  "src/gateway/engines/health.ts": {
    "this.#ask": HEALTH,
    "this.#look": HEALTH,
    "this.#get": HEALTH,
    request: HEALTH,
    const: HEALTH,
    "this.#agent.destroy": LOCAL,
  },
  "src/gateway/engines/fleet.ts": { "Promise.all": HEALTH },
  "src/gateway/front/forward.ts": {
    tryEngines: "GATEWAY_TRIES_MAX times what stands below",
    "fleet.enter": "[gateway] wait_ms",
    attempt: ANSWER,
    ask: ANSWER,
    pump: "GATEWAY_SILENCE_MS of the engine, GATEWAY_CLIENT_STALL_MS of the client",
  },
  "src/gateway/front/server.ts": {
    listen: LOCAL,
    closed: "GATEWAY_DRAIN_MS",
    answerOurselves: LOCAL,
    readBody: "GATEWAY_REQUEST_MS",
    forward: ANSWER,
    "options.router.choose": "[gateway] tokenize_ms",
    pass: ANSWER,
    "figures.text": LOCAL,
  },
  "src/gateway/score/router.ts": {
    "this.#know": "[gateway] tokenize_ms",
    "tokenizer.tokensOf": "[gateway] tokenize_ms",
  },
  "src/gateway/tokens/tokenizer.ts": {
    ask: "[gateway] tokenize_ms",
    "engine.pool.request": "[gateway] tokenize_ms",
    const: "[gateway] tokenize_ms",
  },
  "src/gateway/control.ts": { listenOn: LOCAL, stop: LOCAL },
  "src/gateway/gateway.ts": {
    "fleet.start": HEALTH,
    startControl: LOCAL,
    startFront: LOCAL,
    "running.close": DRAIN,
    close: DRAIN,
  },
  "src/sidecar/restore/admission.ts": { roomNeeded: KEYS, "this.#options.begin": KEYS },
  "src/sidecar/vaults/canary.ts": {
    "this.#checkAll": CALL,
    "this.#check": CALL,
    "this.#fetch": CALL,
    "client.store": "CANARY_CALL_MS",
    "client.fetch": "CANARY_CALL_MS",
  },
  "src/sidecar/engine/engine.ts": { "Promise.all": "the saver's time to settle" },
  "src/sidecar/restore/fetcher.ts": { "client.land": CALL, "client.fetch": CALL },
  "src/sidecar/vaults/flushes.ts": {
    "Promise.all": LEAVING,
    "this.#running": ABORTED,
    "this.#call": WATCHING,
    "this.#client.watch": WATCHING,
  },
  "src/sidecar/restore/lookup.ts": {
    "Promise.all": CALL,
    packAsked: KEYS,
    "gate.lookup": CALL,
  },
  "src/sidecar/restore/orphans.ts": { "asked.lookup": CALL, "told.demote": CALL },
  "src/sidecar/save/reoffer.ts": {
    "this.#look": CALL,
    "this.#ask": CALL,
    "client.lookup": CALL,
    "this.#offerAll": CALL,
    roomOf: CALL,
    "client.stats": CALL,
    "this.#offer": CALL,
    "this.#encode": ENCODING,
    "Promise.all": "STORE_TIMEOUT_MS and SAVE_HOLD_MS_MAX",
  },
  "src/sidecar/restore/superseded.ts": { "told.demote": CALL },
  "src/sidecar/restore/restore.ts": {
    lookUp: CALL,
    "this.#admission.enter": KEYS,
  },
  "src/sidecar/restore/audit.ts": { "Promise.all": CALL },
  "src/sidecar/save/save.ts": { "pool.encode": ENCODING },
  "src/sidecar/engine/seat.ts": { "Promise.all": "the saver's time to settle" },
  "src/sidecar/shim-server.ts": {
    listenOn: LOCAL,
    "this.#stopListening": LOCAL,
    Promise: `LINGER_MS of every connection, and ${DRAIN}`,
  },
  "src/sidecar/sidecar.ts": {
    "server.listen": LOCAL,
    "pool.close": DRAIN,
    "server.close": DRAIN,
    "saver.drain": "SAVE_DRAIN_MS",
    "flushes.close": LEAVING,
  },
  "src/sidecar/save/store-queue.ts": {
    "this.#way.whenFree": "SAVE_HOLD_MS_MAX",
    "this.#send": "STORE_TIMEOUT_MS",
    "this.#client.storeEncoded": CALL,
  },
  "src/sidecar/vaults/vault-watch.ts": { seenOf: CALL, "client.stats": "STATUS_TIMEOUT_MS" },
  "src/sidecar/vaults/vaults.ts": {
    Promise: "the look-ups before it, each of which has a deadline",
    "this.#client.lookup": CALL,
    "this.#client.demote": "CALL_TIMEOUT_MS",
  },
  "src/vault/fetch-call.ts": {
    sendPlan: "STREAM_STALL_MS of its writer",
    next: DISK,
    "writer.write": "STREAM_STALL_MS",
    "Promise.allSettled": DISK,
  },
  "src/vault/access/door.ts": { listenOn: LOCAL, "this.#stopListening": LOCAL },
  "src/vault/flush.ts": {
    carryOut: DISK,
    storeFlush: DISK,
    "vault.watchers.tell": "FLUSH_CONFIRM_MS",
  },
  "src/vault/server.ts": {
    recallFlushes: DISK,
    "VaultDoor.open": LOCAL,
    "door.stop": LOCAL,
    "vault.streams.idle": ABORTED,
    storeDrain: DRAIN,
  },
  "src/vault/store-call.ts": { "this.#syncing": DISK, storeAwaitDurable: DISK },
  "src/vault/unary.ts": { answer: DISK, storeRecheck: DISK, "leases.end": DISK },
  "src/vault/loads.ts": { promise: DISK, load: DISK },
  "src/vault/leases.ts": { storeFlush: DISK, "this.end": DISK },
  "src/vault/watchers.ts": { Promise: "FLUSH_CONFIRM_MS" },
};

/** These end whatever any other process does. */
const WITHIN: ReadonlySet<string> = new Set([DRAIN, DISK, LOCAL, KEYS, ABORTED, ENCODING]);

/**
 * What of sidecar and vault waits for another process, as `file: what`: each is ended by its bound when that process says
 * nothing. What the gateway waits for ends in test/gateway.
 */
export const WAITS_ACROSS: readonly string[] = Object.entries(BOUNDS)
  .filter(([path]) => !path.startsWith("src/gateway/"))
  .flatMap(([path, whats]) =>
    Object.entries(whats)
      .filter(([, bound]) => !WITHIN.has(bound))
      .map(([what]) => `${path}: ${what}`),
  );

const COMMENT = /^\s*(?:\/\/|\/?\*)/;
const AWAIT = /\bawait\s+\(*(?:new\s+)?([\w$#.]+)/g;

interface Wait {
  path: string;
  line: number;
  what: string;
}

function waitsOf({ path, text }: Source): Wait[] {
  const isCode = ({ index }: { index: number }): boolean =>
    !COMMENT.test(text.slice(text.lastIndexOf("\n", index) + 1, index + 1));
  return [...text.matchAll(AWAIT)].filter(isCode).map(({ index, 1: what = "" }) => ({
    path,
    line: lineOf(text, index),
    what,
  }));
}

const waits = (sources: readonly Source[]): Wait[] =>
  ROOMS_THAT_WAIT.flatMap((room) => under(sources, `src/${room}/`, ".ts"))
    .flatMap(waitsOf)
    .filter(({ what }) => !HELPERS.has(what));

const bounded: Rule = {
  name: "whatever is awaited has a bound that is known",
  breaches: (sources) =>
    waits(sources)
      .filter(({ path, what }) => BOUNDS[path]?.[what] === undefined)
      .map(
        ({ path, line, what }) =>
          `${path}:${line} awaits ${what}: withDeadline, or say what ends it`,
      ),
  examples: [
    { "src/client/a.ts": "const x = await fetchAll();\n" },
    { "src/client/session.ts": "  await new Promise((resolve) => {\n" },
  ],
};

const current: Rule = {
  name: "the bounds that are known belong to something that is awaited",
  breaches(sources) {
    const found = new Set(waits(sources).map(({ path, what }) => `${path}: ${what}`));
    return Object.entries(BOUNDS)
      .flatMap(([path, whats]) => Object.keys(whats).map((what) => `${path}: ${what}`))
      .filter((known) => !found.has(known));
  },
  examples: [{ "src/client/session.ts": "const x = 1;\n" }],
};

export const WAIT_RULES: readonly Rule[] = [bounded, current];
