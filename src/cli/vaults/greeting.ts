// Owns a command's calls to vaults: whom it waits for is said after two seconds, and one that does not answer is told as `tierkv status` tells it.
import { toTierkvError } from "../../base/errors.ts";
import { silent } from "../../base/log.ts";
import type { Vault } from "../../client/vault.ts";
import { securityFor } from "../../cluster/credentials.ts";
import { askVault, helloAll } from "../../cluster/vault-link.ts";
import type { Hello, VaultLink } from "../../cluster/vault-link.ts";
import { diagnosed, sayHello } from "../../diagnosis/reach.ts";
import type { Call } from "../shell/call.ts";
import { whileWaiting } from "../shell/progress.ts";

/** Sends a hello. Throws VAULT_UNREACHED with the diagnosis, or the vault's own error. */
export const greet: Hello = async ({ client, isTls }) => {
  await sayHello(client, isTls);
};

/** Greets all, and resolves to the function that closes them. Throws the first error. */
export async function greetAll(
  { io }: Pick<Call, "io">,
  links: readonly VaultLink[],
): Promise<() => void> {
  const waiting = new Set<Vault>(links.map(({ client }) => client));
  const hello: Hello = async (link) => {
    await greet(link);
    waiting.delete(link.client);
  };
  const whom = (): string => Array.from(waiting, ({ address }) => address).join(", ");
  return await whileWaiting(io, whom, () => helloAll(links, hello));
}

/** Makes one call with this machine's credentials for the vault. Throws VAULT_UNREACHED with the diagnosis, or the vault's own error. */
export async function askOne<Request, Reply>(
  { io }: Pick<Call, "io">,
  ...asked: Parameters<typeof askVault<Request, Reply>>
): Promise<Reply> {
  const [config, target] = asked;
  const { address } = target;
  const isTls = securityFor(config, target, silent) !== null;
  const ask = async (): Promise<Reply> => {
    try {
      return await askVault(...asked);
    } catch (error) {
      const failure = await diagnosed(error, { name: "the", address }, isTls);
      if (toTierkvError(error).code === "VAULT_DEADLINE") io.err(`${address}: ${MAY_BE}`);
      throw failure;
    }
  };
  return await whileWaiting(io, () => address, ask);
}

const MAY_BE =
  "the change may have been made, and was not confirmed in time: `tierkv vaults ls` shows whether it was";
