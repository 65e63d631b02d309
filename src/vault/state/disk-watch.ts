// Owns the log lines about a vault's disk: records recovered at start, write failures, records lost at the end.
import { existsSync, statSync } from "node:fs";
import { join } from "node:path";
import { archiveTrouble } from "../../base/archive-remedies.ts";
import { DISK_WATCH_MS } from "../../base/limits/general.ts";
import type { Logger } from "../../base/log.ts";
import { storeDiskStats } from "../../base/native.ts";
import type { StoreDiskStats, StoreId } from "../../base/native.ts";
import { nowMs } from "../../base/time.ts";

const FIX = "free room there, or lower [vault] disk_bytes; what memory holds is served meanwhile";
const GONE =
  "its directory was removed, emptied or replaced, so that new records are lost at the next start: stop the vault, put the directory back or an empty one in its place, and start the vault";
const TOO_MANY =
  "it has had records of 65,536 namespaces since the vault started, and keeps records of further namespaces in memory only; start the vault again";
const TEST_DISK =
  "test the disk (`smartctl -t long`), or start the vault with [vault] data_dir on another one";
const FIX_ARCHIVE = "it is tried again";
/** The core's file that binds a directory to its archive (crates/core/src/disk/archived.rs). */
const MARKER = "archive";
/** File that the core locks while it uses the directory (crates/core/src/disk/storage.rs). */
const LOCK = "lock";

/** Looks every DISK_WATCH_MS and logs changes only, so that a disk that stays full makes one line. */
export class DiskWatch {
  readonly #store: StoreId;
  readonly #dataDir: string;
  readonly #logger: Logger;
  readonly #onRecorded: () => void;
  readonly #startedMs = nowMs();
  readonly #timer: NodeJS.Timeout;
  #isRecovering = true;
  #isFailing = false;
  #isArchiveFailing = false;
  /** Damaged records since the start. */
  #damaged = 0;
  /** Namespace last named as one too many. */
  #refused = "";
  /** Devices and inodes of the data directory and of its lock. */
  readonly #identity: string;
  /** Whether the directory or its lock was removed or replaced; writes to open files still succeed then. */
  isGone = false;
  /** Whether the store is being closed, at whose end it removes its lock. */
  #isClosing = false;

  /** `onRecorded` is called whenever disk and archive have recorded every flush. */
  constructor(store: StoreId, dataDir: string, logger: Logger, onRecorded: () => void = () => {}) {
    this.#onRecorded = onRecorded;
    this.#store = store;
    this.#dataDir = dataDir;
    this.#logger = logger;
    this.#identity = placesOf(dataDir);
    this.#timer = setInterval(() => this.look(), DISK_WATCH_MS);
    this.#timer.unref();
  }

  /** Logs the changes since the last look. */
  look(): void {
    const now = storeDiskStats(this.#store);
    if (now === null || now === undefined) return;
    const dataDir = this.#dataDir;
    if (this.#isRecovering && !now.isRecovering) {
      this.#isRecovering = false;
      const { records, recordBytes: bytes } = now;
      const seconds = Number(((nowMs() - this.#startedMs) / 1000).toFixed(1));
      this.#logger.info({ dataDir, records, bytes, seconds }, `recovered ${records} records`);
      if (now.archive === undefined) this.#lookForMarker();
    }
    if (now.areFlushesRecorded) this.#onRecorded();
    this.#lookAtArchive(now.archive);
    this.#lookAtNamespaces(now.refusedNamespace);
    this.#lookAtDirectory();
    this.#lookAtDamage(now.quarantined);
    if (now.isFailing === this.#isFailing) return;
    this.#isFailing = now.isFailing;
    const { queued, queuedBytes, trouble } = now;
    if (now.isFailing) {
      const seen = { dataDir, error: trouble, queued, queuedBytes };
      const fix = this.isGone ? "its directory is gone, see above" : FIX;
      this.#logger.error(seen, `the disk takes no more records: ${trouble}; ${fix}`);
    } else {
      this.#logger.info({ dataDir, queued, queuedBytes }, "the disk takes records again");
    }
  }

  #lookForMarker(): void {
    const file = join(this.#dataDir, MARKER);
    if (!existsSync(file)) return;
    this.#logger.warn(
      { dataDir: this.#dataDir },
      `this disk belongs to the archive that ${file} names, and [vault] archive names none: records that only the archive has are not found; write that line again`,
    );
  }

  #lookAtNamespaces(refused: Buffer | undefined): void {
    const namespace = refused?.toString("hex") ?? "";
    if (namespace === "" || namespace === this.#refused) return;
    this.#refused = namespace;
    const dataDir = this.#dataDir;
    this.#logger.error(
      { dataDir, namespace },
      `the disk takes no records of ${namespace}: ${TOO_MANY}`,
    );
  }

  /** Damage to a few records is a failing disk's first sign. */
  #lookAtDamage(damaged: number): void {
    const more = damaged - this.#damaged;
    this.#damaged = damaged;
    if (!(more > 0)) return;
    this.#logger.error(
      { dataDir: this.#dataDir, more, damaged },
      `${more} damaged records were found on disk and dropped, ${damaged} since the start: ${TEST_DISK}`,
    );
  }

  #lookAtDirectory(): void {
    const dataDir = this.#dataDir;
    if (this.isGone || this.#isClosing || placesOf(dataDir) === this.#identity) return;
    this.isGone = true;
    this.#logger.error({ dataDir }, `the disk takes no more records: ${GONE}`);
  }

  #lookAtArchive(archive: StoreDiskStats["archive"]): void {
    if (archive === undefined || archive.isFailing === this.#isArchiveFailing) return;
    this.#isArchiveFailing = archive.isFailing;
    const { trouble: error, pendingBytes } = archive;
    if (archive.isFailing) {
      this.#logger.error(
        { error, pendingBytes },
        `the archive fails: ${archiveTrouble(error)}; ${FIX_ARCHIVE}`,
      );
    } else {
      this.#logger.info({ pendingBytes }, "the archive answers again");
    }
  }

  /** Called before the last drain, which removes the store's lock. */
  beforeDrain(): void {
    this.look();
    this.#isClosing = true;
  }

  /** Called after the last drain, so that records still queued are lost and logged. */
  close(): void {
    clearInterval(this.#timer);
    this.look();
    const { queued = 0, queuedBytes = 0, trouble = "" } = storeDiskStats(this.#store) ?? {};
    if (queued === 0) return;
    const lost = { dataDir: this.#dataDir, error: trouble, records: queued, bytes: queuedBytes };
    this.#logger.error(lost, `${queued} records were not written to disk and are lost`);
  }
}

/** The lock stands for all files: whoever empties the directory removes it, too. */
function placesOf(dataDir: string): string {
  return `${identityOf(dataDir)} ${identityOf(join(dataDir, LOCK))}`;
}

function identityOf(path: string): string | null {
  const stats = statSync(path, { throwIfNoEntry: false });
  return stats === undefined ? null : `${stats.dev}:${stats.ino}`;
}
