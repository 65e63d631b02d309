// Owns `tierkv gateway`: serves one OpenAI address before several engines, and drains or restores one of them.
import { GATEWAY_CONTROL_POLL_MS } from "../../base/limits/gateway.ts";
import { orNone, showMs } from "../../base/text.ts";
import { sleep } from "../../base/time.ts";
import type { ShownEngine, ShownFleet } from "../../gateway/control.ts";
import type { EngineStatus } from "../../gateway/engines/engine.ts";
import type { ShownKey } from "../../gateway/front/keys.ts";
import type { Candidate, Decision, Prefilled } from "../../gateway/score/decisions.ts";
import type { ShownTokenizer } from "../../gateway/tokens/own.ts";
import type { Call } from "../shell/call.ts";
import type { Command } from "../shell/command.ts";

interface ServeOptions {
  extProc?: string;
}

interface StatusOptions {
  healthy?: true;
}

interface DrainOptions {
  wait?: true;
}

export function addGateway(program: Command): void {
  const gateway = program
    .command("gateway")
    .summary("serve several engines on one OpenAI address")
    .description(
      "Serves the OpenAI API of all engines in [gateway] engines on one address. Each request goes to the engine that\n" +
        "the preset ranks first, and answers pass byte for byte. If an engine fails before its first byte, the request\n" +
        "goes to the next. /v1/models lists the models of all engines; /health and /metrics are the gateway's own.\n" +
        "Without named engines, it uses those known to this host's sidecar.",
    )
    .option(
      "--ext-proc <address>",
      "also serve routing decisions to Envoy on this address ([gateway] ext_proc)",
    )
    .example("tierkv gateway --config /etc/tierkv/tierkv.toml")
    .does(serve);
  gateway
    .command("status")
    .summary("show the engines behind the gateway of this user")
    .option("--healthy", "exit with 1 unless an engine takes requests")
    .example("tierkv gateway status")
    .does(status);
  gateway
    .command("explain")
    .argument(
      "[request]",
      "x-request-id of the request or its answer, or its first characters; without it, the latest requests",
    )
    .summary("show the engine chosen for a request, with reasons")
    .description(
      "Shows for recent requests the part of the prompt that each engine held or could pull from a vault. Adds each\n" +
        "engine's predicted time and the time to the first token. Exit code 1 if no such request is remembered.",
    )
    .example("tierkv gateway explain chat-1234")
    .does(explain);
  gateway
    .command("drain")
    .argument("<engine>", "address of an engine, as `tierkv gateway status` shows it")
    .summary("send an engine no more requests")
    .description("Sends the engine no more requests. Requests in flight are finished.")
    .option("--wait", "wait until the engine has no request in flight")
    .example("tierkv gateway drain 127.0.0.1:8001 --wait")
    .does((call: Call<DrainOptions>) => take(call, "drain"));
  gateway
    .command("undrain")
    .argument("<engine>", "address of an engine, as `tierkv gateway status` shows it")
    .summary("send an engine requests again")
    .description("Sends the engine requests again.")
    .example("tierkv gateway undrain 127.0.0.1:8001")
    .does((call) => take(call, "undrain"));
}

async function serve(call: Call<ServeOptions>): Promise<number> {
  const { extProc: text } = call.options;
  const where = { option: "--ext-proc", section: "gateway", name: "ext_proc" };
  const config = call.loadConfig([{ ...where, text }]);
  const { serveGateway } = await import("../../gateway/process/serve.ts");
  return serveGateway({
    config,
    createLogger: () => call.createLogger("gateway", config),
    onReady: (ready) => {
      if (call.isJson) call.print({ event: "ready", ...ready }, []);
    },
  });
}

/** Sends a request to this user's gateway. */
async function ask(call: Call, method: "GET" | "POST", path: string): Promise<unknown> {
  const { askGateway } = await import("../../control/gateway-link.ts");
  return await askGateway(call.loadConfig().gateway.socket, method, path);
}

async function status(call: Call<StatusOptions>): Promise<boolean> {
  const found = (await ask(call, "GET", "/status")) as ShownFleet;
  call.print(found, [
    ...(found.engines.length === 0 ? [NO_ENGINE] : found.engines.map(showWhole)),
    `waiting: ${found.waiting}`,
    ...found.keys.map(showKey),
    ...found.tokenizers.map(showTokenizer),
  ]);
  return call.options.healthy !== true || found.engines.some(({ state }) => state === "up");
}

const NO_ENGINE = "no engine yet: none was named, discovered or registered";

function showTokenizer(one: ShownTokenizer): string {
  const chats = one.chats ? `chats with${one.tools ? "" : "out"} tools` : "no chats";
  const what = {
    agrees: `made by the gateway, for texts and ${chats}`,
    differs: DIFFERS,
    asking: "asked of the engine, until the gateway has made the same ids from this folder",
    failed: `asked of the engine, until its folder can be opened: ${one.reason}`,
  };
  return `tokens of ${one.model} at ${one.engine}: ${what[one.state]} (${one.folder})`;
}

