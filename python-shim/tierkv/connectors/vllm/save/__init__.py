"""Saving: which blocks are offered, and the references on them until they are copied."""
