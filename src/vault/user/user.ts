// Owns the choice of sources of user activity on this machine.
import { othersLoad } from "./load.ts";
import { desktop, IOHID, LOGIND } from "./sessions.ts";
import { together } from "./source.ts";
import type { Source } from "./source.ts";
import { terminals } from "./terminals.ts";

/** Returns the union of the sources available here; the caller closes it. */
export async function userOfMachine(platform: NodeJS.Platform = process.platform): Promise<Source> {
  const asked = platform === "darwin" ? IOHID : LOGIND;
  const found = [terminals(), await desktop(asked), othersLoad()];
  return together(found.filter((source) => source !== null));
}
