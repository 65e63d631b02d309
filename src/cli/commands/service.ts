// Owns `tierkv service`: installs, removes and lists services for a vault or a sidecar.
import { existsSync, rmSync, writeFileSync } from "node:fs";
import { dirname } from "node:path";
import { Argument, Option } from "commander";
import { makeDirectory } from "../../base/directory.ts";
import { TierkvError, toTierkvError } from "../../base/errors.ts";
import { table } from "../../base/text.ts";
import { vaultClass } from "../../cluster/targets.ts";
import type { Config } from "../../config/config.ts";
import type { Environment } from "../../config/field.ts";
import { homeOf, SERVICE_STATE, xdgHome } from "../../config/own-places.ts";
import { showValue } from "../../config/show.ts";
import {
  forgetCommands,
  runAll,
  startCommands,
  stateOf,
  stopCommands,
} from "../service/service-manager.ts";
import {
  hiddenOf,
  ownProgram,
  SERVICES,
  servicePath,
  serviceText,
} from "../service/service-units.ts";
import type { Manager, Scope, Service, ServiceName } from "../service/service-units.ts";
import type { Call } from "../shell/call.ts";
import type { Command } from "../shell/command.ts";

interface ServiceFlags {
  system?: true;
  user?: true;
  runAs?: string;
  dryRun?: true;
  start: boolean;
}

export function addService(program: Command): void {
  const service = program
    .command("service")
    .summary("install a vault or a sidecar as a service of this machine")
    .description(
      "Writes and starts a systemd unit, or a launchd property list on a Mac, with as few rights as the process needs.\n" +
        "The service uses the configuration that applies to this command. Without --system and --user, root acts on the\n" +
        "whole machine's service, other users on their own.",
    )
    .example("tierkv service install vault --dry-run");
  scoped(service.command("install"))
    .summary("write the service and start it")
    .option(
      "--run-as <user>",
      "user to run the process as, with --system (default for a vault: a separate user)",
    )
    .option("--no-start", "write the file but do not start the service")
    .example("tierkv service install sidecar --user --dry-run")
    .does(install);
  scoped(service.command("uninstall"))
    .summary("stop the service and remove its file; records and configuration stay")
    .example("tierkv service uninstall vault")
    .does(uninstall);
  service
    .command("status")
    .summary("show the services of this machine and of this user")
    .example("tierkv service status")
    .does(status);
}

function scoped(command: Command): Command {
  return command
    .addArgument(new Argument("<service>", "service to act on").choices(SERVICES))
    .addOption(
      new Option("--system", "act on the whole machine's service; needs root").conflicts("user"),
    )
    .option(
      "--user",
      "act on this user's service; it runs while the user is logged in or lingers (`loginctl enable-linger`)",
    )
    .option("--dry-run", "print the steps without doing them");
}

const MANAGERS: Readonly<Record<string, Manager>> = { linux: "systemd", darwin: "launchd" };

function managerHere(): Manager {
  const manager = MANAGERS[process.platform];
  if (manager !== undefined) return manager;
  const reason = `${process.platform} has neither systemd nor launchd: start \`tierkv vault\` by other means`;
  throw new TierkvError("SYSTEM", { reason });
}

const uid = (): number => process.getuid?.() ?? 0;
const configHome = (env: Environment): string => xdgHome("XDG_CONFIG_HOME", ".config", env);

function scopeOf({ system, user }: ServiceFlags): Scope {
  return system === true || (user !== true && uid() === 0) ? "system" : "user";
}

function install(call: Call<ServiceFlags>): void {
  const { options, io } = call;
  const service = planned(call);
  const path = servicePath(service, configHome(io.env));
  const text = serviceText(service);
  const commands = options.start ? startCommands(service, path, uid()) : [];
  const shown = commands.map((words) => words.join(" "));
  if (options.dryRun === true) {
    const lines = [`# ${path}`, ...text.trimEnd().split("\n"), ...shown];
    return call.print({ path, text, commands: shown }, lines);
  }
  makeDirectory(dirname(path));
  writeFileSync(path, text, { mode: 0o644 });
  start(service.name, path, commands);
  const state = options.start ? `, ${stateOf(service, uid())}` : "";
  call.print({ path, commands: shown }, [`${path}: written${state}`, ...advice(service)]);
}

function start(name: ServiceName, path: string, commands: readonly string[][]): void {
  try {
    runAll(commands);
  } catch (error) {
    const fix = `mend that and run this again, or start \`tierkv ${name}\` by other means`;
    const reason = `${path} is written, but not started: ${toTierkvError(error).message}; ${fix}`;
    throw new TierkvError("SYSTEM", { reason }, { cause: error });
  }
}

export function advice({
  name,
  scope,
  manager,
  runAs,
}: Pick<Service, "name" | "scope" | "manager" | "runAs">): string[] {
  const linger = "it runs while you are logged in; `loginctl enable-linger` lets it go on";
  const user = scope === "user" && process.platform === "linux" ? [linger] : [];
  // Root has a state folder of its own, so the service's is named.
  const isApart = scope === "system" && manager === "systemd" && runAs === null;
  const place = isApart ? `STATE_DIRECTORY=${SERVICE_STATE} ` : "";
  if (name === "vault") return [...user, `\`${place}tierkv status\` says how it is`];
  return scope === "system" ? [SOCKET_OF_ITS_OWN] : user;
}

