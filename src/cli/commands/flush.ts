// Owns `tierkv flush`: drops every record of the vaults, after asking.
import { Option } from "commander";
import type { VaultClient } from "../../client/vault-client.ts";
import { TierkvError, toTierkvError } from "../../errors.ts";
import { FLUSH_TIMEOUT_MS } from "../../limits.ts";
import { createLogger } from "../../log.ts";
import type { Call, Registrar } from "../call.ts";
import { VAULT_ROLES, vaultTargets } from "../targets.ts";
import type { VaultRole, VaultTarget } from "../targets.ts";
import { showBytes } from "../text.ts";

interface FlushOptions {
  target?: VaultRole;
  yes?: true;
}

export function addFlush({ program, action }: Registrar): void {
  program
    .command("flush")
    .summary("drop every record of the vaults")
    .description(
      "Drops every record of the configured vaults, or of one. Engines then compute again what they need.",
    )
    .addOption(new Option("--target <role>", "only this vault").choices(VAULT_ROLES))
    .option("--yes", "do not ask")
    .addHelpText("after", "\nExample:\n  tierkv flush --target kv_cold --yes")
    .action(action(flush));
}

async function flush(call: Call<FlushOptions>): Promise<number> {
  const config = call.loadConfig();
  const targets = chosen(vaultTargets(config), call.options.target);
  if (call.options.yes !== true && !(await confirmed(call, targets))) {
    call.print({ flushed: [] }, ["nothing was dropped"]);
    return 1;
  }
  const { VaultClient } = await import("../../client/vault-client.ts");
  const logger = createLogger("flush", {
    level: config.log.level === "debug" ? "debug" : "silent",
  });
  const results = await Promise.all(
    targets.map((target) => {
      const client = new VaultClient({
        address: target.address,
        name: target.classes[0],
        logger,
        lanes: 0,
      });
      return flushOne(client, target);
    }),
  );
  call.print({ flushed: results }, results.map(describe));
  return results.some(({ error }) => error !== null) ? 1 : 0;
}

function chosen(targets: readonly VaultTarget[], only: VaultRole | undefined): VaultTarget[] {
  const left = targets.filter(({ role }) => only === undefined || role === only);
  if (left.length > 0) return left;
  const key = only ?? VAULT_ROLES.join(" or ");
  throw new TierkvError("USAGE", {
    reason: `no vault to flush: write [cluster] ${key} = "host:port"`,
  });
}

async function confirmed(
  { io }: Call<FlushOptions>,
  targets: readonly VaultTarget[],
): Promise<boolean> {
  if (!io.isInteractive) {
    throw new TierkvError("USAGE", {
      reason: "flush asks before it drops records, and there is no terminal: add --yes",
    });
  }
  const list = targets.map(({ name, address }) => `${name} at ${address}`).join(" and ");
  const answer = await io.ask(`Drop every record of ${list}? [y/N]`);
  return /^y(es)?$/i.test(answer);
}

interface Flushed {
  target: string;
  address: string;
  records: number;
  bytes: number;
  error: string | null;
}

async function flushOne(client: VaultClient, { name, address }: VaultTarget): Promise<Flushed> {
  try {
    const { records, bytes } = await client.flush(null, FLUSH_TIMEOUT_MS);
    return { target: name, address, records, bytes, error: null };
  } catch (error) {
    return { target: name, address, records: 0, bytes: 0, error: toTierkvError(error).message };
  } finally {
    client.close();
  }
}

function describe({ target, address, records, bytes, error }: Flushed): string {
  if (error !== null) return `nothing dropped: ${error}`;
  return `${target} at ${address}: ${records} records dropped, ${showBytes(bytes)} freed`;
}
