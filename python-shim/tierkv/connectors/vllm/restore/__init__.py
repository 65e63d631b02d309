"""Restoring: when a load begins, what it is split into, and who waits for it."""
