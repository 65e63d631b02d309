// Owns how the owner of a vault reaches it, on its own machine: which it is, and with what.
import type { Asked } from "../client/ask.ts";
import type { Config } from "../config/config.ts";
import { STATUS_TIMEOUT_MS } from "../limits/general.ts";
import { createLogger } from "../log.ts";
import type { Call } from "./call.ts";
import { ownVault } from "./credentials.ts";
import { checkJoinable } from "./invitation.ts";
import { reachable } from "./targets.ts";

/** The configuration of this machine's vault. Throws USAGE where nobody joins it. */
export function loadOwn(call: Call<{ listen?: string }>): Config {
  const { listen } = call.options;
  const given = { option: "--listen", section: "vault", name: "listen" };
  const config = call.loadConfig(listen === undefined ? [] : [{ ...given, text: listen }]);
  checkJoinable(config.vault);
  return config;
}

/** With the best token that its owner can read. Throws CREDENTIALS. */
export function ownerOf(config: Config): Asked {
  const address = reachable(config.vault.listen).text;
  const logger = createLogger("owner", { level: "silent" });
  const security = ownVault(config, address, logger);
  return { name: "this machine's", address, security, timeoutMs: STATUS_TIMEOUT_MS };
}
