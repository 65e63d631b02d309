// Owns the finding of `tierkv doctor` about PyTorch's allocator, read from the environment that engines inherit.
import type { Environment } from "../../config/field.ts";
import type { Finding } from "../../diagnosis/findings.ts";

/** Names before and since PyTorch 2.9; PyTorch reads both, vLLM refuses only the first. */
const VARIABLES = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"] as const;

/** vLLM refuses expandable segments with any KV connector, unless its own allocator keeps the cache out of them. */
export function allocatorFindings(env: Environment): Finding[] {
  return VARIABLES.filter((name) => /\bexpandable_segments:True\b/.test(env[name] ?? "")).map(
    (name) => {
      const what = `${name} has expandable_segments:True, with which vLLM starts no KV connector`;
      const fix =
        "unset it; where memory runs out in pieces without it (GB10 machines have hung), keep it and start vLLM with --enable-sleep-mode";
      return { code: "expandable_segments", severity: "note", text: `${what}: ${fix}` };
    },
  );
}
