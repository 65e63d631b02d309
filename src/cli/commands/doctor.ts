// Owns `tierkv doctor`: measures links, reads the engines' pace from the sidecar, and predicts for which prompts restores help.
import { RECORD_CLASSES } from "../../base/block.ts";
import type { RecordClass } from "../../base/block.ts";
import { TierkvError } from "../../base/errors.ts";
import { isVaultAddress } from "../../base/hosts.ts";
import { DOCTOR_BYTES, DOCTOR_ROUNDS } from "../../base/limits/general.ts";
import { SLOW_VAULT_SHARE, VAULT_WEIGHT_LEAST } from "../../base/limits/pool.ts";
import { SHARED_MEASURE_MS } from "../../base/limits/shared.ts";
import { orNone, showMs, showRate, showShare, table } from "../../base/text.ts";
import type { Config } from "../../config/config.ts";
import { parseOption } from "../../config/override.ts";
import { describeFindings, findings, isProblem } from "../../diagnosis/findings.ts";
import type { Seen } from "../../diagnosis/inspect.ts";
import { shapeAt } from "../../extras/plan/inputs.ts";
import { restoredBytes } from "../../extras/plan/weight.ts";
import type { Forecast } from "../../sidecar/restore/forecast.ts";
import { chooseCodecs } from "../../sidecar/save/codecs.ts";
import type { EngineKind } from "../../sidecar/socket/hello.ts";
import type { VaultBench } from "../bench/bench-vault.ts";
import { failures } from "../bench/failed.ts";
import { allocatorFindings } from "../doctor/allocator.ts";
import { allowanceOf, describeAllowance } from "../doctor/allowance.ts";
import { nextStep } from "../doctor/next-step.ts";
import { describeRail } from "../doctor/rail-view.ts";
import type { RailBench } from "../doctor/rails.ts";
import { socketFindings } from "../doctor/socket-limits.ts";
import type { Call } from "../shell/call.ts";
import type { Command } from "../shell/command.ts";
import { engineUrl } from "../shell/option-kinds.ts";
import { Progress, SpokenProgress } from "../shell/progress.ts";

export function addDoctor(program: Command): void {
  program
    .command("doctor")
    .summary("measure this set-up and predict the prompts that tierKV speeds up")
    .description(
      "Measures each vault's link with records of its own, reads the costs of computing and loading from the sidecar,\n" +
        "and predicts the gain. The records are deleted at the end; a full vault evicts others for them. The prediction\n" +
        "covers prompts from 128 tokens to the engine's longest. Run it on the engine's machine after the engine has\n" +
        "answered a few prompts. Problems come first. Exit code 1 if there is a problem, if a restore helps no prompt, or\n" +
        "if too little is known. With --engine, run it on a machine that could hold a vault; the engine's machine needs no\n" +
        "tierKV. It sends random prompts for half a minute, measures the link, and predicts the time that restores save.\n" +
        "With --shm, it measures a region's latency and rate, and checks that another process sees its writes. Run it with\n" +
        "--shm-peer first on a second machine that maps the region.",
    )
    .option("--engine <url>", "address of an engine without tierKV, like http://192.168.1.20:8000")
    .option("--model <path>", "config.json of the engine's model, or its folder; with --engine")
    .option("--shm <path>", "path of a shared-memory region, present or planned")
    .option("--shm-peer", "answer one measurement of another process; with --shm")
    .example("tierkv doctor --engine http://192.168.1.20:8000 --model config.json")
    .does(doctor);
}

/** Combined pace of the links to all vaults of a class, for records checked and decoded. */
export interface LinkPace {
  bytesPerS: number;
  /** Page bytes stored per second; null: not measured. */
  savesPerS: number | null;
  questionMs: number;
}

export interface Outlook {
  /** Length of the prompt. */
  tokens: number;
  /** True where no prompt of that length was computed yet. */
  isBeyond: boolean;
  /** True: `restoreMs` follows from what this engine's restores took; otherwise from links as measured now. */
  isSeen: boolean;
  /** True: `computeMs` and `restoreMs` include the time that a request takes between the engine's server and its steps, as measured for restored requests. */
  hasAside: boolean;
  /** False: the engine has restored too little to know how long it copies, and that time is left out of `restoreMs`. */
  hasLoaded: boolean;
  /** Milliseconds to the first token, from a request's arrival at the engine's server where restores told what lies beside computing. */
  computeMs: number | null;
  /** The same of a restore: look-up, fetch, load, and computing the rest. */
  restoreMs: number;
  /** `computeMs` over `restoreMs`; null: `computeMs` is not known. */
  gain: number | null;
}

