// Owns asking the sidecar of this machine something: a connection as long as it takes.
import { VAULTS_SEEN_MS } from "../limits/pool.ts";
import type { SidecarStatus, VaultStatus } from "../sidecar/status.ts";
import { nowMs, sleep } from "../time.ts";
import type { SidecarLink } from "./sidecar-link.ts";

const POLL_MS = 50;

/** Throws SIDECAR_DOWN, or VERSION_MISMATCH. */
export async function askSidecar<T>(
  socket: string,
  work: (link: SidecarLink) => Promise<T>,
): Promise<T> {
  // Loaded here: who only declares commands must be able to say that the native core is missing.
  const { SidecarLink: Link } = await import("./sidecar-link.ts");
  const link = new Link(socket);
  try {
    await link.hello();
    return await work(link);
  } finally {
    link.close();
  }
}

/** Its account of itself, once its vaults have said how they are: it asks them only while somebody looks. */
export async function statusSeen(link: SidecarLink): Promise<SidecarStatus> {
  const endMs = nowMs() + VAULTS_SEEN_MS;
  for (;;) {
    const status = await link.status();
    const all = [...status.vaults.kv, ...status.vaults.ssm];
    const isUnseen = ({ state, seen }: VaultStatus): boolean => state !== "down" && seen === null;
    if (!all.some(isUnseen) || nowMs() > endMs) return status;
    await sleep(POLL_MS);
  }
}
