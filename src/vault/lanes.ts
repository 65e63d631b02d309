// Owns the lanes of one vault as TypeScript sees them: where they are, who may come in, how they end; no record passes here.
import { chmodSync } from "node:fs";
import { TierkvError, toTierkvError } from "../errors.ts";
import { LANE_PORT_STEP, LANES_POLL_MS } from "../limits.ts";
import type { Logger } from "../log.ts";
import {
  type LaneServerTls,
  laneServerAdmit,
  laneServerClose,
  laneServerDrain,
  laneServerOpen,
  laneServerStatus,
} from "../native.ts";
import { randomToken, sleep } from "../time.ts";

const TOKEN_BYTES = 32;
const UNIX_PREFIX = "unix:";
const PORT_MAX = 65_535;

/** beside: LANE_PORT_STEP above the port of the vault. */
export type LanePort = number | "beside";

interface LaneStore {
  store: number;
  maxRecordBytes: number;
  maxReservedBytes: number;
  /** What the lanes prove and demand; absent: they are in clear. */
  tls?: LaneServerTls | undefined;
}

interface Listen {
  host: string;
  port: number;
  text: string;
}

/** Where `beside` is taken it is any free port, with a word in the log. Throws LISTEN_FAILED. */
export function openLanes(
  vault: LaneStore & { logger: Logger },
  listen: Listen,
  port: LanePort,
): VaultLanes {
  if (port !== "beside") return new VaultLanes(vault, listen, port);
  const beside = listen.port + LANE_PORT_STEP;
  if (listen.port === 0 || beside > PORT_MAX) return new VaultLanes(vault, listen, 0);
  try {
    return new VaultLanes(vault, listen, beside);
  } catch (error) {
    const lanes = new VaultLanes(vault, listen, 0);
    const { message: reason } = toTierkvError(error);
    const words = "records travel on another port than the usual one: a firewall may not know it";
    vault.logger.warn({ address: lanes.address, reason }, words);
    return lanes;
  }
}

export class VaultLanes {
  /** As hello names it: `:port` on the host that the client knows, or `unix:/path`. */
  readonly address: string;
  readonly #id: number;
  #last: Readonly<Record<string, number>> = {};
  #isClosed = false;

  /** Listens on the host of `listen`, or on a socket beside its socket. Throws LISTEN_FAILED. */
  constructor(vault: LaneStore, listen: Omit<Listen, "port">, port: number) {
    const place = placeOf(listen, port);
    try {
      const opened = laneServerOpen(
        vault.store,
        place,
        vault.maxRecordBytes,
        vault.maxReservedBytes,
        vault.tls,
      );
      this.#id = opened.id;
      this.address = opened.address;
      // Its directory is ours alone; this is the second lock, as on the socket beside it.
      if (place.startsWith(UNIX_PREFIX)) chmodSync(place.slice(UNIX_PREFIX.length), 0o600);
    } catch (error) {
      const fix = "set [vault] lane_port to a free port of this machine, or 0";
      const { message: reason } = toTierkvError(error);
      throw new TierkvError("LISTEN_FAILED", { address: place, reason, fix }, { cause: error });
    }
  }

  /** A token that opens the lanes of one client, soon; without `mayStore` they only read. */
  admit(mayStore: boolean): Buffer {
    const token = randomToken(TOKEN_BYTES);
    if (!this.#isClosed) laneServerAdmit(this.#id, token, mayStore);
    return token;
  }

  /** Connections open now. */
  get open(): number {
    return this.#isClosed ? 0 : laneServerStatus(this.#id).lanes;
  }

  /** Counters by the names of the vault's own. */
  counts(): Readonly<Record<string, number>> {
    if (!this.#isClosed) this.#last = laneServerStatus(this.#id).counts;
    return this.#last;
  }

  /** Begins nothing new; resolves when what is under way has ended. */
  async drain(): Promise<void> {
    laneServerDrain(this.#id);
    while (!this.#isClosed && laneServerStatus(this.#id).requests > 0) await sleep(LANES_POLL_MS);
  }

  /** Cuts every lane. Idempotent. */
  close(): void {
    if (this.#isClosed) return;
    this.counts();
    this.#isClosed = true;
    laneServerClose(this.#id);
  }
}

function placeOf({ host, text }: { host: string; text: string }, port: number): string {
  if (text.startsWith(UNIX_PREFIX)) return `${text}.lanes`;
  return host.includes(":") ? `[${host}]:${port}` : `${host}:${port}`;
}
