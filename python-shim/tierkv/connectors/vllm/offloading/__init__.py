"""A tier behind vLLM's own offloading (experimental)."""