type LinkPaces = Partial<Record<RecordClass, LinkPace>>;

interface DoctorFlags {
  engine?: string;
  model?: string;
  shm?: string;
  shmPeer?: true;
}

async function doctor(call: Call<DoctorFlags>): Promise<boolean> {
  const config = call.loadConfig();
  const { options } = call;
  if (options.engine !== undefined) {
    return doctorFar(call, parseOption(engineUrl, "--engine", options.engine), options.model);
  }
  if (options.shm !== undefined) return doctorShared(call, options.shm);
  if (options.shmPeer !== undefined) {
    throw new TierkvError("USAGE", {
      reason: "--shm-peer answers for a region: name it with --shm",
    });
  }
  if (options.model !== undefined) {
    throw new TierkvError("USAGE", {
      reason: "--model names the model of an engine: give --engine, too",
    });
  }
  return doctorHere(call, config);
}

async function doctorHere(call: Call, config: Config): Promise<boolean> {
  const { look } = await import("../shell/looking.ts");
  const seen = await look(config, call.io);
  const progress = new Progress(call.io);
  const { vaults, links } = await measure(call, seen, progress);
  const draining = seen.targets.flatMap((one) => (one.draining === true ? [one.address] : []));
  const all = [...findings(seen), ...failures(vaults, new Set(draining))];
  const found = [
    ...all.filter(isProblem),
    ...all.filter((finding) => !isProblem(finding)),
    ...allocatorFindings(call.io.env),
    ...socketFindings(),
  ];
  const rate = links.kv?.savesPerS ?? null;
  const outlooks = (seen.sidecar?.engines ?? []).map((one) => {
    const { id, kind, model, forecast } = one;
    return {
      engine: id,
      kind,
      model,
      prompts: outlook(forecast, links),
      allows: allowanceOf(one, rate),
    };
  });
  const helps = outlooks.some(({ prompts }) => prompts.some(({ gain }) => (gain ?? 0) > 1));
  const told = outlooks.filter(({ kind }) => kind !== UNTOLD);
  const next = nextStep({
    findings: found,
    isEngineHost: config.cluster.role === "inference",
    hasSidecar: seen.sidecar !== null,
    engines: told.map(({ prompts }) => prompts),
    isUntold: outlooks.length > 0 && told.length === 0,
  });
  const lines = [
    ...describeFindings(found),
    ...vaults.flatMap(({ rails, ...bench }) =>
      bench.error === null ? [describeVault(bench), ...rails.map(describeRail)] : [],
    ),
    ...slowOnes(vaults, seen),
    ...outlooks.flatMap(({ engine, kind, model, prompts, allows }) => [
      ...describe(`${model} (${engine})`, prompts, kind),
      ...(allows === null ? [] : describeAllowance(allows)).map((line) => `  ${line}`),
    ]),
    `Next: ${next}.`,
  ];
  call.print({ helps, next, findings: found, vaults, engines: outlooks }, lines);
  return helps && !found.some(isProblem);
}

async function doctorFar(call: Call, url: string, model: string | undefined): Promise<boolean> {
  const { measureEngine } = await import("../doctor/far-engine.ts");
  const { describeFar, farChange, farOutlook, helpsFar } = await import("../doctor/far-advice.ts");
  const isInt8 = chooseCodecs(call.loadConfig()).isLossy;
  const shape = model === undefined ? null : shapeAt(model, { valueBytes: null, isInt8 });
  const progress = new Progress(call.io);
  const engine = await progress.during(() => measureEngine(url, progress));
  const prompts = farOutlook(engine, shape && ((tokens) => restoredBytes(shape, tokens)));
  const helps = helpsFar(prompts);
  const change = farChange(engine, prompts);
  call.print({ helps, change, engine, prompts }, describeFar(engine, prompts));
  return helps;
}

