// Owns asking a sidecar for its account once its vaults have said how they are.
import { STATUS_TIMEOUT_MS } from "../limits/general.ts";
import { VAULTS_SEEN_MS } from "../limits/pool.ts";
import type { SidecarStatus, VaultStatus } from "../sidecar/status.ts";
import { nowMs, sleep } from "../time.ts";
import type { SidecarLink } from "./sidecar-link.ts";

const POLL_MS = 50;

/** The sidecar asks its vaults only while somebody looks: what it says first may be from before. */
export async function statusSeen(link: SidecarLink): Promise<SidecarStatus> {
  const endMs = nowMs() + VAULTS_SEEN_MS;
  for (;;) {
    const status = (await link.status(STATUS_TIMEOUT_MS)) as unknown as SidecarStatus;
    const all = [...status.vaults.kv, ...status.vaults.ssm];
    const isUnseen = ({ state, seen }: VaultStatus): boolean => state !== "down" && seen === null;
    if (!all.some(isUnseen) || nowMs() > endMs) return status;
    await sleep(POLL_MS);
  }
}
