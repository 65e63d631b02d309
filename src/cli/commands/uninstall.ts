// Owns `tierkv uninstall`: removes services and, with --purge, all that tierKV keeps on this machine; or its file in EXO.
import { lstatSync, readdirSync, rmdirSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { TierkvError, toTierkvError } from "../../base/errors.ts";
import type { Config } from "../../config/config.ts";
import type { Environment } from "../../config/field.ts";
import { ownSocket, SERVICE_STATE, xdgHome } from "../../config/own-places.ts";
import type { Call } from "../shell/call.ts";
import type { Command } from "../shell/command.ts";
import { removeFromExo } from "./install.ts";
import { installed, removeService } from "./service.ts";

interface UninstallFlags {
  user?: true;
  purge?: true;
  dryRun?: true;
  yes?: true;
  exoPath?: string;
}

export function addUninstall(program: Command): void {
  program
    .command("uninstall")
    .summary("remove services, and with --purge all data, from this machine")
    .description(
      "Stops and removes this user's services; as root, the whole machine's too. With --purge, also removes records on\n" +
        "disk, certificates, tokens, credentials, digests of weights, sockets, and configuration files in tierKV's own\n" +
        "folders. Asks for confirmation first. `pip uninstall tierkv` or `npm uninstall -g tierkv` removes the package.",
    )
    .option("--purge", "also remove records, secrets and configuration")
    .option("--user", "remove only this user's files and services, even as root")
    .option("--dry-run", "list the paths to remove without removing them")
    .option("--yes", "do not ask for confirmation")
    .option("--exo-path <path>", "remove only the file that `tierkv install --exo-path` added")
    .example("tierkv uninstall --purge --dry-run")
    .does((call: Call<UninstallFlags>) =>
      call.options.exoPath === undefined ? uninstall(call) : uninstallExo(call),
    );
}

async function uninstallExo(call: Call<UninstallFlags>): Promise<void> {
  const { exoPath = "", purge, user, dryRun } = call.options;
  if (purge ?? user ?? dryRun ?? false) {
    const reason = "--exo-path goes without --purge, --user and --dry-run: it removes one file";
    throw new TierkvError("USAGE", { reason });
  }
  await removeFromExo(call, exoPath);
}

async function uninstall(call: Call<UninstallFlags>): Promise<boolean> {
  const { options, io } = call;
  const isMachine = process.getuid?.() === 0 && options.user !== true;
  const services = installed(io.env).filter(({ scope }) => isMachine || scope === "user");
  const kept = options.purge === true ? ownPaths(call.loadConfig(), io.env, isMachine) : [];
  const paths = [...services.map(({ path }) => path), ...kept];
  if (paths.length === 0) {
    const none =
      options.purge === true
        ? "nothing to remove: no services, records, secrets or configuration of tierKV are here"
        : "nothing to remove: no service of tierKV is here; --purge also removes records, secrets and configuration";
    call.print({ removed: [], failed: [] }, [none]);
    return true;
  }
  if (options.dryRun === true) {
    call.print({ paths }, paths);
    return true;
  }
  const asks = "uninstall asks before it removes";
  if (options.yes !== true && !(await call.confirms(asks, "Remove all of these?", paths))) {
    call.print({ removed: [], failed: [] }, ["nothing was removed"]);
    return false;
  }
  const lines = services.flatMap((service) => removeService(call, service).lines);
  const failed: string[] = [];
  for (const path of kept) {
    const trouble = remove(path);
    lines.push(`${path}: ${trouble ?? "removed"}`);
    if (trouble !== null) failed.push(path);
  }
  call.print({ removed: paths.filter((path) => !failed.includes(path)), failed }, lines);
  return failed.length === 0;
}

const OWN_NAME = "tierkv";
/** Names of tierKV's files in configured folders, which may hold foreign files, too. */
const DATA_FILES =
  /^(?:[0-9a-f-]+\.(?:seg|idx|put)|(?:archive|tombstones|flushes\.json|models\.json)(?:\.new)?|lock)$/;
const STATE_FILES =
  /^(?:vault\.pem|tokens|(?:members|pool)\.json|audit\.jsonl(?:\.\d+)?|invitation|(?:flushes|vaults|weight)-.+\.json)(?:\.new|\.[\da-f]{8})?$/;
const JOINED_FILES = /^(?:vault\.pem|token)$/;

/** Returns the existing default folders, and tierKV's files in other configured folders. */
function ownPaths(config: Config, env: Environment, isMachine: boolean): string[] {
  const usual = [
    join(xdgHome("XDG_STATE_HOME", ".local/state", env), OWN_NAME),
    join(xdgHome("XDG_CONFIG_HOME", ".config", env), OWN_NAME),
    dirname(ownSocket("sidecar", env)),
    ...(isMachine ? [SERVICE_STATE, "/var/lib/private/tierkv", "/etc/tierkv"] : []),
  ];
  const { dataDir, stateDir } = config.vault;
  const { credentials } = config.cluster;
  const files = [
    ...matching(stateDir, STATE_FILES),
    ...(dataDir === null ? [] : matching(dataDir, DATA_FILES)),
    ...entries(credentials).flatMap((name) => matching(join(credentials, name), JOINED_FILES)),
  ];
  const isApart = (file: string): boolean => !usual.some((folder) => file.startsWith(`${folder}/`));
  return [...usual.filter(isThere), ...new Set(files.filter(isApart))];
}

const matching = (folder: string, names: RegExp): string[] =>
  entries(folder)
    .filter((name) => names.test(name))
    .map((name) => join(folder, name));

function entries(folder: string): string[] {
  const isFolder = lstatSync(folder, { throwIfNoEntry: false })?.isDirectory() === true;
  return isFolder ? readdirSync(folder) : [];
}

const isThere = (path: string): boolean => lstatSync(path, { throwIfNoEntry: false }) !== undefined;

/** Removes a path, and its folder if left empty. Returns null, or the error. */
function remove(path: string): string | null {
  try {
    const isFile = !lstatSync(path).isDirectory();
    rmSync(path, { recursive: true, force: true });
    const folder = dirname(path);
    if (isFile && readdirSync(folder).length === 0) rmdirSync(folder);
    return null;
  } catch (error) {
    return toTierkvError(error).message;
  }
}
