// Owns the counting of holes: blocks that a vault dropped in the middle of a prompt.
import { HASH_BYTES, hasBit } from "../../base/block.ts";
import type { RecordClass } from "../../base/block.ts";
import type { LookupGate, LookupGates } from "../vaults/vaults.ts";

/** Counts holes at the vaults that own them, for groups whose blocks need all blocks before them. */
export function countHoles(
  { class: recordClass, hashes, tail = 0 }: { class: RecordClass; hashes: Buffer; tail?: number },
  held: Buffer | undefined,
  { owners }: { owners: Uint8Array },
  { gates }: { gates: LookupGates },
  silent: ReadonlySet<LookupGate>,
): void {
  if (held === undefined || recordClass === "ssm" || tail > 0) return;
  let isBehind = false;
  for (let index = hashes.length / HASH_BYTES - 1; index >= 0; index -= 1) {
    if (hasBit(held, index)) isBehind = true;
    else if (isBehind) {
      const gate = gates[recordClass][owners[index] ?? 0];
      if (gate !== undefined && !silent.has(gate) && gate.state !== "down") gate.holes += 1;
    }
  }
}
