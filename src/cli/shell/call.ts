// Owns the context of a command: its options and the common ones, the configuration, and a logger.
import { TierkvError } from "../../base/errors.ts";
import { createLogger } from "../../base/log.ts";
import type { Logger } from "../../base/log.ts";
import type { Config } from "../../config/config.ts";
import { loadConfig, loadOrDefaults } from "../../config/load.ts";
import { override } from "../../config/override.ts";
import type { Override } from "../../config/override.ts";
import type { Io } from "./io.ts";

/** Options that every command takes, before or after its name. */
export interface CommonOptions {
  config?: string;
  json?: boolean;
}

/** Version of the results of --json; rises when a field changes its meaning or goes. docs/json.md lists the fields. */
export const JSON_SCHEMA = 1;

export class Call<Options extends object = object> {
  readonly options: CommonOptions & Options;
  readonly io: Io;
  /** Positional arguments. */
  readonly args: readonly string[];

  constructor(options: CommonOptions & Options, io: Io, args: readonly string[] = []) {
    this.options = options;
    this.io = io;
    this.args = args;
  }

  get isJson(): boolean {
    return this.options.json === true;
  }

  /** The path given by --config, or null. */
  get configPath(): string | null {
    return this.options.config ?? null;
  }

  /** Loads the configuration with the command line's overrides; throws its first mistake. */
  loadConfig(overrides: readonly Override[] = []): Config {
    return override(loadConfig(this.configPath, this.io.env), overrides);
  }

  /** The same; where the file is not there, the defaults with its path, for a command that makes it. */
  loadOrNewConfig(): Config {
    return loadOrDefaults(this.configPath, this.io.env);
  }

  /** Path of this machine's sidecar, for a command that asks it; throws USAGE on a vault's machine, where none runs. */
  sidecarSocket(): string {
    const { cluster, path, sidecar } = this.loadConfig();
    if (cluster.role === "inference") return sidecar.socket;
    const reason = `this is a vault's machine ([cluster] role = "${cluster.role}" in ${path ?? "no file"}): run it on an engine's machine`;
    throw new TierkvError("USAGE", { reason });
  }

  /** Creates the logger of a long-running process, and logs where its configuration comes from. */
  createLogger(name: string, config: Config): Logger {
    const logger = createLogger(name, { level: config.log.level });
    if (config.path === null) {
      logger.info("no tierkv.toml here, in ~/.config/tierkv or in /etc/tierkv: the defaults hold");
    } else {
      logger.info({ config: config.path }, "configuration read");
    }
    this.io.logName = name;
    return logger;
  }

  /** Asks before an irreversible step; throws USAGE without a terminal. `asks`: begins that error's text. */
  async confirms(asks: string, question: string, about: readonly string[] = []): Promise<boolean> {
    const { io } = this;
    if (!io.isInteractive) {
      throw new TierkvError("USAGE", { reason: `${asks}, and there is no terminal: add --yes` });
    }
    for (const line of about) io.err(line);
    return /^y(es)?$/i.test(await io.ask(`${question} [y/N]`));
  }

  /** Prints a result: one line of JSON with --json, else `lines`. */
  print(result: object, lines: readonly string[]): void {
    if (this.isJson) this.io.out(JSON.stringify({ schema: JSON_SCHEMA, ...result }));
    else for (const line of lines) this.io.out(line);
  }
}

/** An exit code, or whether all is well: undefined and true exit with 0, false with 1. */
export type Outcome = number | boolean | void;

/** The body of a command. */
export type Run<Options extends object> = (call: Call<Options>) => Outcome | Promise<Outcome>;

/** Runs the body of a parsed command; a test may replace it. */
export type Perform = <Options extends object>(
  run: Run<Options>,
  call: Call<Options>,
) => Outcome | Promise<Outcome>;
