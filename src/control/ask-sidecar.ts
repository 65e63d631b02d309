// Owns requests to this machine's sidecar: one connection per command, and polling until the answer is complete.
import { TierkvError } from "../base/errors.ts";
import { VAULTS_SEEN_MS } from "../base/limits/pool.ts";
import { FIDELITY_POLL_MS, FIDELITY_QUIET_POLLS, FIDELITY_SAVE_MS } from "../base/limits/tools.ts";
import { nowMs, sleep } from "../base/time.ts";
import type { SidecarStatus, VaultStatus } from "../sidecar/status.ts";
import type { SidecarLink } from "./sidecar-link.ts";

const POLL_MS = 50;

/** Runs `work` with a connection to the sidecar. Throws SIDECAR_DOWN, or VERSION_MISMATCH. */
export async function askSidecar<T>(
  socket: string,
  work: (link: SidecarLink) => Promise<T>,
): Promise<T> {
  // Loaded here, because declaring the commands must work without the native core, to report that it is missing.
  const { SidecarLink: Link } = await import("./sidecar-link.ts");
  const link = new Link(socket);
  try {
    await link.hello();
    return await work(link);
  } finally {
    link.close();
  }
}

/** The sidecar's status, once every vault has answered or failed since this call: the sidecar asks vaults only while a command asks. */
export async function statusSeen(link: SidecarLink): Promise<SidecarStatus> {
  const begunMs = nowMs();
  for (;;) {
    const status = await link.status();
    const all = [...status.vaults.kv, ...status.vaults.ssm];
    const spentMs = nowMs() - begunMs;
    const isUnseen = ({ lookedMs }: VaultStatus): boolean =>
      lookedMs === null || lookedMs > spentMs;
    if (!all.some(isUnseen) || spentMs > VAULTS_SEEN_MS) return status;
    await sleep(POLL_MS);
  }
}

/** Waits for saves, which are fire and forget: they are over when the queue is empty and no counter grows. */
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
