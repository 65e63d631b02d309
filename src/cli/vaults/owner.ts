// Owns an owner's calls to the vault of the same machine: its configuration and its best token.
import { TierkvError, toTierkvError } from "../../base/errors.ts";
import { STATUS_TIMEOUT_MS } from "../../base/limits/general.ts";
import { askOnce } from "../../client/vault/ask.ts";
import { ownVault } from "../../cluster/credentials.ts";
import { reachable } from "../../cluster/targets.ts";
import type { Config } from "../../config/config.ts";
import { diagnosed } from "../../diagnosis/reach.ts";
import { vaultService } from "../../wire/service.ts";
import { checkJoinable } from "../join/invitation.ts";
import type { Call } from "../shell/call.ts";
import { whileWaiting } from "../shell/progress.ts";

/** Loads the configuration of this machine's vault. Throws USAGE for a vault that machines cannot join. */
export function loadOwn(call: Call<{ listen?: string }>): Config {
  const { listen: text } = call.options;
  const config = call.loadConfig([{ option: "--listen", section: "vault", name: "listen", text }]);
  checkJoinable(config.vault);
  return config;
}

type Method<Request, Reply> = Parameters<typeof askOnce<Request, Reply>>[1];

/** Makes one call with the vault's best token. Throws CREDENTIALS. */
export async function askOwn<Request, Reply>(
  { io }: Pick<Call, "io">,
  config: Config,
  method: (service: typeof vaultService) => Method<Request, Reply>,
  request: Request,
): Promise<Reply> {
  const address = reachable(config.vault.listen).text;
  const security = ownVault(config, address);
  const asked = { name: "this machine's", address, security, timeoutMs: STATUS_TIMEOUT_MS };
  try {
    return await whileWaiting(
      io,
      () => address,
      () => askOnce(asked, method(vaultService), request),
    );
  } catch (error) {
    const { code, details } = toTierkvError(error);
    if (code !== "VAULT_DOWN") throw await diagnosed(error, asked, security !== null);
    const reason = `${String(details["reason"])}; start it on this machine (\`tierkv vault\`), or correct [vault] listen`;
    throw new TierkvError("VAULT_DOWN", { name: asked.name, address, reason }, { cause: error });
  }
}
