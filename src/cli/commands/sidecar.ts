// Owns `tierkv sidecar`: reads its options and the configuration, and serves until a signal.
import { FAILPOINTS_VARIABLE } from "../../base/failpoint.ts";
import type { Call } from "../shell/call.ts";
import type { Command } from "../shell/command.ts";

interface ServeOptions {
  socket?: string;
  insecureLan?: true;
  exitWhenIdle?: true;
}

export function addSidecar(program: Command): void {
  program
    .command("sidecar")
    .summary("serve the engines of this machine")
    .description(
      "Serves all engines of this machine: stores the blocks that they save, restores the blocks that they need, and\n" +
        "buffers both in shared memory. If no vault is configured, starts a vault on this machine. SIGTERM drains the\n" +
        "sidecar; a second SIGTERM ends it at once.",
    )
    .option("--socket <path>", "path of the local socket (default: [sidecar] socket)")
    .option(
      "--insecure-lan",
      "let every machine scrape the metrics; overrides [sidecar] metrics_lan",
    )
    .option("--exit-when-idle", "exit after [sidecar] idle_exit_s without an engine")
    .example("tierkv sidecar --config /etc/tierkv/tierkv.toml")
    .does(serve);
}

async function serve(call: Call<ServeOptions>): Promise<number> {
  const { socket, insecureLan, exitWhenIdle } = call.options;
  const section = "sidecar";
  const insecure = { option: "--insecure-lan", section, name: "metrics_lan" };
  const config = call.loadConfig([
    { option: "--socket", section, name: "socket", text: socket },
    { ...insecure, text: insecureLan === true ? "true" : undefined },
  ]);
  const { serveSidecar } = await import("../../sidecar/process/serve.ts");
  return serveSidecar({
    config,
    createLogger: () => call.createLogger("sidecar", config),
    failpoints: call.io.env[FAILPOINTS_VARIABLE],
    exitWhenIdle: exitWhenIdle === true,
    onReady: (at) => {
      if (call.isJson) call.print({ event: "ready", socket: at }, []);
    },
  });
}