/** systemd gives a service of the machine no XDG_RUNTIME_DIR; most logins have one. */
const SOCKET_OF_ITS_OWN =
  "an engine that you start in a login looks for the socket in that login's $XDG_RUNTIME_DIR, which this service does not " +
  'have: set [sidecar] socket for both, such as "/run/tierkv/sidecar.sock", or install with --user';

/** Throws where the configuration does not fit the service, or the service could not read its program. */
function planned(call: Call<ServiceFlags>): Service {
  const { options, io } = call;
  const name = call.args[0] as ServiceName;
  const scope = scopeOf(options);
  const manager = managerHere();
  const config = call.loadConfig();
  if (name === "vault") vaultClass(config);
  else if (manager === "launchd") {
    const reason = "a sidecar needs Linux: engines on a Mac share no memory with it";
    throw new TierkvError("USAGE", { reason });
  }
  if (options.runAs !== undefined && scope === "user") {
    throw new TierkvError("USAGE", { reason: "--run-as: goes with --system" });
  }
  const command = ownProgram();
  const home = homeOf(io.env);
  const runAs =
    options.runAs ?? (scope === "system" && name === "sidecar" ? invoker(io.env) : null);
  const service = { name, scope, manager, command, config: config.path, runAs, home };
  if (scope === "system" && runAs === null) {
    checkReach([...command, config.path ?? ""]);
    checkPlaces(config, manager);
  }
  return service;
}

/** Returns the user who called `sudo`, because the engine runs as that user; else root. */
const invoker = (env: Environment): string => env["SUDO_USER"] ?? "root";

/** Throws SYSTEM for paths in home folders or /tmp, because a system vault sees neither. */
export function checkReach(paths: readonly string[]): void {
  const hidden = hiddenOf(paths);
  if (hidden === undefined) return;
  const fix = "install tierKV and keep its configuration below /opt, /usr/local or /etc";
  const reason = `${hidden}: a service of the machine sees neither home folders nor /tmp; ${fix}, or add --user`;
  throw new TierkvError("SYSTEM", { reason });
}

/** Begins an archive's address that is a folder. */
const ON_FILES = "file://";

/** Throws SYSTEM for private files and folders that systemd's own user for the vault could not use. */
export function checkPlaces({ vault }: Pick<Config, "vault">, manager: Manager): void {
  if (manager !== "systemd") return;
  const { poolKey, tlsKey, tokens, dataDir, auditLog, archive } = vault;
  const folder = archive?.startsWith(ON_FILES) === true ? archive : null;
  const named = { pool_key: poolKey, tls_key: tlsKey, tokens, data_dir: dataDir };
  for (const [key, path] of Object.entries({ ...named, audit_log: auditLog, archive: folder })) {
    if (path === null || `${path.replace(ON_FILES, "")}/`.startsWith(`${SERVICE_STATE}/`)) continue;
    const reason = `[vault] ${key} = ${showValue(path)}: the service's own user has only ${SERVICE_STATE}; name the owner with --run-as`;
    throw new TierkvError("SYSTEM", { reason });
  }
}

function uninstall(call: Call<ServiceFlags>): boolean {
  const name = call.args[0] as ServiceName;
  const scope = scopeOf(call.options);
  const removed = removeService(call, { name, scope, manager: managerHere() });
  call.print(removed, removed.lines);
  return removed.isThere;
}

/** Removes a service; `tierkv uninstall` uses it, too. */
export function removeService(
  { io, options }: Call<{ dryRun?: true }>,
  which: Pick<Service, "name" | "scope" | "manager">,
): { path: string; isThere: boolean; commands: string[]; lines: string[] } {
  const path = servicePath({ ...which, home: homeOf(io.env) }, configHome(io.env));
  const isThere = existsSync(path);
  if (!isThere) return { path, isThere, commands: [], lines: [`${path}: there is none`] };
  const before = stopCommands(which, uid());
  const after = forgetCommands(which);
  const commands = [...before, ["rm", path], ...after].map((words) => words.join(" "));
  if (options.dryRun === true) return { path, isThere, commands, lines: commands };
  const trouble = stop(before);
  rmSync(path);
  stop(after);
  const said = trouble === null ? [] : [`${trouble}: end its process yourself`];
  return { path, isThere, commands, lines: [`${path}: removed`, ...said] };
}

/** Runs commands, and returns their error, because a missing manager must not prevent removing the file. */
function stop(commands: readonly string[][]): string | null {
  try {
    runAll(commands);
    return null;
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
}

export interface FoundService {
  name: ServiceName;
  scope: Scope;
  manager: Manager;
  path: string;
}

/** Returns the services whose file exists. */
export function installed(env: Environment): FoundService[] {
  const manager = managerHere();
  const all = SERVICES.flatMap((name) =>
    (["system", "user"] as const).map((scope) => {
      const path = servicePath({ name, scope, manager, home: homeOf(env) }, configHome(env));
      return { name, scope, manager, path };
    }),
  );
  return all.filter(({ path }) => existsSync(path));
}

function status(call: Call): boolean {
  const services = installed(call.io.env).map((found) => ({
    ...found,
    state: stateOf(found, uid()),
  }));
  const rows = services.map(({ name, scope, state, path }) => [name, scope, state, path]);
  const none = "no service is installed: `tierkv service install vault` makes one";
  const lines = rows.length === 0 ? [none] : table([["service", "of", "state", "file"], ...rows]);
  call.print({ services }, lines);
  return services.length > 0;
}
