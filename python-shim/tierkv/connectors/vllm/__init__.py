"""The vLLM connector: thin code inside the engine; every decision about bytes is the sidecar's."""