async function doctorShared(call: Call<DoctorFlags>, path: string): Promise<boolean> {
  const { answerShared, checkRegion, describeShared, faultsOf, measureShared } =
    await import("../doctor/shared-doctor.ts");
  checkRegion(path);
  if (call.options.shmPeer === true) {
    await answerShared(path);
    call.print({ answered: true }, ["the other process has measured; its output has the figures"]);
    return true;
  }
  new SpokenProgress(call.io).step(
    `measuring ${path} with a second process, for about ${showMs(SHARED_MEASURE_MS)}`,
  );
  const { report, place } = await measureShared(path);
  const faults = faultsOf(report, place, call.loadConfig().cluster);
  call.print({ ...place, ...report, faults }, describeShared(report, place, faults));
  return faults.length === 0;
}

const BEYOND =
  "  * the engine has computed no prompt of that length since it started: times calculated from shorter prompts";
const UNLOADED =
  "  restored: without the engine's copying, because it has restored fewer than two prompts since it started";
const SEEN = "  restored: calculated from this engine's restores so far, and computing the rest";
const ASIDE =
  "  both: from a request's arrival at the engine's server to its first token, as measured for restored requests";
const NO_ASIDE =
  "  both: without the time that a request takes between the engine's server and its steps";
const LEFT_OUT =
  "  restored: at least this long, calculated from the links as measured now; after a few restores by an idle engine, calculated from those restores";

/** Measures each vault that answers, one at a time, because they may share a link. Findings report the others. */
async function measure(
  { io }: Call,
  { config, targets }: Seen,
  progress: Progress,
): Promise<{ vaults: (VaultBench & { rails: RailBench[] })[]; links: LinkPaces }> {
  const { benchVault } = await import("../bench/bench-vault.ts");
  const { benchRails } = await import("../doctor/rails.ts");
  const vaults: (VaultBench & { rails: RailBench[] })[] = [];
  const links: LinkPaces = {};
  const options = { bytes: DOCTOR_BYTES, rounds: DOCTOR_ROUNDS, tokens: 1, tokenBytes: 1 };
  const up = new Set(targets.filter(({ reachable }) => reachable).map(({ address }) => address));
  const { knownTargets } = await import("../../cluster/sources.ts");
  const { listed } = await import("../shell/looking.ts");
  const { targets: known } = await listed(io, () => knownTargets(config));
  const measured = known.filter(({ address }) => up.has(address));
  for (const [at, target] of measured.entries()) {
    const onRound = (done: number): void => {
      const all = DOCTOR_ROUNDS * measured.length;
      progress.at(at * DOCTOR_ROUNDS + done, all, `measuring ${target.address}`);
    };
    onRound(0);
    const bench = await progress.during(() => benchVault(target, config, { ...options, onRound }));
    vaults.push({ ...bench, rails: bench.error === null ? await benchRails(target, config) : [] });
    const pace = paceOf(bench);
    if (pace === null) continue;
    for (const recordClass of target.classes) {
      links[recordClass] = together(links[recordClass], pace);
    }
  }
  return { vaults, links };
}

/** Returns a vault's pace; null: no record was restored. */
function paceOf({ restore, save, lookupMs, callMs }: VaultBench): LinkPace | null {
  if (restore === null) return null;
  const questionMs = lookupMs?.median ?? callMs?.median ?? 0;
  return {
    bytesPerS: restore.wire.median,
    savesPerS: save === null ? null : save.pages.median,
    questionMs,
  };
}

/** Returns a remedy for each vault far slower than its share, because restores wait for it. */
export function slowOnes(
  vaults: readonly Pick<VaultBench, "target" | "address" | "restore">[],
  { sidecar }: Pick<Seen, "sidecar">,
): string[] {
  const known = Object.values(sidecar?.vaults ?? {}).flat();
  const rateOf = (vault: (typeof vaults)[number]): number => vault.restore?.wire.median ?? 0;
  // Only vaults have weights.
  const weighed = vaults.filter(({ address }) => isVaultAddress(address));
  return weighed.flatMap((vault) => {
    const { target, address } = vault;
    const fastest = Math.max(...weighed.filter((one) => one.target === target).map(rateOf));
    const share = rateOf(vault) / fastest;
    const weight = known.find((one) => one.address === address)?.seen?.weight ?? 1;
    if (!(share > 0) || share > SLOW_VAULT_SHARE * weight) return [];
    const better = Math.max(VAULT_WEIGHT_LEAST, Number(share.toPrecision(1)));
    return [
      `${address} brings ${showShare(share)} of what the fastest of its pool does, and restores wait for it: tierkv vaults weight ${address} ${better}`,
    ];
  });
}

