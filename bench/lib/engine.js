// Owns the environment of a bench's engine: given cores, one process for all its parts, no network.

/** `cores`: the cores that its threads are bound to. */
export function engineEnvironment(cores) {
  return {
    VLLM_ENABLE_V1_MULTIPROCESSING: "0",
    ...boundTo(cores),
    VLLM_CPU_KVCACHE_SPACE: "1",
    VLLM_LOGGING_LEVEL: "WARNING",
    VLLM_NO_USAGE_STATS: "1",
    PYTHONHASHSEED: "0",
    HF_HUB_OFFLINE: "1",
    TRANSFORMERS_OFFLINE: "1",
    DO_NOT_TRACK: "1",
  };
}

/**
 * Settings that vLLM gives its worker processes (utils/ompmultiprocessing.py, 0.32); a worker in the engine's own
 * process ignores VLLM_CPU_OMP_THREADS_BIND and would compute on all cores.
 */
function boundTo(cores) {
  const list = cores.join(",");
  return {
    VLLM_CPU_OMP_THREADS_BIND: list,
    OMP_NUM_THREADS: String(cores.length),
    OMP_PLACES: `{${list}}`,
    OMP_PROC_BIND: "true",
  };
}
