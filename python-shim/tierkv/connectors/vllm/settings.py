"""What the shim reads for itself: where the sidecar listens. Everything else is the sidecar's to know."""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Settings:
    """`socket`: path of the sidecar's Unix socket; `source`: where that came from, for messages."""

    socket: str
    source: str


def default_socket() -> str:
    """The same rule as `src/config`: the user's run-time directory if there is one, else a private one in /tmp."""
    runtime_dir = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime_dir and os.path.isdir(runtime_dir):
        return os.path.join(runtime_dir, "tierkv", "sidecar.sock")
    return f"/tmp/tierkv-{os.getuid()}/sidecar.sock"


def load_settings(extra_config: Mapping[str, Any]) -> Settings:
    """Reads `config_path` (a tierkv.toml) or `socket` from `kv_connector_extra_config`.

    Raises ValueError naming key, value and fix, so that a typo ends vLLM's start instead of silently caching nothing.
    """
    unknown = sorted(set(extra_config) - {"config_path", "socket"})
    if unknown:
        raise ValueError(
            f"kv_connector_extra_config: unknown key {unknown[0]!r}; TierKVConnector knows 'config_path' "
            "(path of a tierkv.toml) and 'socket' (path of the sidecar's socket)"
        )
    if (socket := extra_config.get("socket")) is not None:
        return Settings(
            _text("kv_connector_extra_config.socket", socket), "kv_connector_extra_config.socket"
        )
    path = extra_config.get("config_path")
    if path is None:
        return Settings(default_socket(), "default")
    return _from_toml(_text("kv_connector_extra_config.config_path", path))


def _from_toml(path: str) -> Settings:
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(
            f"kv_connector_extra_config.config_path = {path!r}: {error.strerror}; "
            "give the path of a readable tierkv.toml"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(
            f"kv_connector_extra_config.config_path = {path!r}: not valid TOML: {error}; "
            f"run `tierkv config check --config {path}`"
        ) from None
    sidecar = document.get("sidecar", {})
    if not isinstance(sidecar, dict) or "socket" not in sidecar:
        return Settings(default_socket(), f"default ({path} names no [sidecar] socket)")
    return Settings(os.path.expanduser(_text(f"{path}: sidecar.socket", sidecar["socket"])), path)


def _text(key: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{key} = {value!r}: expected a path in quotes")
    return value
