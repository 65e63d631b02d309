// Owns waiting until a sidecar has stored what an engine computed, for commands that send prompts.
import { TierkvError } from "../errors.ts";
import { FIDELITY_POLL_MS, FIDELITY_QUIET_POLLS, FIDELITY_SAVE_MS } from "../limits/tools.ts";
import { nowMs, sleep } from "../time.ts";
import type { SidecarLink } from "./sidecar-link.ts";

/** Saves are fire and forget: over when nothing is queued and no count grows. */
export async function untilSaved(link: SidecarLink): Promise<void> {
  const startedMs = nowMs();
  let before = "";
  let quiet = 0;
  while (quiet < FIDELITY_QUIET_POLLS) {
    if (nowMs() - startedMs > FIDELITY_SAVE_MS) {
      const reason = `the sidecar still saves after ${FIDELITY_SAVE_MS / 1000} s; is the engine in use?`;
      throw new TierkvError("ENGINE_ANSWER", { reason });
    }
    await sleep(FIDELITY_POLL_MS);
    const { saves, counters } = await link.status();
    const now = `${counters["blocks_saved"] ?? 0} ${counters["saves_present"] ?? 0}`;
    quiet = saves.queuedBlocks === 0 && now === before ? quiet + 1 : 0;
    before = now;
  }
}
