// Owns a vault's part in its pool: the calls Gossip and Admit, and sharing joined machines among vaults.
import { TierkvError, toTierkvError } from "../../base/errors.ts";
import type { MachineEntry } from "../../discovery/entry.ts";
import type { Gossip } from "../../discovery/gossip.ts";
import type * as m from "../../wire/messages.ts";
import type { Caller } from "../access/gate.ts";
import type { Member } from "../access/members.ts";
import type { VaultContext } from "./context.ts";

/** Answers once the flushes that the caller told of are carried out, because it may let this vault in again. */
export async function gossip(
  vault: VaultContext,
  request: m.GossipRequest,
): Promise<m.GossipReply> {
  const reply = poolOf(vault).answer(request);
  await vault.missed.carryOut();
  return reply;
}

export async function admit(
  vault: VaultContext,
  { address, gone }: m.AdmitRequest,
  { peer, role }: Caller,
): Promise<m.AdmitReply> {
  const known = await poolOf(vault).admit(address, gone);
  vault.audit.record("admin_call", { peer, role, call: "Admit", address, gone });
  if (known) vault.logger.info({ address }, gone ? "left the pool" : "belongs to the pool");
  return { known };
}

function poolOf({ pool }: VaultContext): Gossip {
  if (pool !== null) return pool;
  const reason = "this vault belongs to no pool: it has no [vault] pool_key";
  throw new TierkvError("BAD_ARGUMENT", { reason });
}

/** Publishes this vault's members to the pool, and follows the pool's joins and revocations here. */
export function shareMachines(vault: VaultContext): void {
  const { pool, members, logger } = vault;
  if (pool === null || members === null) return;
  const take = (): void => {
    for (const machine of pool.book.machines) {
      try {
        follow(vault, machine);
      } catch (error) {
        const err = toTierkvError(error);
        logger.warn({ err, name: machine.name }, "a machine of the pool was not taken over");
      }
    }
  };
  take();
  for (const member of members.all)
    if (pool.book.machine(member.digest) === null) tell(pool, member, false);
  pool.listen(take);
  members.listen((member, isGone) => tell(pool, member, isGone));
}

function follow(vault: VaultContext, { digest, name, role, gone }: MachineEntry): void {
  const { members, audit, logger } = vault;
  const known = members?.all.find((member) => member.digest === digest);
  if (members === null || (known === undefined) === gone) return;
  if (known === undefined) {
    members.adopt({ digest, name, role });
    audit.record("machine_joined", { peer: "pool", name, role });
    return;
  }
  try {
    members.revoke(known);
  } finally {
    vault.gate?.expel(known.account, "");
    vault.listener?.expel(known.account);
  }
  audit.record("admin_call", { peer: "pool", role: "admin", call: "Revoke", name });
  logger.info({ name }, "a machine's credential was revoked in the pool");
}

/** Publishes a member's state, unless the pool knows it already. */
function tell(pool: Gossip, { digest, name, role }: Member, gone: boolean): void {
  const known = pool.book.machine(digest);
  if (known === null ? gone : known.gone === gone) return;
  const version = (known?.version ?? 0) + 1;
  pool.put({ kind: "machine", digest, name, role, gone, version });
}
