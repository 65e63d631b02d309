// Owns the machines that joined: their credentials and open invitations, hashed in one private file.
import { TierkvError, toTierkvError } from "../../base/errors.ts";
import {
  ACCOUNTS_MAX,
  INVITATION_S_MAX,
  INVITATIONS_MAX,
  MACHINE_NAME_CHARS_MAX,
  MEMBERS_MAX,
  MEMBERS_SAVE_MS,
  TOKEN_BYTES,
} from "../../base/limits/access.ts";
import type { Logger } from "../../base/log.ts";
import { isAbsent, readPrivate, writePrivate } from "../../base/private-file.ts";
import { isRole } from "../../base/roles.ts";
import type { Role } from "../../base/roles.ts";
import { nowMs, randomToken, wallClockMs } from "../../base/time.ts";
import { digestOf } from "./tokens.ts";

const KEY = "[vault] state_dir";

/** One machine that joined. Times in ms since 1970. */
export interface Member {
  readonly name: string;
  readonly role: Role;
  /** Number its records are stored under, from 1; not reused while the machine is known. */
  readonly account: number;
  /** SHA-256 of its token, in hexadecimal. */
  readonly digest: string;
  readonly joinedMs: number;
  /** 0: never. */
  seenMs: number;
  /** Address it was last seen at; empty: never. */
  address: string;
}

interface Invitation {
  readonly digest: string;
  readonly role: Role;
  readonly untilMs: number;
  uses: number;
}

/** A machine that was let in, and the members that it was before. */
export interface Redeemed {
  member: Member;
  token: string;
  replaced: readonly Member[];
}

interface Kept {
  /** The last account assigned. */
  last: number;
  members: Member[];
  invitations: Invitation[];
}

export class Members {
  readonly #path: string;
  readonly #logger: Logger;
  #kept: Kept;
  #byDigest = new Map<string, Member>();
  #savedMs = -MEMBERS_SAVE_MS;
  #isStale = false;
  #onChange: (member: Member, isGone: boolean) => void = () => {};

  /** A missing file means no members; `also`: another user who may own it. Throws CREDENTIALS for an unusable file. */
  constructor(path: string, logger: Logger, also: number | null = null) {
    this.#path = path;
    this.#logger = logger;
    this.#kept = isAbsent(path, KEY)
      ? { last: 0, members: [], invitations: [] }
      : parse(readPrivate(path, KEY, { also }), path);
    this.#index();
  }

  /** Sets the callback for machines that join or are revoked from now on. */
  listen(onChange: (member: Member, isGone: boolean) => void): void {
    this.#onChange = onChange;
  }

  /** Members in the order they joined. */
  get all(): readonly Member[] {
    return this.#kept.members;
  }

  /** Returns a secret that admits `uses` machines within `forS` seconds. Throws BAD_ARGUMENT, OVERLOAD or CREDENTIALS. */
  invite(role: Role, forS: number, uses: number): string {
    checkRange("seconds of an invitation", forS, INVITATION_S_MAX);
    checkRange("uses of an invitation", uses, MEMBERS_MAX);
    const open = this.#open();
    if (open.length >= INVITATIONS_MAX) throw tooMany("open invitations", INVITATIONS_MAX);
    const secret = newSecret();
    const untilMs = wallClockMs() + forS * 1000;
    const invitations = [...open, { digest: digestOf(secret), role, untilMs, uses }];
    this.#save({ ...this.#kept, invitations });
    return secret;
  }

  isInvited(secret: string): boolean {
    const digest = digestOf(secret);
    return this.#open().some((invitation) => invitation.digest === digest);
  }

  /**
   * Uses an invitation once and returns the machine's token, which is kept only as a digest. Members whose tokens have a digest in
   * `formers` are replaced: the same machine joins again. Throws STRANGER, OVERLOAD or CREDENTIALS.
   */
  redeem(secret: string, machine: string, formers: readonly string[] = []): Redeemed {
    const digest = digestOf(secret);
    const open = this.#open();
    const invitation = open.find((one) => one.digest === digest);
    if (invitation === undefined) throw new TierkvError("STRANGER", {});
    const token = newSecret();
    const shown = new Set(formers.slice(0, MEMBERS_MAX));
    const replaced = this.#kept.members.filter((one) => shown.has(one.digest));
    const others = this.#kept.members.filter((one) => !replaced.includes(one));
    const member = this.#newMember(machine, invitation.role, digestOf(token), others);
    const invitations = open
      .map((one) => (one === invitation ? { ...one, uses: one.uses - 1 } : one))
      .filter(({ uses }) => uses > 0);
    this.#add(member, invitations, others);
    for (const former of replaced) this.#onChange(former, true);
    return { member, token, replaced };
  }

  /** Adds a machine that joined another vault of the pool. Throws OVERLOAD or CREDENTIALS. */
  adopt({ digest, name, role }: Pick<Member, "digest" | "name" | "role">): void {
    const { members, invitations } = this.#kept;
    this.#add(this.#newMember(name, role, digest, members), invitations, members);
  }

