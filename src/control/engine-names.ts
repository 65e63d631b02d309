// Owns the check that a namespace belongs to an engine of this machine.
import type { TierkvError } from "../base/errors.ts";
import type { Config } from "../config/config.ts";
import { askSidecar } from "./ask-sidecar.ts";

export interface Named {
  /** Hexadecimal name, as vaults know it. */
  namespace: string;
  model: string;
}

/** Throws `refused`'s error unless an engine here has the namespace, or it begins with `given`. `why`: what makes another one. */
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
  const { engines } = await askSidecar(socket, (link) => link.status());
  return engines.flatMap(({ model, namespace }) =>
    namespace === null ? [] : [{ model, namespace }],
  );
}
