// Owns the metrics of the process itself, under the names that every exporter uses.
import { readdirSync } from "node:fs";
import { nowMs, wallClockMs } from "../base/time.ts";
import { counter, gauge } from "./text.ts";
import type { Family } from "./text.ts";

/** Computed once, so that setting the clock does not move the start. */
const STARTED_S = Math.round(wallClockMs() - nowMs()) / 1000;

export function processFamilies(): Family[] {
  const { user, system } = process.cpuUsage();
  const files = openFiles();
  return [
    counter("process_cpu_seconds", "CPU time of the process, in seconds.", (user + system) / 1e6),
    gauge(
      "process_resident_memory_bytes",
      "Resident memory of the process, in bytes.",
      process.memoryUsage.rss(),
    ),
    gauge(
      "process_start_time_seconds",
      "Start time of the process, in seconds since 1970.",
      STARTED_S,
    ),
    ...(files === null
      ? []
      : [gauge("process_open_fds", "Open file descriptors, connections included.", files)]),
  ];
}

/** null: the system does not tell. */
function openFiles(): number | null {
  try {
    return readdirSync("/proc/self/fd").length;
  } catch {
    return null;
  }
}
