"""The halves that vLLM calls: beside its scheduler, and in each worker."""
