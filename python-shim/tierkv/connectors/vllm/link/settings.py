"""Owns the settings that the shim reads itself: the sidecar's socket, whether to start it, and the form of states."""

import os
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from tierkv.connectors.vllm import limits

#: Forms of recurrent states: the values of `[turbo_quant] states`.
Form = Literal["raw", "bf16", "int8"]
_LABEL: Final = re.compile(rf"[\x21-\x7e]{{1,{limits.IDENTITY_CHARS_MAX}}}")
FORMS: Final[tuple[Form, ...]] = ("raw", "bf16", "int8")


@dataclass(frozen=True)
class Settings:
    """`socket`: path of the sidecar's Unix socket; `source`: its origin, for messages.

    `autostart`: whether to start a sidecar when none listens there, with the file at `config_path` if there is one.
    `states`: the form in which recurrent states are kept. `identity`: the operator's name for the model's weights, with
    which no file is read; empty: files are read.
    """

    socket: str
    source: str
    config_path: str | None = None
    autostart: bool = True
    states: Form = "raw"
    identity: str = ""

    @property
    def place(self) -> str:
        """The socket's path, whatever the working directory of whoever reads it."""
        return os.path.abspath(self.socket)


def default_socket() -> str:
    """By the rule of `src/config`, give the user's run-time directory if there is one, else a private one in /tmp."""
    runtime_dir = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime_dir and os.path.isdir(runtime_dir):
        return os.path.join(runtime_dir, "tierkv", "sidecar.sock")
    return f"/tmp/tierkv-{os.getuid()}/sidecar.sock"


def find_config() -> str | None:
    """Find the file where the sidecar finds its own, by the rule of `src/config`; None where there is none."""
    if given := os.environ.get("TIERKV_CONFIG", ""):
        return given
    home = os.environ.get("HOME") or os.path.expanduser("~")
    places = (Path("tierkv.toml"), Path(home, ".config", "tierkv", "tierkv.toml"))
    return next((str(place) for place in places if place.exists()), None)


def load_settings(extra_config: Mapping[str, Any]) -> Settings:
    """Reads `config_path` (a tierkv.toml), `socket` and `autostart` from `kv_connector_extra_config`.

    Without `config_path` the file is searched for as the sidecar does. These values override the
    file. Raises ValueError naming key, value and fix, so that a typo ends vLLM's
    start instead of silently caching nothing.
    """
    unknown = sorted(set(extra_config) - {"config_path", "socket", "autostart"})
    if unknown:
        raise ValueError(
            f"kv_connector_extra_config: unknown key {unknown[0]!r}; TierKVConnector knows 'config_path' "
            "(path of a tierkv.toml), 'socket' (path of the sidecar's socket) and 'autostart' (true or false)"
        )
    path = extra_config.get("config_path")
    found = Settings(default_socket(), "default")
    if path is not None:
        found = _from_toml(_text("kv_connector_extra_config.config_path", path))
    elif (usual := find_config()) is not None:
        found = _from_toml(usual)
    if (socket := extra_config.get("socket")) is not None:
        key = "kv_connector_extra_config.socket"
        found = replace(found, socket=_text(key, socket), source=key)
    if (autostart := extra_config.get("autostart")) is not None:
        key = "kv_connector_extra_config.autostart"
        found = replace(found, autostart=_switch(key, autostart))
    return found


def _from_toml(path: str) -> Settings:
    try:
        document = tomllib.loads(_read_own(path))
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
    table = document.get("sidecar", {})
    sidecar = table if isinstance(table, dict) else {}
    autostart = _switch(f"{path}: sidecar.autostart", sidecar.get("autostart", True))
    source = f"default ({path} names no [sidecar] socket)"
    socket = default_socket()
    if "socket" in sidecar:
        source = path
        socket = os.path.expanduser(_text(f"{path}: sidecar.socket", sidecar["socket"]))
    states, identity = _states(path, document), _identity(path, document)
    return Settings(socket, source, os.path.abspath(path), autostart, states, identity)


def _read_own(path: str) -> str:
    """Read a file that only this user and root can have written; raises ValueError for another."""
    with open(path, encoding="utf-8") as file:
        found = os.fstat(file.fileno())
        is_private_group = found.st_uid != 0 and found.st_gid == found.st_uid
        others = stat.S_IWOTH if is_private_group else stat.S_IWOTH | stat.S_IWGRP
        if found.st_uid not in (0, os.getuid()) or found.st_mode & others:
            raise ValueError(
                f"kv_connector_extra_config.config_path = {path!r}: user {found.st_uid} owns it, "
                f"with mode {found.st_mode & 0o777:o}, so others may have written it; make it yours, with mode 644"
            )
        return file.read()


def _states(path: str, document: Mapping[str, Any]) -> Form:
    """Give the form of states; without compression (`turbo_quant = false` in either spelling) they stay raw."""
    table = document.get("turbo_quant", {})
    named = table.get("states", "raw") if isinstance(table, dict) else "raw"
    form = next((form for form in FORMS if form == named), None)
    if form is None:
        raise ValueError(
            f"{path}: turbo_quant.states = {named!r}: expected one of {', '.join(map(repr, FORMS))}"
        )
    return "raw" if isinstance(table, dict) and table.get("enabled") is False else form


def _identity(path: str, document: Mapping[str, Any]) -> str:
    table = document.get("model", {})
    named = table.get("identity") if isinstance(table, dict) else None
    if named is None:
        return ""
    if not isinstance(named, str) or not _LABEL.fullmatch(named):
        raise ValueError(
            f"{path}: model.identity = {named!r}: expected 1 to {limits.IDENTITY_CHARS_MAX} ASCII characters without "
            'spaces, in quotes, such as "org/model@commit"'
        )
    return named


def _text(key: str, value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError(f"{key} = {value!r}: expected a path in quotes")
    return value


def _switch(key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{key} = {value!r}: expected true or false without quotes")  # noqa: TRY004 - as above
    return value
