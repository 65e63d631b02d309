"""Owns a worker's report of its configuration: one digest for each part, with every omission listed."""

import hashlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tierkv.connectors.vllm.api import compat
from tierkv.connectors.vllm.api.canonical import Canonical, UnnameableError, members
from tierkv.connectors.vllm.api.exempt import CONFIG, ENVIRONMENT, ENVIRONMENT_PREFIXES

log = logging.getLogger("tierkv.shim")

#: Hexadecimal digits of a part's digest: enough to tell parts apart in a log line, and in the name itself.
_DIGITS: Final = 32

#: The part "pages" where K and V of all pages are put in order, whatever the engine's own order.
CANONICAL: Final = "canonical"


@dataclass(frozen=True)
class Resolved:
    """`parts`: name of a part -> digest. `refused`: why there is no name, else empty.

    `socket`: the sidecar's socket as this process finds it; empty where it did not say.
    """

    parts: dict[str, str] = field(default_factory=dict)
    refused: str = ""
    socket: str = ""


def resolve(config: Any, environment: Mapping[str, str] | None = None) -> Resolved:
    """Digest the configuration as this process resolved it: call it in a worker, once the model is loaded.

    Everything counts except entries of `exempt`. Never raises.
    """
    try:
        return Resolved(_parts(config, os.environ if environment is None else environment))
    except UnnameableError as error:
        return Resolved(refused=str(error))
    except Exception as error:  # a configuration we cannot read must not end the engine's start
        log.exception("tierKV: the configuration cannot be read")
        return Resolved(refused=f"the configuration cannot be read ({error!r})")


def agreed(found: Mapping[int, Resolved], world: int) -> Resolved:
    """Give the parts common to all `world` ranks; a refusal where one has none or two differ."""
    for rank in range(world):
        one = found.get(rank, Resolved(refused="said nothing"))
        if one.refused:
            return Resolved(refused=f"rank {rank}: {one.refused}")
        if one.parts != found[0].parts:
            differ = [name for name in one.parts if one.parts[name] != found[0].parts.get(name)]
            return Resolved(refused=f"ranks 0 and {rank} run with different {', '.join(differ)}")
    return found[0]


def reaching(found: Mapping[int, Resolved], socket: str) -> dict[int, Resolved]:
    """Refuse ranks that reach another sidecar than the scheduler, at `socket`.

    Each process finds the socket by its own working directory and environment, which Ray need not set alike.
    """
    return {
        rank: one
        if one.socket in ("", socket)
        else replace(one, refused=_ELSEWHERE.format(one.socket, socket))
        for rank, one in found.items()
    }


_ELSEWHERE: Final = (
    "its sidecar is at {}, the scheduler's at {}; "
    "set kv_connector_extra_config.socket to one absolute path"
)


def _parts(config: Any, environment: Mapping[str, str]) -> dict[str, str]:
    canonical = Canonical(CONFIG)
    parts = {
        name: _digest(canonical.text(value, place))
        for name, value, place in members(config, "VllmConfig")
        if value is not None and place not in CONFIG
    }
    if str(config.load_config.load_format) == "dummy":
        parts["seed"] = str(config.model_config.seed)  # it makes the weights
    parts["software"] = compat.software()
    counted = numeric_environment(environment)
    names = " ".join(sorted(counted))
    parts["environment"] = f"{_digest(canonical.text(counted, 'environment'))} of {names}"
    return parts


def numeric_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Give the variables that may change what an engine computes."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(ENVIRONMENT_PREFIXES) and name not in ENVIRONMENT
    }


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:_DIGITS]
