// Owns the kind of value that names machines to wake: a vault's host, and the address of its network card.
import type { Sleeper } from "../base/hosts.ts";
import { POOL_CLIENTS_MAX } from "../base/limits/pool.ts";
import { badValue, wrongType } from "./kinds.ts";
import type { Kind } from "./kinds.ts";

const SAMPLE = "192.168.1.10=00:11:22:aa:bb:cc";
const MAC = /^[0-9a-f]{2}(?:[:-][0-9a-f]{2}){5}$/i;

export const sleepers: Kind<readonly Sleeper[]> = {
  describe: `list of \`"host=address of its network card"\`, at most ${POOL_CLIENTS_MAX}`,
  parse(raw, key) {
    const fix = `write ${key} = ["${SAMPLE}"]`;
    if (!Array.isArray(raw)) return wrongType("a list of texts in brackets", fix);
    if (raw.length > POOL_CLIENTS_MAX)
      return badValue(`${raw.length} machines, at most ${POOL_CLIENTS_MAX}`, fix);
    const value: Sleeper[] = [];
    for (const item of raw as readonly unknown[]) {
      const [host = "", mac = ""] = typeof item === "string" ? item.split("=") : [];
      if (host === "" || !MAC.test(mac))
        return badValue(`${JSON.stringify(item)} is no "host=aa:bb:cc:dd:ee:ff"`, fix);
      value.push({ host, mac: mac.replaceAll(/[:-]/g, "") });
    }
    return { value };
  },
};