  #newMember(machine: string, role: Role, digest: string, others: readonly Member[]): Member {
    if (others.length >= MEMBERS_MAX) throw tooMany("machines that joined", MEMBERS_MAX);
    const account = this.#nextAccount();
    const seen = { joinedMs: wallClockMs(), seenMs: 0, address: "" };
    return { name: freeName(machine, others), role, account, digest, ...seen };
  }

  #add(member: Member, invitations: Invitation[], others: readonly Member[]): void {
    this.#save({ last: member.account, members: [...others, member], invitations });
    this.#onChange(member, false);
  }

  /** Returns the member with this token; null: none. */
  find(token: string): Member | null {
    return this.#byDigest.get(digestOf(token)) ?? null;
  }

  /** Notes an admitted call of this machine; written to disk at most once per MEMBERS_SAVE_MS. */
  seen(member: Member, address: string): void {
    member.seenMs = wallClockMs();
    member.address = address;
    this.#isStale = true;
    if (nowMs() - this.#savedMs >= MEMBERS_SAVE_MS) this.#keep();
  }

  /** Revokes a member's token at once. Throws CREDENTIALS when the file still has it, so that a restart would admit it. */
  revoke(member: Member): void {
    const members = this.#kept.members.filter((one) => one !== member);
    this.#kept = { ...this.#kept, members };
    this.#index();
    try {
      this.#save(this.#kept);
    } finally {
      this.#onChange(member, true);
    }
  }

  /** Writes pending changes. Idempotent. */
  close(): void {
    if (this.#isStale) this.#keep();
  }

  #open(): Invitation[] {
    const now = wallClockMs();
    return this.#kept.invitations.filter(({ untilMs }) => untilMs > now);
  }

  /** Ascending, so that a revoked machine's account is reused as late as possible. */
  #nextAccount(): number {
    const taken = new Set(this.#kept.members.map(({ account }) => account));
    let account = this.#kept.last;
    do account = (account % ACCOUNTS_MAX) + 1;
    while (taken.has(account));
    return account;
  }

  #index(): void {
    this.#byDigest = new Map(this.#kept.members.map((member) => [member.digest, member]));
  }

  #save(kept: Kept): void {
    writePrivate(this.#path, `${JSON.stringify(kept)}\n`, KEY);
    this.#kept = kept;
    this.#index();
    this.#savedMs = nowMs();
    this.#isStale = false;
  }

  /** Writes last-seen times; a failure is only logged, because no call depends on them. */
  #keep(): void {
    this.#savedMs = nowMs();
    try {
      this.#save(this.#kept);
    } catch (error) {
      const { message: reason } = toTierkvError(error);
      this.#logger.warn({ reason }, "the times of the machines' last contact were not saved");
    }
  }
}

function freeName(machine: string, others: readonly Member[]): string {
  const plain = machine.replaceAll(/[^\w.-]/g, "_").slice(0, MACHINE_NAME_CHARS_MAX);
  const base = plain === "" ? "machine" : plain;
  const taken = new Set(others.map(({ name }) => name));
  let name = base;
  for (let next = 2; taken.has(name); next += 1) {
    const end = `-${next}`;
    // A pool's list takes no longer name.
    name = base.slice(0, MACHINE_NAME_CHARS_MAX - end.length) + end;
  }
  return name;
}

function newSecret(): string {
  return randomToken(TOKEN_BYTES).toString("base64url");
}

function checkRange(what: string, value: number, max: number): void {
  if (Number.isInteger(value) && value >= 1 && value <= max) return;
  throw new TierkvError("BAD_ARGUMENT", { reason: `${what}: ${value} is not 1 to ${max}` });
}

function tooMany(what: string, limit: number): TierkvError {
  return new TierkvError("OVERLOAD", { what, count: limit, limit });
}

function parse(text: string, path: string): Kept {
  try {
    const kept = JSON.parse(text) as Kept;
    if (isSound(kept)) return kept;
  } catch {
    // Not JSON, or of another shape.
  }
  const fix = "restore it, or remove it and let every machine join again";
  throw new TierkvError("CREDENTIALS", { path, reason: "this is no file of machines", fix });
}

function isSound({ last, members, invitations }: Kept): boolean {
  const isNumber = (value: unknown): boolean => Number.isSafeInteger(value) && Number(value) >= 0;
  const isMember = (one: Member): boolean =>
    /^[\w.-]+$/.test(one.name) &&
    isRole(one.role) &&
    [one.account, one.joinedMs, one.seenMs].every(isNumber) &&
    one.account >= 1 &&
    one.account <= ACCOUNTS_MAX &&
    typeof one.address === "string" &&
    /^[\da-f]{64}$/.test(one.digest);
  const isInvitation = (one: Invitation): boolean =>
    /^[\da-f]{64}$/.test(one.digest) && isRole(one.role) && [one.untilMs, one.uses].every(isNumber);
  return (
    isNumber(last) &&
    members.every(isMember) &&
    invitations.every(isInvitation) &&
    members.length <= MEMBERS_MAX &&
    invitations.length <= INVITATIONS_MAX
  );
}
