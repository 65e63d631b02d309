// Owns what a vault answers to a look-up: what it holds, what of it only its archive has, and how long that takes.
import { newBitmap } from "../block.ts";

/** Milliseconds, as the vault measured them. */
export interface FarPace {
  /** Until one record is here. */
  firstMs: number;
  /** From one to the next. */
  nextMs: number;
}

/** What a look-up is for. */
export interface LookupFor {
  /** Context of the span that asks. */
  trace: Buffer | null;
  /** False: no request asks, so the vault's hit rate leaves it out. */
  isCounted: boolean;
}

export type LookupAsked = [namespace: Buffer, keys: Buffer, deadlineMs: number, asks?: LookupFor];

export const OF_A_REQUEST: LookupFor = { trace: null, isCounted: true };
export const UNCOUNTED: LookupFor = { trace: null, isCounted: false };

export interface Found {
  /** A bitmap over the keys. */
  present: Buffer;
  /** The same of what only the archive has; null: nothing. */
  far: Buffer | null;
  /** null: nothing is far, or nothing was read from there yet. */
  pace: FarPace | null;
}

/** Of one answer over lanes: the native side has checked its length. */
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

/** Of a question that was asked in parts, each of whole bytes but the last. */
export function joinFound(parts: readonly Found[]): Found {
  const farOf = ({ far, present }: Found): Buffer => far ?? newBitmap(present.length * 8);
  return {
    present: Buffer.concat(parts.map(({ present }) => present)),
    far: parts.some(({ far }) => far !== null) ? Buffer.concat(parts.map(farOf)) : null,
    pace: parts.find(({ pace }) => pace !== null)?.pace ?? null,
  };
}
