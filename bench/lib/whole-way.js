// Owns two waits of benches that use a whole sidecar: for a touched arena, and for a finished save.
import { setTimeout as sleep } from "node:timers/promises";

const CALL_MS = 30_000;
const SAVE_MS_MAX = 120_000;
const STATUS_POLL_MS = 5;
const TOUCH_POLL_MS = 50;

/** Waits until the sidecar has touched the whole arena, because untouched slots are slow and not leased. */
export async function touchAll(link, engine) {
  for (;;) {
    const { engines } = await link.status(CALL_MS);
    const { arena } = engines.find(({ id }) => id === engine);
    if (arena.touchedSlots === arena.slotCount) return;
    await sleep(TOUCH_POLL_MS);
  }
}

/** Saves blocks; resolves to their slots when the vault has accepted the last. */
export async function saveAll(shim, link, blocks) {
  const counters = async () => (await link.status(CALL_MS)).counters;
  const before = await counters();
  const slots = await shim.save(blocks);
  const untilMs = performance.now() + SAVE_MS_MAX;
  for (;;) {
    const now = await counters();
    const saved = now.blocks_saved - before.blocks_saved;
    if (saved === blocks.length) return slots;
    const dropped = Object.keys(now).filter(
      (name) => name.startsWith("dropped_") && now[name] > (before[name] ?? 0),
    );
    if (dropped.length > 0 || performance.now() > untilMs) {
      throw new Error(`${saved} of ${blocks.length} blocks were saved (${dropped.join(", ")})`);
    }
    await sleep(STATUS_POLL_MS);
  }
}
