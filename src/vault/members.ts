// Owns the machines that joined: a credential for each, invitations that make one, all kept hashed in one private file.
import { createHash } from "node:crypto";
import { TierkvError, toTierkvError } from "../errors.ts";
import {
  ACCOUNTS_MAX,
  INVITATION_S_MAX,
  INVITATIONS_MAX,
  MACHINE_NAME_CHARS_MAX,
  MEMBERS_MAX,
  MEMBERS_SAVE_MS,
  TOKEN_BYTES,
} from "../limits/access.ts";
import type { Logger } from "../log.ts";
import { isAbsent, readPrivate, writePrivate } from "../private-file.ts";
import { isRole } from "../roles.ts";
import type { Role } from "../roles.ts";
import { nowMs, randomToken, wallClockMs } from "../time.ts";

const KEY = "[vault] state_dir";

/** One machine that joined. Times in ms since 1970. */
export interface Member {
  readonly name: string;
  readonly role: Role;
  /** 1 and more; what it stores is on this account. Not given to another while it is known. */
  readonly account: number;
  /** SHA-256 of its token, in hexadecimal. */
  readonly digest: string;
  readonly joinedMs: number;
  /** 0: never. */
  seenMs: number;
  /** From where it was seen last; empty: never. */
  address: string;
}

interface Invitation {
  readonly digest: string;
  readonly role: Role;
  readonly untilMs: number;
  uses: number;
}

interface Kept {
  /** The account given last. */
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

  /** Nobody has joined while there is no file. Throws CREDENTIALS for one that cannot be used. */
  constructor(path: string, logger: Logger) {
    this.#path = path;
    this.#logger = logger;
    this.#kept = isAbsent(path, KEY)
      ? { last: 0, members: [], invitations: [] }
      : parse(readPrivate(path, KEY), path);
    this.#index();
  }

  /** Hears of who joins from now on, and whose credential is revoked. */
  listen(onChange: (member: Member, isGone: boolean) => void): void {
    this.#onChange = onChange;
  }

  /** Those that joined, in that order. */
  get all(): readonly Member[] {
    return this.#kept.members;
  }

  /** A secret that lets `uses` machines in within `forS` seconds. Throws BAD_ARGUMENT, OVERLOAD or CREDENTIALS. */
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

  /** Uses an invitation once: a credential for the machine, whose token is known to the answer alone. Throws STRANGER, OVERLOAD or CREDENTIALS. */
  redeem(secret: string, machine: string): { member: Member; token: string } {
    const digest = digestOf(secret);
    const open = this.#open();
    const invitation = open.find((one) => one.digest === digest);
    if (invitation === undefined) throw new TierkvError("STRANGER", {});
    const token = newSecret();
    const member = this.#newMember(machine, invitation.role, digestOf(token));
    const invitations = open
      .map((one) => (one === invitation ? { ...one, uses: one.uses - 1 } : one))
      .filter(({ uses }) => uses > 0);
    this.#add(member, invitations);
    return { member, token };
  }

  /** Lets in a machine that joined another vault of the pool. Throws OVERLOAD or CREDENTIALS. */
  adopt({ digest, name, role }: Pick<Member, "digest" | "name" | "role">): void {
    this.#add(this.#newMember(name, role, digest), this.#kept.invitations);
  }

  #newMember(machine: string, role: Role, digest: string): Member {
    if (this.#kept.members.length >= MEMBERS_MAX)
      throw tooMany("machines that joined", MEMBERS_MAX);
    const account = this.#nextAccount();
    const seen = { joinedMs: wallClockMs(), seenMs: 0, address: "" };
    return { name: this.#freeName(machine), role, account, digest, ...seen };
  }

  #add(member: Member, invitations: Invitation[]): void {
    const { members } = this.#kept;
    this.#save({ last: member.account, members: [...members, member], invitations });
    this.#onChange(member, false);
  }

  /** Whose token it is; null: nobody's. */
  find(token: string): Member | null {
    return this.#byDigest.get(digestOf(token)) ?? null;
  }

  /** A call of this machine was let in; kept on disk at most once in MEMBERS_SAVE_MS. */
  seen(member: Member, address: string): void {
    member.seenMs = wallClockMs();
    member.address = address;
    this.#isStale = true;
    if (nowMs() - this.#savedMs >= MEMBERS_SAVE_MS) this.#keep();
  }

  /** From now on its token opens nothing. Throws CREDENTIALS when a restart would let it in again. */
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

  /** Keeps what was not kept yet. Idempotent. */
  close(): void {
    if (this.#isStale) this.#keep();
  }

  #open(): Invitation[] {
    const now = wallClockMs();
    return this.#kept.invitations.filter(({ untilMs }) => untilMs > now);
  }

  #freeName(machine: string): string {
    const plain = machine.replaceAll(/[^\w.-]/g, "_").slice(0, MACHINE_NAME_CHARS_MAX);
    const base = plain === "" ? "machine" : plain;
    const taken = new Set(this.#kept.members.map(({ name }) => name));
    let name = base;
    for (let next = 2; taken.has(name); next += 1) name = `${base}-${next}`;
    return name;
  }

  /** Ascending, so that what a revoked machine left is nobody else's for as long as possible. */
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

  /** When somebody was seen is worth no failure. */
  #keep(): void {
    this.#savedMs = nowMs();
    try {
      this.#save(this.#kept);
    } catch (error) {
      const { message: reason } = toTierkvError(error);
      this.#logger.warn({ reason }, "when machines were seen last was not kept");
    }
  }
}

function newSecret(): string {
  return randomToken(TOKEN_BYTES).toString("base64url");
}

/** Secrets of 256 random bits need no slow hash. */
function digestOf(secret: string): string {
  return createHash("sha256").update(secret).digest("hex");
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
    // No JSON, or of another shape.
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
