// Owns a vault's answer to a look-up: keys it holds, keys only its archive has, and how long those take.
import { newBitmap } from "../base/block.ts";

/** Time to read an archive, in milliseconds, as the vault measured it. */
export interface FarPace {
  /** Time until the first record has come. */
  firstMs: number;
  /** Time from one record to the next. */
  nextMs: number;
}

/** Purpose of a look-up. */
export interface LookupFor {
  /** Context of the span that asks; null: no span. */
  trace: Buffer | null;
  /** False for a look-up that no request caused: the vault's hit rate leaves it out. */
  isCounted: boolean;
}

export type LookupAsked = [namespace: Buffer, keys: Buffer, deadlineMs: number, asks?: LookupFor];

export const OF_A_REQUEST: LookupFor = { trace: null, isCounted: true };
export const UNCOUNTED: LookupFor = { trace: null, isCounted: false };

export interface Found {
  /** Bitmap of the keys held. */
  present: Buffer;
  /** Bitmap of the keys only the archive has; null: none. */
  far: Buffer | null;
  /** null: no key is far, or the archive has not been read yet. */
  pace: FarPace | null;
}

/** Reads one answer over lanes, whose length the native side has checked. */
export function readFound(data: Buffer, keys: number): Found {
  const bytes = Math.ceil(keys / 8);
  if (data.length === bytes) return { present: data, far: null, pace: null };
  const [firstUs, nextUs] = [data.readUInt32LE(2 * bytes), data.readUInt32LE(2 * bytes + 4)];
  return {
    present: data.subarray(0, bytes),
    far: data.subarray(bytes, 2 * bytes),
    pace: firstUs === 0 ? null : { firstMs: firstUs / 1000, nextMs: nextUs / 1000 },
  };
}

/** Joins the answers to parts of a look-up; each part but the last fills whole bytes. */
export function joinFound(parts: readonly Found[]): Found {
  const farOf = ({ far, present }: Found): Buffer => far ?? newBitmap(present.length * 8);
  return {
    present: Buffer.concat(parts.map(({ present }) => present)),
    far: parts.some(({ far }) => far !== null) ? Buffer.concat(parts.map(farOf)) : null,
    pace: parts.find(({ pace }) => pace !== null)?.pace ?? null,
  };
}
