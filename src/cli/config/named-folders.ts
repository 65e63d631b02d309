// Owns the folder checks of `tierkv config check`: whether each named folder exists or could be made, and is usable.
import { accessSync, constants, statSync } from "node:fs";
import { dirname } from "node:path";
import { isThere } from "../../base/directory.ts";
import { TierkvError, toTierkvError } from "../../base/errors.ts";
import type { Config } from "../../config/config.ts";
import type { Environment } from "../../config/field.ts";
import { placeOf } from "../../config/load.ts";
import { SERVICE_STATE } from "../../config/own-places.ts";
import { ENTRIES } from "../../config/schema.ts";
import type { FileProblem } from "./named-files.ts";

interface Use {
  readonly verb: "write" | "read";
  readonly past: "written" | "read";
  readonly rights: number;
  /** Whether it may be absent, because its program makes it. */
  readonly isMade: boolean;
  /** Whether its program refuses a folder of another user, or that others may write. */
  readonly isOwn?: boolean;
}

const READABLE = constants.R_OK | constants.X_OK;
const READ: Use = { verb: "read", past: "read", rights: READABLE, isMade: false };
/** May be absent and need not be writable, because `tierkv join` makes it, perhaps as another user. */
const JOINED: Use = { ...READ, isMade: true };
const WRITABLE = READABLE | constants.W_OK;
const WRITTEN: Use = { verb: "write", past: "written", rights: WRITABLE, isMade: true };
/** As the core takes it for a vault's disk and archive. */
const OWNED: Use = { ...WRITTEN, isOwn: true };
const FOREIGN_WRITE = constants.S_IWGRP | constants.S_IWOTH;
const FILE_URL = "file://";

export interface NamedFolder {
  key: string;
  folder: string;
  state: "there" | "to be made";
}

export interface Folders {
  folders: NamedFolder[];
  problems: FileProblem[];
}

interface Named {
  section: string;
  name: string;
  use: Use;
  /** Value in the configuration; null: none is named. */
  value: string | null;
  folder: string;
}

/** Checks folders that the file names; a default's belongs to the user who starts the program. */
export function namedFolders(config: Config, env: Environment): Folders {
  const found: Folders = { folders: [], problems: [] };
  for (const named of foldersOf(config)) {
    if (named.value === null || named.value === defaultOf(named, env)) continue;
    const { section, name, folder, use } = named;
    const key = `[${section}] ${name}`;
    try {
      found.folders.push({ key, folder, state: stateOf(named) });
    } catch (caught) {
      const error = new TierkvError("CONFIG_BAD_VALUE", {
        where: placeOf(config, [section, name]),
        key,
        value: JSON.stringify(named.value),
        reason: `it cannot be ${use.past}: ${toTierkvError(caught).message}`,
        fix:
          caught instanceof ForeignFolder
            ? caught.fix
            : `name a folder that this user may ${use.verb}, or make it one`,
      });
      found.problems.push({ key, error });
    }
  }
  return found;
}

class ForeignFolder extends Error {
  readonly fix: string;

  constructor(reason: string, fix: string) {
    super(reason);
    this.fix = fix;
  }
}

/** Throws the system's error for an unusable folder, ForeignFolder for one that is not this user's alone. */
function stateOf({ folder, use }: Named): NamedFolder["state"] {
  if (!use.isMade) accessSync(`${folder}/.`, use.rights);
  else if (!isThere(folder, use.rights)) return "to be made";
  if (use.isOwn === true) checkOwn(folder);
  return "there";
}

function checkOwn(folder: string): void {
  const { mode, uid } = statSync(folder);
  const user = process.geteuid?.();
  // Root asks about the folder of a service that has a user of its own.
  const isOfService = user === 0 && `${folder}/`.startsWith(`${SERVICE_STATE}/`);
  if (uid !== user && !isOfService) {
    throw new ForeignFolder(
      `it belongs to user ${uid}, this is user ${user}`,
      "name another folder",
    );
  }
  if ((mode & FOREIGN_WRITE) === 0) return;
  const bits = (mode & 0o7777).toString(8);
  throw new ForeignFolder(
    `it has mode ${bits}, so others may write there`,
    `run \`chmod 700 ${folder}\``,
  );
}

function foldersOf({ cluster, vault, sidecar, gateway, receipts }: Config): Named[] {
  const written = (section: string, name: string, value: string | null, folder?: string): Named => {
    return { section, name, use: WRITTEN, value, folder: folder ?? value ?? "" };
  };
  const { dataDir, archive, stateDir, auditLog } = vault;
  const url = archive?.startsWith(FILE_URL) === true ? archive : null;
  return [
    { ...written("cluster", "credentials", cluster.credentials), use: JOINED },
    { ...written("vault", "data_dir", dataDir), use: OWNED },
    { ...written("vault", "archive", url, url?.slice(FILE_URL.length)), use: OWNED },
    written("vault", "state_dir", stateDir),
    written("vault", "audit_log", auditLog, dirname(auditLog ?? "")),
    written("sidecar", "arena_dir", sidecar.arenaDir),
    ...[...gateway.tokenizers].map(([model, folder]) => {
      return { ...written("gateway", "tokenizers", `${model}=${folder}`, folder), use: READ };
    }),
    written("gateway", "index_file", gateway.indexFile, dirname(gateway.indexFile)),
    written("receipts", "dir", receipts.dir),
  ];
}

function defaultOf({ section, name }: Named, env: Environment): unknown {
  const entry = ENTRIES.find((each) => each.section === section && each.name === name);
  return entry?.field.fallback(env);
}
