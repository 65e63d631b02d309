"""vLLM's interface as each release has it, and the data that vLLM carries between the shim's two halves."""
