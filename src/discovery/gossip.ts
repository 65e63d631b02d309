// Owns how a pool's vaults keep one list: each sends its changes to the others, and asks one of them from time to time.
import { X509Certificate } from "node:crypto";
import type { VaultClass } from "../base/block.ts";
import { toTierkvError } from "../base/errors.ts";
import type { TierkvError } from "../base/errors.ts";
import { splitAddress } from "../base/hosts.ts";
import {
  ADMIT_WAIT_MS,
  GOSSIP_EVERY_MS,
  GOSSIP_RETRY_MS,
  GOSSIP_TIMEOUT_MS,
  LISTED_FLUSHES_MAX,
  LISTED_MACHINES_MAX,
  LISTED_VAULTS_MAX,
  STATEMENT_BYTES_MAX,
} from "../base/limits/pool.ts";
import type { Logger } from "../base/log.ts";
import { isAbsent, readPrivate, writePrivate } from "../base/private-file.ts";
import { jitterMs, nowMs, sleep } from "../base/time.ts";
import { askOnce } from "../client/vault/ask.ts";
import { certificateAt, fingerprintOf, pemOf } from "../client/vault/certificate.ts";
import type { GossipReply, GossipRequest, SignedEntry } from "../wire/messages.ts";
import type { ChannelSecurity } from "../wire/security.ts";
import { vaultService } from "../wire/service.ts";
import { Book } from "./book.ts";
import type { Entry, PoolKey, VaultEntry } from "./entry.ts";

const KEY = "[vault] state_dir";
/** Worst case: JSON escapes every byte of each statement. */
const FILE_BYTES_MAX =
  (LISTED_VAULTS_MAX + LISTED_MACHINES_MAX + LISTED_FLUSHES_MAX) * (STATEMENT_BYTES_MAX * 2 + 128);

export interface GossipOptions {
  key: PoolKey;
  /** Vaults of the pool asked first; one that runs is enough. */
  peers: readonly string[];
  /** File that keeps the list. */
  file: string;
  /** PEM; null: the pool speaks in the clear. */
  certificate: Buffer | null;
  logger: Logger;
  /** Called when entries came that the pool's key did not sign. */
  onRefused(count: number): void;
}

export interface OwnVault {
  address: string;
  class: VaultClass;
}

export class Gossip {
  readonly key: PoolKey;
  readonly book: Book;
  readonly #options: GossipOptions;
  readonly #certificate: string | null;
  readonly #closing = new AbortController();
  readonly #listeners = new Set<() => void>();
  /** Vaults that show another certificate than the list has. */
  readonly #changed = new Set<string>();
  #own: OwnVault | null = null;
  /** Vaults that refuse this one, by its token. */
  readonly #refusing = new Set<string>();
  #isOut = false;
  #isFull = false;
  #putMs = -GOSSIP_EVERY_MS;
  #turn = 0;

  /** Throws CREDENTIALS for a list that cannot be read. */
  constructor(options: GossipOptions) {
    this.#options = options;
    this.key = options.key;
    this.book = new Book(options.key.publicKey);
    const { certificate, file } = options;
    this.#certificate = certificate === null ? null : pemOf(new X509Certificate(certificate).raw);
    if (!isAbsent(file, KEY))
      this.book.take(parse(readPrivate(file, KEY, { bytesMax: FILE_BYTES_MAX })));
  }

  /** Calls `onChange` after each change. */
  listen(onChange: () => void): void {
    this.#listeners.add(onChange);
  }

