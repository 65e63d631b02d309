// Owns what a command asks the sidecar of its machine, and whether bytes of some namespace are of an engine's here.
import type { Config } from "../config/config.ts";
import type { TierkvError } from "../errors.ts";
import { STATUS_TIMEOUT_MS } from "../limits/general.ts";
import type { SidecarStatus } from "../sidecar/status.ts";
import { SidecarLink } from "./sidecar-link.ts";

export interface Named {
  /** In hexadecimal, as vaults know it. */
  namespace: string;
  model: string;
}

/** Throws what `refused` makes for another namespace than the engines here have, or `given` begins. `why`: what makes another one. */
export async function checkNamed(
  { sidecar }: Config,
  { namespace, model }: Named,
  given: string | null,
  refused: (reason: string) => TierkvError,
  why = "another model, or other settings",
): Promise<void> {
  const own = await (given === null
    ? enginesOf(sidecar.socket)
    : [{ model: "--namespace", namespace: given }]);
  if (own.some((engine) => engine.namespace !== "" && namespace.startsWith(engine.namespace)))
    return;
  const here = own.map((engine) => `${engine.model} has ${engine.namespace}`).join(", ");
  throw refused(
    here === ""
      ? `no engine here has a name yet to compare with ${namespace.slice(0, 16)} (${model}): an engine has one from its first request on; or give --namespace, as its maker printed it`
      : `it is of namespace ${namespace.slice(0, 16)} (${model}), and here ${here}: ${why}`,
  );
}

async function enginesOf(socket: string): Promise<Named[]> {
  return await asked(socket, async (link) => {
    const { engines } = (await link.status(STATUS_TIMEOUT_MS)) as unknown as SidecarStatus;
    return engines.flatMap(({ model, namespace }) =>
      namespace === null ? [] : [{ model, namespace }],
    );
  });
}

export async function asked<T>(
  socket: string,
  work: (link: SidecarLink) => Promise<T>,
): Promise<T> {
  const link = new SidecarLink(socket);
  try {
    await link.hello(STATUS_TIMEOUT_MS);
    return await work(link);
  } finally {
    link.close();
  }
}
