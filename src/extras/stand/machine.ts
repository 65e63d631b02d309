// Owns a stand's facts about this machine: the usable cores, and their fastest arithmetic.
import { readFileSync } from "node:fs";
import { availableParallelism } from "node:os";

export interface Machine {
  /** Processor ids for vLLM's VLLM_CPU_OMP_THREADS_BIND. */
  cores: readonly number[];
  /** bfloat16 where the processor computes it; where it does not, float32 is several times faster. */
  dtype: "bfloat16" | "float32";
}

export function thisMachine(): Machine {
  const allowed = parseCores(
    /^Cpus_allowed_list:\s*(\S+)/m.exec(read("/proc/self/status"))?.[1] ?? "",
  );
  const cores = allowed.length > 0 ? allowed : [...Array(availableParallelism()).keys()];
  const quota = parseQuota(read("/sys/fs/cgroup/cpu.max"));
  return { cores: cores.slice(0, quota ?? cores.length), dtype: bestDtype(read("/proc/cpuinfo")) };
}

/** "0-2,5" as [0, 1, 2, 5]. */
export function parseCores(list: string): number[] {
  return list.split(",").flatMap((part) => {
    const [, first, last] = /^(\d+)(?:-(\d+))?$/.exec(part) ?? [];
    if (first === undefined) return [];
    const count = Number(last ?? first) - Number(first) + 1;
    return Array.from({ length: count }, (_none, index) => Number(first) + index);
  });
}

/** A container's share of the processors ("200000 100000" as 2, at least 1); null without a limit. */
export function parseQuota(text: string): number | null {
  const [, quota, period] = /^(\d+) (\d+)/.exec(text) ?? [];
  return quota === undefined ? null : Math.max(1, Math.floor(Number(quota) / Number(period)));
}

/** Chosen by the flags of x86 or the features of Arm. */
export function bestDtype(cpuinfo: string): Machine["dtype"] {
  const flags = /^(?:flags|Features)\s*:(.*)$/m.exec(cpuinfo)?.[1]?.split(" ") ?? [];
  const isFast = ["amx_bf16", "avx512_bf16", "bf16"].some((flag) => flags.includes(flag));
  return isFast ? "bfloat16" : "float32";
}

function read(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return "";
  }
}
