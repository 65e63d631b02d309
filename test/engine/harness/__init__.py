"""Real parts for the engine tests: vault, sidecar and fault proxy, and engines forked from one import of vLLM."""
