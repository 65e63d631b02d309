// Owns the membership calls of a vault: Invite, Redeem, Peers, Revoke.
import { TierkvError } from "../../base/errors.ts";
import { isRole } from "../../base/roles.ts";
import type * as m from "../../wire/messages.ts";
import type { Caller } from "../access/gate.ts";
import type { Member, Members } from "../access/members.ts";
import type { VaultContext } from "./context.ts";

export function invite(
  vault: VaultContext,
  { role, forS, uses }: m.InviteRequest,
  caller: Caller,
): m.InviteReply {
  if (!isRole(role)) {
    throw new TierkvError("BAD_ARGUMENT", { reason: "an invitation for no role: it needs one" });
  }
  const secret = membersOf(vault).invite(role, forS, uses);
  tell(vault, caller, "Invite", { for: role, for_s: forS, uses });
  return { secret };
}

export function redeem(
  vault: VaultContext,
  { machine, formers }: m.RedeemRequest,
  { peer, invitation }: Caller,
): m.RedeemReply {
  const { member, token, replaced } = membersOf(vault).redeem(invitation ?? "", machine, formers);
  for (const former of replaced) expel(vault, former, peer);
  const { name, role } = member;
  vault.audit.record("machine_joined", { peer, name, role });
  vault.logger.info({ name, role, peer }, "a machine joined");
  return { name, token };
}

export function peers(vault: VaultContext): m.PeersReply {
  return {
    peers: membersOf(vault).all.map(({ name, role, joinedMs, seenMs, address }) => {
      return { name, role, joinedMs, seenMs, address };
    }),
  };
}

/** Closes the machine's connections and lanes before the answer says that it is revoked. */
export function revoke(
  vault: VaultContext,
  { name }: m.RevokeRequest,
  caller: Caller,
): m.RevokeReply {
  const members = membersOf(vault);
  const known = members.all.find((member) => member.name === name);
  if (known === undefined) return { revoked: false };
  try {
    members.revoke(known);
  } finally {
    expel(vault, known, caller.peer);
  }
  tell(vault, caller, "Revoke", { name });
  vault.logger.info({ name }, "a machine's credential was revoked");
  return { revoked: true };
}

function expel(vault: VaultContext, { account }: Member, peer: string): void {
  vault.gate?.expel(account, peer);
  vault.listener?.expel(account);
}

function tell(
  { audit }: VaultContext,
  { peer, role }: Caller,
  call: string,
  fields: Readonly<Record<string, string | number>>,
): void {
  audit.record("admin_call", { peer, role, call, ...fields });
}

function membersOf({ members }: VaultContext): Members {
  if (members !== null) return members;
  const reason = "nobody joins this vault: it asks for no token, or for client certificates alone";
  throw new TierkvError("BAD_ARGUMENT", { reason });
}
