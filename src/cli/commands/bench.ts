// Owns `tierkv bench`: measures the links to the vaults, and predicts the cost of restoring a prompt.
import { Option } from "commander";
import { TierkvError } from "../../base/errors.ts";
import { storeKind } from "../../base/hosts.ts";
import {
  BENCH_BYTES_DEFAULT,
  BENCH_BYTES_MAX,
  BENCH_ROUNDS_DEFAULT,
  BENCH_ROUNDS_MAX,
  BENCH_TOKEN_BYTES_DEFAULT,
  BENCH_TOKENS_DEFAULT,
} from "../../base/limits/general.ts";
import { showBytes, showMs, showRate, table } from "../../base/text.ts";
import { VAULT_ROLES } from "../../cluster/targets.ts";
import type { VaultRole } from "../../cluster/targets.ts";
import type { RecordRate, Spread, VaultBench } from "../bench/bench-vault.ts";
import { placed } from "../bench/failed.ts";
import type { Call } from "../shell/call.ts";
import type { Command } from "../shell/command.ts";
import { Progress } from "../shell/progress.ts";

interface BenchFlags {
  target?: VaultRole;
  bytes: number;
  rounds: number;
  tokens: number;
  tokenBytes: number;
}

export function addBench(program: Command): void {
  const { MAX_SAFE_INTEGER: any } = Number;
  program
    .command("bench")
    .summary("measure the links to the vaults and predict the time to restore a prompt")
    .description(
      "Measures each configured vault from the engine's machine: plain bytes over the lanes, look-ups, and records\n" +
        "saved and restored. Records are encoded, sent, checked and decoded as in a sidecar. The command deletes its\n" +
        "records at the end; a full vault evicts others for them. In Valkey they expire within ten minutes, in a bucket\n" +
        "by its lifecycle rule. Other load on the link or the machines affects the figures.",
    )
    .addOption(
      new Option("--target <role>", "vault to measure; without it, all").choices(VAULT_ROLES),
    )
    .addOption(
      whole(
        "--bytes <n>",
        "most bytes of KV pages to move in one round",
        1,
        BENCH_BYTES_MAX,
      ).default(BENCH_BYTES_DEFAULT),
    )
    .addOption(
      whole("--rounds <n>", "number of rounds; results are medians", 1, BENCH_ROUNDS_MAX).default(
        BENCH_ROUNDS_DEFAULT,
      ),
    )
    .addOption(
      whole("--tokens <n>", "length of the predicted prompt in tokens", 1, any).default(
        BENCH_TOKENS_DEFAULT,
      ),
    )
    .addOption(
      whole(
        "--token-bytes <n>",
        "KV bytes per token: layers * KV heads * head dim * 2 * bytes per number",
        1,
        any,
      ).default(BENCH_TOKEN_BYTES_DEFAULT),
    )
    .example("tierkv bench --tokens 100000 --json")
    .does(bench);
}

function whole(flags: string, text: string, least: number, most: number): Option {
  return new Option(flags, text).argParser((value) => {
    const number = Number(value);
    if (Number.isInteger(number) && number >= least && number <= most) return number;
    const name = flags.split(" ")[0] ?? flags;
    const reason = `${name} ${value.slice(0, 40)}: expected a whole number from ${least} to ${most}`;
    throw new TierkvError("USAGE", { reason });
  });
}

async function bench(call: Call<BenchFlags>): Promise<boolean> {
  const config = call.loadConfig();
  const { target: only, ...options } = call.options;
  const { chosenTargets } = await import("../../cluster/sources.ts");
  const { listed, look } = await import("../shell/looking.ts");
  const targets = await listed(call.io, () => chosenTargets(config, only, "measure"));
  const { benchVault, unmeasured } = await import("../bench/bench-vault.ts");
  const { troubleOf } = await import("../../diagnosis/inspect.ts");
  const seen = await look(config, call.io);
  const results: VaultBench[] = [];
  const progress = new Progress(call.io);
  // One vault at a time, because vaults may share a link.
  for (const [at, target] of targets.entries()) {
    const trouble = troubleOf(seen, target.address);
    const onRound = (done: number): void => {
      const all = options.rounds * targets.length;
      progress.at(at * options.rounds + done, all, `measuring ${target.address}`);
    };
    onRound(0);
    results.push(
      trouble === null
        ? await progress.during(() => benchVault(target, config, { ...options, onRound }))
        : unmeasured(target, trouble),
    );
  }
  const isOk = results.every(({ error }) => error === null);
  call.print({ ok: isOk, config: config.path, targets: results }, results.flatMap(describe));
  return isOk;
}

function describe(result: VaultBench): string[] {
  const { target, address, error, rounds, setBytes } = result;
  const head = `${target} at ${address}`;
  if (error !== null) return [placed(result, error)];
  const size = `${showBytes(setBytes ?? 0)} of pages`;
  const moved =
    rounds === 1
      ? `one round of ${size}`
      : `medians of ${rounds} rounds of ${size}, with their range`;
  return [`${head}: ${wayOf(result)}; ${moved}`, ...table(rows(result), "  "), ...cost(result)];
}

function wayOf({ address, tier, lanes }: VaultBench): string {
  const kind = storeKind(address);
  if (kind !== null) return kind === "s3" ? "S3" : "Valkey";
  return tier === "shared" ? "shared memory" : `${lanes} lanes`;
}

function rows({
  callMs,
  lookupMs,
  lookupKeys,
  plain,
  restore,
  save,
  codec,
}: VaultBench): string[][] {
  const lines: string[][] = [];
  const add = (
    name: string,
    spread: Spread | undefined | null,
    show: (value: number) => string,
    more = "",
  ): void => {
    if (spread === undefined || spread === null) return;
    lines.push([name, show(spread.median), `${show(spread.min)} - ${show(spread.max)}`, more]);
  };
  add("empty call", callMs, showMs);
  add(`look-up of ${lookupKeys} keys`, lookupMs, showMs);
  add("plain bytes from the vault", plain?.from, showRate);
  add("plain bytes to the vault", plain?.to, showRate);
  add(`restore, ${codec} records, checked and decoded`, restore?.wire, showRate, besides(restore));
  add(`save, encoded as ${codec}, accepted`, save?.wire, showRate, besides(save));
  return lines;
}

function besides(rate: RecordRate | null): string {
  if (rate === null) return "";
  const pages = `${showRate(rate.pages.median)} of pages`;
  return rate.ofPlain === null
    ? pages
    : `${rate.ofPlain.median.toFixed(2)} of plain bytes, ${pages}`;
}

function cost({ prompt }: VaultBench): string[] {
  if (prompt === null) return [];
  const { tokens, tokenBytes, wireBytes, ms } = prompt;
  const size = `${showBytes(tokens * tokenBytes)} of KV, ${showBytes(wireBytes)} on the wire`;
  return [
    `  a prompt of ${tokens} tokens of ${tokenBytes} bytes (${size}) is restored in about ${showMs(ms)}, if the vault holds all of it`,
  ];
}
