"""tierKV's Python side: the shim inside the engine, and the laboratory its demo and tests share."""

__version__ = "0.1.0"
