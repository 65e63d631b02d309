// Owns the line of `tierkv doctor` about one rail to a vault; needs no native core.
import { showMs, showRate } from "../../base/text.ts";
import type { RailBench } from "./rails.ts";

export function describeRail(rail: RailBench): string {
  const { address, local, error, rttMs, fromBytesPerS, toBytesPerS, mtu } = rail;
  const way = `  way to ${address}${local === null ? "" : ` from ${local}`}`;
  if (error !== null) return `${way}: left out: ${error}`;
  const [from, to] = [fromBytesPerS, toBytesPerS].map((rate) => showRate(rate ?? 0));
  const packets = mtu === null ? "" : `, packets up to ${mtu} (MTU)`;
  return `${way}: ${from} from it, ${to} to it, an answer takes ${showMs(rttMs ?? 0)}${packets}`;
}
