// Owns one entry of a pool's list: a vault or a machine that joined, or a flush, with a version, signed by the pool's key.
import { createHmac, timingSafeEqual } from "node:crypto";
import { isVaultClass } from "../base/block.ts";
import type { VaultClass } from "../base/block.ts";
import { splitAddress } from "../base/hosts.ts";
import { MACHINE_NAME_CHARS_MAX } from "../base/limits/access.ts";
import { NAME_BYTES_MAX } from "../base/limits/general.ts";
import { STATEMENT_BYTES_MAX } from "../base/limits/pool.ts";
import { isRole } from "../base/roles.ts";
import type { Role } from "../base/roles.ts";
import { derive, isSignedBy, readSecret, SigningKey } from "../base/signing-key.ts";
import { isTenant } from "../base/tenant.ts";
import type { SignedEntry } from "../wire/messages.ts";

interface Versioned {
  /** Rises with each change of the entry. */
  readonly version: number;
  /** The member left; its entry stays, so that an older one does not bring it back. */
  readonly gone: boolean;
}

export interface VaultEntry extends Versioned {
  readonly kind: "vault";
  readonly address: string;
  readonly class: VaultClass;
  /** PEM; null: the vault speaks in the clear. */
  readonly certificate: string | null;
}

export interface MachineEntry extends Versioned {
  readonly kind: "machine";
  /** SHA-256 of its token, in hexadecimal. */
  readonly digest: string;
  readonly name: string;
  readonly role: Role;
}

export interface FlushEntry extends Versioned {
  readonly kind: "flush";
  /** Random, 32 hexadecimal digits. */
  readonly id: string;
  /** Wall clock of the vault that was called first, in ms. */
  readonly atMs: number;
  /** In hexadecimal; null: every namespace, or those of `model`. */
  readonly namespace: string | null;
  /** 0: both classes. */
  readonly recordClass: number;
  /** Each vault knows the namespaces of a model itself; empty: not flushed by model. */
  readonly model: string;
  /** 0: all tenants. */
  readonly tenant: number;
}

export type Entry = VaultEntry | MachineEntry | FlushEntry;

const KEY = "[vault] pool_key";
const CONTEXT = "tierkv pool entry 1\n";

/** Secret that a pool's vaults share: signs entries, and makes the tokens of Gossip calls. */
export class PoolKey {
  readonly publicKey: Buffer;
  readonly #signing: SigningKey;
  readonly #tokens: Buffer;

  constructor(secret: Buffer) {
    this.#signing = new SigningKey(derive(secret, "tierkv pool signing"));
    this.publicKey = this.#signing.publicKey;
    this.#tokens = derive(secret, "tierkv pool tokens");
  }

  /** Reads 64 hexadecimal digits. Throws CREDENTIALS. */
  static read(path: string): PoolKey {
    return new PoolKey(readSecret(path, KEY, ", and copy it to the pool's vaults"));
  }

  sign(entry: Entry): SignedEntry {
    const statement = Buffer.from(JSON.stringify(entry));
    return { statement, signature: this.#signing.sign(signed(statement)) };
  }

  /** Returns a token that only the vault with this certificate (its SHA-256) accepts, so that an impostor cannot use it. */
  tokenFor(fingerprint: Buffer): string {
    return createHmac("sha256", this.#tokens).update(fingerprint).digest("base64url");
  }

  isTokenFor(fingerprint: Buffer, token: string): boolean {
    const [given, own] = [Buffer.from(token), Buffer.from(this.tokenFor(fingerprint))];
    return given.length === own.length && timingSafeEqual(given, own);
  }
}

function signed(statement: Buffer): Buffer {
  return Buffer.concat([Buffer.from(CONTEXT), statement]);
}

/** Returns null where the key did not sign the entry, or its content cannot be used. */
export function openEntry(publicKey: Buffer, { statement, signature }: SignedEntry): Entry | null {
  if (statement.length > STATEMENT_BYTES_MAX) return null;
  try {
    if (!isSignedBy(publicKey, signed(statement), signature)) return null;
    const entry = JSON.parse(statement.toString()) as Entry;
    return isSound(entry) ? entry : null;
  } catch {
    // The key, signature or JSON is malformed.
    return null;
  }
}

function isSound(entry: Entry): boolean {
  if (!Number.isSafeInteger(entry.version) || entry.version < 1) return false;
  if (typeof entry.gone !== "boolean") return false;
  if (entry.kind === "machine") return isSoundMachine(entry);
  if (entry.kind === "flush") return isSoundFlush(entry);
  const { address, class: of, certificate } = entry;
  const isCertificate = certificate === null || typeof certificate === "string";
  return entry.kind === "vault" && isVaultClass(of) && isCertificate && isAddress(address);
}

function isSoundMachine({ digest, name, role }: MachineEntry): boolean {
  const isNamed = /^[\w.-]+$/.test(name) && name.length <= MACHINE_NAME_CHARS_MAX;
  return isNamed && isRole(role) && /^[\da-f]{64}$/.test(digest);
}

function isSoundFlush(entry: FlushEntry): boolean {
  const { id, atMs, namespace, recordClass, model, tenant } = entry;
  const isName = namespace === null || /^[\da-f]{64}$/.test(namespace);
  const isModel = typeof model === "string" && Buffer.byteLength(model) <= NAME_BYTES_MAX;
  const isKnown = isFlushId(id) && Number.isSafeInteger(atMs) && atMs >= 0;
  return isKnown && isName && isModel && [0, 1, 2].includes(recordClass) && isTenant(tenant);
}

export function isFlushId(text: unknown): boolean {
  return typeof text === "string" && /^[\da-f]{32}$/.test(text);
}

function isAddress(text: unknown): boolean {
  if (typeof text !== "string" || !/^[\w.:[\]-]{3,300}$/.test(text)) return false;
  const { host, port } = splitAddress(text);
  return host !== "" && Number.isInteger(port) && port >= 1 && port <= 65_535;
}