  /** Asks all others for entries, before this vault serves; resolves when each has answered or failed. Never rejects. */
  async catchUp(): Promise<void> {
    await Promise.all(this.#others().map((address) => this.#exchange(address)));
  }

  /** Adds this vault, which serves now, to the list unless it was taken out. */
  start(own: OwnVault): void {
    this.#own = own;
    void this.#run();
  }

  close(): void {
    this.#closing.abort();
  }

  isToken(token: string): boolean {
    const certificate = this.#certificate;
    return certificate !== null && this.key.isTokenFor(fingerprintOf(certificate), token);
  }

  /** Answers another vault, and takes the entries that it sends. */
  answer({ digest, entries }: GossipRequest): GossipReply {
    this.#take(entries);
    return { entries: this.book.digest.equals(digest) ? [] : this.book.all() };
  }

  /** Signs an entry and sends it to all others. */
  put(entry: Entry): void {
    this.#take([this.key.sign(entry)]);
    for (const address of this.#others()) void this.#exchange(address);
  }

  /** Takes a vault out, or lets it in again, once it knows what it missed; false: none has that address. */
  async admit(address: string, gone: boolean): Promise<boolean> {
    if (this.book.vault(address) === null) return false;
    // Its own entry may be newer; a vault that is away hears of it later.
    if (!gone && address !== this.#own?.address)
      await Promise.race([this.#exchange(address), sleep(ADMIT_WAIT_MS)]);
    const known = this.book.vault(address);
    if (known !== null && known.gone !== gone)
      this.put({ ...known, gone, version: known.version + 1 });
    return true;
  }

  async #run(): Promise<void> {
    const { signal } = this.#closing;
    // A first call tells this vault whether it was taken out, and its last version.
    await this.#askPeers();
    this.#checkOwn();
    while (!signal.aborted) {
      const isAlone = this.#options.peers.length > 0 && this.#members().length <= 1;
      const waitMs = isAlone ? GOSSIP_RETRY_MS : jitterMs(GOSSIP_EVERY_MS / 2, GOSSIP_EVERY_MS);
      await sleep(waitMs, signal).catch(() => {});
      if (signal.aborted) return;
      this.#checkOwn();
      const others = this.#others();
      this.#turn += 1;
      const next = others[this.#turn % others.length];
      if (next !== undefined) await this.#exchange(next);
    }
  }

  /** Resolves when one of them has answered, or all have failed. */
  async #askPeers(): Promise<void> {
    const asked = this.#others().map(async (address) => {
      if (!(await this.#exchange(address))) throw new Error("no answer");
    });
    await Promise.any(asked).catch(() => {});
  }

  #members(): VaultEntry[] {
    return this.book.vaults.filter(({ gone }) => !gone);
  }

  #others(): string[] {
    const all = [...this.#options.peers, ...this.#members().map(({ address }) => address)];
    return [...new Set(all)].filter((address) => address !== this.#own?.address);
  }

  /** Returns false where the vault did not answer; never rejects. */
  async #exchange(address: string): Promise<boolean> {
    try {
      const { security, isKnown } = await this.#way(address);
      const asked = { name: "the", address, security, timeoutMs: GOSSIP_TIMEOUT_MS };
      // Entries hold digests of tokens, so only a vault whose certificate the pool knows gets them.
      const entries = isKnown ? this.book.all() : [];
      const request = { digest: isKnown ? this.book.digest : Buffer.alloc(0), entries };
      const reply = await askOnce(asked, vaultService.Gossip, request);
      if (this.#closing.signal.aborted) return false;
      this.#changed.delete(address);
      this.#refusing.delete(address);
      this.#take(reply.entries);
      // An entry without a certificate would leave it unknown, however often it is asked.
      const isNews = !isKnown && (this.book.vault(address)?.certificate ?? null) !== null;
      return isNews ? await this.#exchange(address) : true;
    } catch (error) {
      const known = this.book.vault(address);
      if (toTierkvError(error).code === "VAULT_CERTIFICATE" && known !== null)
        this.#changed.add(address);
      this.#sayFailure(toTierkvError(error), address);
      return false;
    }
  }

  /** Warns once of a vault that refuses this one, because neither then hears of the other's flushes. */
  #sayFailure(err: TierkvError, vault: string): void {
    const { logger } = this.#options;
    if (err.code !== "VAULT_LOCKED" || this.#refusing.has(vault)) {
      logger.debug({ err, vault }, "no gossip");
      return;
    }
    this.#refusing.add(vault);
    const fix = "the file of [vault] pool_key must be the same at both";
    logger.warn(
      { vault, fix },
      "another vault of the pool refuses this vault: neither hears of the other's flushes and joins",
    );
  }

  /** Other vaults of the pool, each with the security that the list gives for it. */
  get others(): { entry: VaultEntry; security: ChannelSecurity | null }[] {
    return this.#members()
      .filter(({ address }) => address !== this.#own?.address)
      .map((entry) => {
        const { address, certificate } = entry;
        const isOpen = certificate === null || this.#certificate === null;
        return { entry, security: isOpen ? null : this.#pinned(address, certificate) };
      });
  }

  /** Pins the certificate of the list, or else the one shown, which an entry must confirm. */
  async #way(address: string): Promise<{ security: ChannelSecurity | null; isKnown: boolean }> {
    if (this.#certificate === null) return { security: null, isKnown: true };
    const known = this.#changed.has(address)
      ? null
      : (this.book.vault(address)?.certificate ?? null);
    const pem = known ?? pemOf(await certificateAt(address, GOSSIP_TIMEOUT_MS));
    return { security: this.#pinned(address, pem), isKnown: known !== null };
  }

  #pinned(address: string, pem: string): ChannelSecurity {
    const token = this.key.tokenFor(fingerprintOf(pem));
    return {
      caPem: Buffer.from(pem),
      serverName: splitAddress(address).host,
      isPinned: true,
      certPem: null,
      keyPem: null,
      token: () => token,
    };
  }

  #take(entries: readonly SignedEntry[]): void {
    const { logger, onRefused, file } = this.#options;
    const before = new Set(this.#others());
    const { isChanged, refused, left } = this.book.take(entries);
    if (left > 0 && !this.#isFull) {
      this.#isFull = true;
      const fix = `to forget removed ones, stop the pool's vaults, and remove ${file} at each`;
      const most = `${LISTED_VAULTS_MAX} vaults and ${LISTED_MACHINES_MAX} machines`;
      logger.warn({ left, fix }, `a pool's list has no room: ${most}, removed ones included`);
    }
    if (refused > 0) {
      logger.warn({ refused }, "entries of a pool's list were refused: its key did not sign them");
      onRefused(refused);
    }
    if (!isChanged) return;
    try {
      writePrivate(file, `${JSON.stringify(this.book.all().map(textOf))}\n`, KEY);
    } catch (error) {
      logger.warn({ err: toTierkvError(error) }, "the pool's list is not kept over a restart");
    }
    for (const listener of this.#listeners) listener();
    if (this.#own === null) return;
    this.#checkOwn();
    for (const address of this.#others()) if (!before.has(address)) void this.#exchange(address);
  }

  /** Corrects this vault's own entry, unless it was taken out. */
  #checkOwn(): void {
    const own = this.#own;
    if (own === null) return;
    const known = this.book.vault(own.address);
    const { logger } = this.#options;
    if (known?.gone === true) {
      const fix = `\`tierkv vaults add ${own.address}\` on another machine lets it in again`;
      if (!this.#isOut) logger.warn({ fix }, "this vault was taken out of its pool");
      this.#isOut = true;
      return;
    }
    this.#isOut = false;
    const isSame = known?.class === own.class && known.certificate === this.#certificate;
    // Limits the rate, because two vaults that claim one address would go on for ever.
    if (isSame || nowMs() - this.#putMs < GOSSIP_EVERY_MS) return;
    this.#putMs = nowMs();
    const version = (known?.version ?? 0) + 1;
    const entry = { kind: "vault", ...own, certificate: this.#certificate, gone: false } as const;
    this.put({ ...entry, version });
  }
}

/** An entry as the file has it. */
interface EntryText {
  statement: string;
  signature: string;
}

function textOf({ statement, signature }: SignedEntry): EntryText {
  return { statement: statement.toString(), signature: signature.toString("base64") };
}

/** Returns nothing for a damaged file, because its entries would not be signed either. */
function parse(text: string): SignedEntry[] {
  try {
    return (JSON.parse(text) as EntryText[]).map(({ statement, signature }) => {
      return { statement: Buffer.from(statement), signature: Buffer.from(signature, "base64") };
    });
  } catch {
    return [];
  }
}