/** Adds a vault's pace: rates sum up, because all vaults of a class work at once; the slowest look-up counts. */
function together(others: LinkPace | undefined, pace: LinkPace): LinkPace {
  if (others === undefined) return pace;
  const { bytesPerS, savesPerS, questionMs } = others;
  return {
    bytesPerS: bytesPerS + pace.bytesPerS,
    savesPerS: savesPerS === null ? pace.savesPerS : savesPerS + (pace.savesPerS ?? 0),
    questionMs: Math.max(questionMs, pace.questionMs),
  };
}

/** Returns the forecast prompts; none unless every class that any of them needs was measured. */
export function outlook(forecast: readonly Forecast[], links: LinkPaces): Outlook[] {
  const isNeeded = (name: RecordClass): boolean =>
    forecast.some(({ wireBytes }) => wireBytes[name] > 0);
  if (RECORD_CLASSES.some((name) => isNeeded(name) && links[name] === undefined)) return [];
  return forecast.map((one) => {
    const { tokens, isBeyond, restMs, loadMs, seenMs, asideMs, wireBytes } = one;
    let fetchMs = 0;
    for (const recordClass of RECORD_CLASSES) {
      const bytes = wireBytes[recordClass];
      const link = links[recordClass];
      if (bytes === 0 || link === undefined) continue;
      fetchMs = Math.max(fetchMs, link.questionMs + (bytes / link.bytesPerS) * 1000);
    }
    const beside = (ms: number): number => Math.max(0, ms + (asideMs ?? 0));
    const restoreMs = beside((seenMs ?? fetchMs + (loadMs ?? 0)) + (restMs ?? 0));
    const computeMs = one.computeMs === null ? null : beside(one.computeMs);
    const gain = computeMs === null ? null : computeMs / restoreMs;
    const known = {
      isSeen: seenMs !== null,
      hasAside: asideMs !== null,
      hasLoaded: loadMs !== null,
    };
    return { tokens, isBeyond, ...known, computeMs, restoreMs, gain };
  });
}

function describeVault({ target, address, restore, lookupMs }: VaultBench): string {
  const rate = orNone(restore, ({ wire }) => showRate(wire.median));
  const asked = orNone(lookupMs, ({ median }) => showMs(median));
  return `${target} at ${address}: measured now: records come at ${rate}, checked and decoded; a look-up takes ${asked}`;
}

/** The kind of engines that report no times of computing. */
const UNTOLD: EngineKind = "sglang";

/** Describes one engine's prompts as a table, with a verdict. */
export function describe(
  name: string,
  prompts: readonly Outlook[],
  kind: EngineKind = "vllm",
): string[] {
  if (prompts.length === 0) return [`${name}: its vaults could not be measured.`];
  if (prompts.some(({ gain }) => gain === null)) {
    return kind === UNTOLD
      ? [`${name}: nothing can be forecast, as SGLang reports no times of computing.`]
      : [
          `${name}: this sidecar has not seen it compute a prompt yet; let it answer a few, and ask again.`,
        ];
  }
  const rows = prompts.map(({ tokens, isBeyond, computeMs, restoreMs, gain }) => [
    isBeyond ? `${tokens} *` : String(tokens),
    showMs(computeMs ?? 0),
    showMs(restoreMs),
    (gain ?? 0) > 1 ? `${(gain ?? 0).toFixed(1)} times sooner` : "computed: that is sooner",
  ]);
  const head = ["tokens", "computed", "restored", "first token"];
  const first = prompts.find(({ gain }) => (gain ?? 0) > 1);
  const verdict =
    first === undefined
      ? "tierKV will not help here: computing is faster at every length. A faster link or a slower engine would change that."
      : first === prompts[0]
        ? `tierKV helps with prompts that repeat, from the shortest here (${first.tokens} tokens) on.`
        : `tierKV helps with prompts that repeat, from about ${first.tokens} tokens on.`;
  const beyond = prompts.some(({ isBeyond }) => isBeyond) ? [BEYOND] : [];
  const unloaded = prompts.some(({ hasLoaded }) => !hasLoaded) ? [UNLOADED] : [];
  const basis = prompts.every(({ isSeen }) => isSeen) ? SEEN : LEFT_OUT;
  const around = prompts.every(({ hasAside }) => hasAside) ? ASIDE : NO_ASIDE;
  return [
    `${name}:`,
    ...table([head, ...rows], "  "),
    ...beyond,
    ...unloaded,
    basis,
    around,
    `  ${verdict}`,
  ];
}
