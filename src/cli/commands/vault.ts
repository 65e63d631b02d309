// Owns `tierkv vault`: reads its options and the configuration, serves until a signal, and shows how to join.
import { Option } from "commander";
import { splitAddress } from "../../base/hosts.ts";
import { INVITATION_S_DEFAULT } from "../../base/limits/access.ts";
import type { Logger } from "../../base/log.ts";
import { VAULT_ROLES } from "../../cluster/targets.ts";
import type { Access } from "../../cluster/vault-access.ts";
import type { Config } from "../../config/config.ts";
import type { Override } from "../../config/override.ts";
import type { Call } from "../shell/call.ts";
import type { Command } from "../shell/command.ts";

interface VaultOptions {
  listen?: string;
  role?: string;
  maxBytes?: string;
  insecureLan?: true;
  untilStdinEnds?: true;
}

export function addVault(program: Command): void {
  program
    .command("vault")
    .summary("serve a vault on this machine")
    .description(
      "Serves a vault: memory with encoded blocks for engines on the LAN. [cluster] role sets its class: kv_cold\n" +
        "(attention KV), ssm_cold (recurrent state) or cold (both). On an address that other machines reach, it requires\n" +
        "TLS and a token, and makes both at its first start. It then shows the `tierkv join` line for the engine's\n" +
        "machine, on a terminal or else in a file of mode 0600. SIGTERM drains the vault; a second SIGTERM ends it at\n" +
        "once.",
    )
    .option(
      "--listen <address>",
      "address to serve, host:port or unix:/path (default: [vault] listen)",
    )
    .addOption(
      new Option("--role <role>", "record class of the vault (default: [cluster] role)").choices(
        VAULT_ROLES,
      ),
    )
    .option(
      "--max-bytes <size>",
      "memory for records: 24GB, 24GiB or bytes (default: [vault] max_bytes)",
    )
    .option(
      "--insecure-lan",
      "serve every machine without TLS and token; overrides [vault] insecure_lan",
    )
    .option(
      "--until-stdin-ends",
      "drain also at the end of standard input, so that a parent process can stop it",
    )
    .example("tierkv vault --config /etc/tierkv/tierkv.toml")
    .does(serve);
}

async function serve(call: Call<VaultOptions>): Promise<number> {
  const config = call.loadConfig(overrides(call.options));
  const { serveVault } = await import("../../vault/process/serve.ts");
  return serveVault({
    config,
    createLogger: () => call.createLogger("vault", config),
    stop: call.options.untilStdinEnds === true ? whenStdinEnds() : undefined,
    async onReady(ready, access) {
      if (call.isJson) call.print({ event: "ready", ...ready }, []);
      await tellHowToJoin(call, config, access, ready.address);
    },
  });
}

async function tellHowToJoin(
  call: Call,
  { vault }: Config,
  { isNew, security, logger }: Access & { logger: Logger },
  address: string,
): Promise<void> {
  if (isNew) {
    const { announce } = await import("../join/invitation.ts");
    const secret = security?.members?.invite("write", INVITATION_S_DEFAULT, 1) ?? "";
    announce(call, vault, { host: vault.listen.host, port: splitAddress(address).port }, secret);
  } else if (security !== null && !vault.insecureLan && vault.tlsCert === null) {
    logger.info({}, "`tierkv invite` prints the line that lets another machine in");
  }
}

function overrides({ listen, role, maxBytes, insecureLan }: VaultOptions): Override[] {
  const section = "vault";
  const isOpen = insecureLan === true ? "true" : undefined;
  return [
    { option: "--role", section: "cluster", name: "role", text: role },
    { option: "--listen", section, name: "listen", text: listen },
    { option: "--max-bytes", section, name: "max_bytes", text: maxBytes },
    { option: "--insecure-lan", section, name: "insecure_lan", text: isOpen },
    { option: "--insecure-lan", section, name: "metrics_lan", text: isOpen },
  ];
}

/** Fires when standard input ends, because the process that held it has ended. */
function whenStdinEnds(): AbortSignal {
  const controller = new AbortController();
  const onEnd = (): void => controller.abort("standard input ended");
  process.stdin.once("end", onEnd).once("error", onEnd).resume();
  return controller.signal;
}
