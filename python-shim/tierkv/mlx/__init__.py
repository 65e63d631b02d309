"""Owns tierKV for mlx-lm: prompt caches through the local sidecar and its vaults (docs/how-to/mlx.md)."""
