// Owns the look at a set-up by a command: whom it waits for is said after two seconds.
import type { Config } from "../../config/config.ts";
import type { Seen } from "../../diagnosis/inspect.ts";
import type { Io } from "./io.ts";
import { whileWaiting } from "./progress.ts";

/** Resolves to vaults that names of the configuration stand for: that their list is waited for is said after two seconds. */
export async function listed<T>(io: Io, list: () => Promise<T>): Promise<T> {
  return await whileWaiting(io, () => LIST, list);
}

const LIST = "the list of vaults";

export async function look(config: Config, io: Io): Promise<Seen> {
  const { inspect } = await import("../../diagnosis/inspect.ts");
  let waiting: readonly string[] = [LIST];
  return await whileWaiting(
    io,
    () => (waiting.length === 0 ? "the sidecar" : waiting.join(", ")),
    () =>
      inspect(config, (addresses) => {
        waiting = addresses;
      }),
  );
}
