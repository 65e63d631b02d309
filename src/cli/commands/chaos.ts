// Owns `tierkv chaos`: injects harmless faults into the configured vaults, and prints the contract row by row.
import { Option } from "commander";
import { toTierkvError } from "../../base/errors.ts";
import { isVaultAddress } from "../../base/hosts.ts";
import { silent } from "../../base/log.ts";
import { table } from "../../base/text.ts";
import { VAULT_ROLES } from "../../cluster/targets.ts";
import type { VaultRole, VaultTarget } from "../../cluster/targets.ts";
import type { ChaosRow } from "../chaos-vault.ts";
import type { Call } from "../shell/call.ts";
import type { Command } from "../shell/command.ts";
import { Progress } from "../shell/progress.ts";

interface ChaosFlags {
  target?: VaultRole;
}

interface ChaosResult {
  target: string;
  address: string;
  error: string | null;
  rows: ChaosRow[];
}

export function addChaos(program: Command): void {
  program
    .command("chaos")
    .summary("inject harmless faults into the vaults and show their reactions")
    .description(
      "Sends each configured vault damaged, cut and misplaced records, interrupted clients and silent connections. Uses\n" +
        "1 MiB of its own records in its own namespace, and deletes them at the end. Prints each fault with the expected\n" +
        "and the observed result. Kills no process, fills no disk, and leaves the records of engines alone. Exit code 1\n" +
        "if a result differs from the expected one.",
    )
    .addOption(new Option("--target <role>", "vault to test; without it, all").choices(VAULT_ROLES))
    .example("tierkv chaos --json")
    .does(chaos);
}

async function chaos(call: Call<ChaosFlags>): Promise<boolean> {
  const config = call.loadConfig();
  const { target: only } = call.options;
  const { chosenTargets } = await import("../../cluster/sources.ts");
  // Shared memory has no network and no process to test; a store that others run is theirs to test.
  const isRemote = ({ address }: VaultTarget): boolean => isVaultAddress(address);
  const targets = await chosenTargets(config, only, "try", isRemote);
  const { chaosVault } = await import("../chaos-vault.ts");
  const { inspect, troubleOf } = await import("../../diagnosis/inspect.ts");
  const seen = await inspect(config);
  const { securityFor } = await import("../../cluster/credentials.ts");
  const results: ChaosResult[] = [];
  const progress = new Progress(call.io);
  for (const [at, target] of targets.entries()) {
    const { name, address, classes } = target;
    const error = troubleOf(seen, address);
    const result: ChaosResult = { target: name, address, error, rows: [] };
    results.push(result);
    if (error !== null) continue;
    try {
      const security = securityFor(config, target, silent);
      const onStep = (done: number, steps: number): void =>
        progress.at(at * steps + done, targets.length * steps, `trying ${address}`);
      result.rows = await chaosVault({
        address,
        name: classes[0],
        logger: silent,
        security,
        onStep,
      });
    } catch (thrown) {
      result.error = toTierkvError(thrown).message;
    }
  }
  const isWhole = ({ error, rows }: ChaosResult): boolean =>
    error === null && rows.every(({ ok }) => ok);
  const ok = results.every(isWhole);
  call.print({ ok, targets: results }, results.flatMap(describe));
  return ok;
}

const HEAD = ["", "fault", "done", "expected", "seen"];

function describe({ target, address, error, rows }: ChaosResult): string[] {
  if (error !== null) return [`${target} ${address}: ${error}`];
  const cells = rows.map(({ fault, did, expected, seen, ok }) => [
    ok ? "ok" : "BROKEN",
    fault,
    did,
    expected,
    seen,
  ]);
  return [`${target} ${address}`, ...table([HEAD, ...cells])];
}
