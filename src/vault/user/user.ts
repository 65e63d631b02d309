// Owns which sources tell of this machine's user.
import { othersLoad } from "./load.ts";
import { desktop, IOHID, LOGIND } from "./sessions.ts";
import { together } from "./source.ts";
import type { Source } from "./source.ts";
import { terminals } from "./terminals.ts";

/** What can be heard here; close it. */
export async function userOfMachine(platform: NodeJS.Platform = process.platform): Promise<Source> {
  const asked = platform === "darwin" ? IOHID : LOGIND;
  const found = [terminals(), await desktop(asked), othersLoad()];
  return together(found.filter((source) => source !== null));
}
