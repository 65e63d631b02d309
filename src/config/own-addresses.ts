// Owns the kind of a list of IP addresses of this machine.
import { isIP } from "node:net";
import type { Kind, Problem } from "./kinds.ts";

/** Different ones, at most `countMax`, without ports. */
export function ownAddresses(countMax: number, sample: string): Kind<readonly string[]> {
  return {
    describe: `list of IP addresses, at most ${countMax}`,
    parse(raw, key) {
      const fix = `write ${key} = ["${sample}"]`;
      if (!Array.isArray(raw) || !raw.every((one) => typeof one === "string"))
        return { problem: { expected: "a list of IP addresses in quotes, in brackets", fix } };
      const bad = (reason: string): { problem: Problem } => ({ problem: { reason, fix } });
      if (raw.length > countMax) return bad(`${raw.length} addresses, at most ${countMax}`);
      const named = raw.find((one) => isIP(one) === 0);
      if (named !== undefined) return bad(`${named} is no IP address`);
      const twice = raw.find((one, index) => raw.indexOf(one) !== index);
      return twice === undefined ? { value: raw } : bad(`${twice} stands there twice`);
    },
  };
}