const DIFFERS =
  "asked of the engine, one call a prompt, because the ids that the gateway makes from this folder are not the engine's; [gateway] tokenizers can name another folder";

async function explain(call: Call): Promise<boolean> {
  const [id = ""] = call.args;
  const path = `/decisions?id=${encodeURIComponent(id)}`;
  const found = (await ask(call, "GET", path)) as { requests: Decision[] };
  const none = `the gateway remembers no request ${id === "" ? "yet" : `"${id}"`}`;
  const lines = found.requests.flatMap(describe);
  call.print(found, lines.length === 0 ? [none] : lines);
  return lines.length > 0;
}

function describe(decision: Decision): string[] {
  const { id, at, model, engine, reason, tokens, candidates, prefilled, predictedMs, measuredMs } =
    decision;
  const ms = (value: number | null): string => orNone(value, showMs);
  const timesOf = ({ waitMs, computeMs }: Candidate): string =>
    `waits ${ms(waitMs)}, computes ${ms(computeMs)}`;
  const head = `${id === "" ? "(no id)" : id} (${model ?? "no model"}, ${new Date(at).toISOString()})`;
  const times = `first token predicted ${ms(predictedMs)}, measured ${ms(measuredMs)}`;
  return [
    head,
    `  ${engine}: ${reason}; ${tokens === 0 ? "prompt not known" : `${tokens} tokens`}; ${times}`,
    ...(prefilled === null ? [] : [`    ${showPrefilled(prefilled)}`]),
    ...candidates.map((one) => `    ${one.engine}  ${sourcesOf(one, tokens)}; ${timesOf(one)}`),
  ];
}

function sourcesOf({ held, pulled }: Candidate, tokens: number): string {
  if (held === null) return `own not known: it publishes no events to the gateway, vault ${pulled}`;
  return `own ${held}, vault ${pulled}, computed ${tokens - held - pulled}`;
}

function showPrefilled({ engine, tokens, predictedMs, measuredMs }: Prefilled): string {
  const what =
    tokens > 0 ? `computed ${tokens} tokens first` : "was to compute it first, and failed";
  return `${engine}  ${what}: predicted ${showMs(predictedMs)}, took ${showMs(measuredMs)}`;
}

async function take(call: Call<DrainOptions>, what: "drain" | "undrain"): Promise<void> {
  const path = `/${what}?engine=${encodeURIComponent(call.args[0] ?? "")}`;
  let engine = (await ask(call, "POST", path)) as EngineStatus;
  const isEmpty = async (): Promise<void> => {
    while (call.options.wait === true && engine.inFlight > 0) {
      await sleep(GATEWAY_CONTROL_POLL_MS);
      engine = (await ask(call, "POST", path)) as EngineStatus;
    }
  };
  const { whileWaiting } = await import("../shell/progress.ts");
  const waited = (): string => {
    const { inFlight, engine: name } = engine;
    return `${inFlight} ${inFlight === 1 ? "request" : "requests"} at ${name}`;
  };
  await whileWaiting(call.io, waited, isEmpty);
  call.print(engine, [show(engine)]);
}

function show(one: EngineStatus): string {
  const { engine, state, isDraining, isPrefill, reason, inFlight, models } = one;
  const why = reason === "" ? "" : ` (${reason})`;
  const drained = isDraining && state !== "draining" ? ", draining" : "";
  const role = isPrefill ? "  prefill" : "";
  return `${engine}  ${state}${why}${drained}${role}  in flight: ${inFlight}  models: ${models.join(", ") || "-"}`;
}

function showKey({ name, limits, requestsLeft, tokensLeft, atOnce, refused }: ShownKey): string {
  const { requests, tokens, concurrent } = limits;
  const parts = [
    requests === null ? null : `requests left: ${requestsLeft} of ${requests} a minute`,
    tokens === null ? null : `tokens left: ${tokensLeft} of ${tokens} a minute`,
    `in flight: ${atOnce}${concurrent === null ? "" : ` of ${concurrent}`}`,
    `refused: ${refused}`,
  ];
  return `key ${name}  ${parts.filter((part) => part !== null).join("  ")}`;
}

function showWhole(engine: ShownEngine): string {
  const { ranks, events, blocks, vaultBlocks, hashes, form } = engine;
  if (events === null) return show(engine);
  const of = ranks === 1 ? "" : ` of ${ranks} ranks`;
  const known = `events: ${events}${of}, ${blocks} blocks, ${vaultBlocks} in vaults`;
  return `${show(engine)}  ${known}  hashes: ${hashes}${form === "" ? "" : ` (${form})`}`;
}
