// Owns the credentials for a registry, as `docker login` or `podman login` stored them.
import { spawnSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { TierkvError, toTierkvError } from "../../base/errors.ts";
import { REGISTRY_HELPER_MS } from "../../base/limits/tools.ts";

interface Kept {
  auths?: Record<string, { auth?: string }>;
  credHelpers?: Record<string, string>;
  credsStore?: string;
}

type Env = Readonly<Record<string, string | undefined>>;

/** Returns `user:password`; null: no login is stored. Throws REGISTRY_FAILED for a file that cannot be read. */
export function loginFor(registry: string, env: Env): string | null {
  for (const path of filesOf(env)) {
    const login = existsSync(path) ? loginIn(read(path, registry), registry) : null;
    if (login !== null) return login;
  }
  return null;
}

function loginIn(
  { auths = {}, credHelpers = {}, credsStore }: Kept,
  registry: string,
): string | null {
  const helper = credHelpers[registry] ?? credsStore;
  const login = helper === undefined ? null : asked(helper, registry);
  const { auth = "" } = auths[registry] ?? auths[`https://${registry}`] ?? {};
  if (login !== null || auth === "") return login;
  return Buffer.from(auth, "base64").toString();
}

function filesOf({
  REGISTRY_AUTH_FILE,
  DOCKER_CONFIG,
  XDG_RUNTIME_DIR,
  HOME = homedir(),
}: Env): string[] {
  if (REGISTRY_AUTH_FILE !== undefined) return [REGISTRY_AUTH_FILE];
  const docker = join(DOCKER_CONFIG ?? join(HOME, ".docker"), "config.json");
  const podman = XDG_RUNTIME_DIR && join(XDG_RUNTIME_DIR, "containers", "auth.json");
  return [docker, ...(podman ? [podman] : [])];
}

function read(path: string, registry: string): Kept {
  try {
    return JSON.parse(readFileSync(path, "utf8")) as Kept;
  } catch (error) {
    const reason = `${path} cannot be read: ${toTierkvError(error).message}`;
    throw new TierkvError("REGISTRY_FAILED", { registry, reason });
  }
}

/** Asks a credential helper by Docker's protocol; null: it has no login. */
function asked(helper: string, registry: string): string | null {
  const options = { input: registry, encoding: "utf8", timeout: REGISTRY_HELPER_MS } as const;
  const { status, stdout } = spawnSync(`docker-credential-${helper}`, ["get"], options);
  if (status !== 0) return null;
  const { Username, Secret } = JSON.parse(stdout) as { Username: string; Secret: string };
  return `${Username}:${Secret}`;
}
