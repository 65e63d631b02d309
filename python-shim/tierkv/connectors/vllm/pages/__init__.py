"""Where a block's bytes lie in the engine's memory, and their copies to and from arena slots."""
