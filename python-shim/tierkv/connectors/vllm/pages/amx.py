"""Requests AMX tiles from Linux before vLLM's CPU kernels use them: an ungranted first use is SIGILL."""

import ctypes
import logging
import platform
from pathlib import Path
from typing import Final

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api import compat
from tierkv.connectors.vllm.pages.grid import Grid

log = logging.getLogger("tierkv.shim")

#: x86-64: the number of `arch_prctl`, its ARCH_REQ_XCOMP_PERM, and the tiles' data (XFEATURE_XTILEDATA).
_ARCH_PRCTL: Final = 158
_REQUEST: Final = 0x1023
_TILE_DATA: Final = 18


def has_tiles(cpuinfo: str = "/proc/cpuinfo") -> bool:
    """Tell whether vLLM computes on a CPU here, and this CPU has AMX tiles."""
    if not compat.computes_on_cpu() or platform.machine() != "x86_64":
        return False
    try:
        return " amx_tile" in Path(cpuinfo).read_text("ascii", "replace")
    except OSError:
        return False


def ask_kernel() -> bool:
    """Request the tiles for this process and its later threads; True when they may be used.

    Without the grant their first use is SIGILL. oneDNN requests it too, so one large step makes an engine safe.
    """
    if not has_tiles():
        return True
    answer: int = ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST, _TILE_DATA)
    if answer != 0:
        log.warning(
            "tierKV: Linux grants no AMX tiles here: vLLM may die by SIGILL at a small step"
        )
    return answer == 0


class FirstStep:
    """Leaves `AMX_FIRST_TOKENS` of each prompt to compute until one step computed as many; only on CPUs with tiles."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        #: Whether that step is still to come.
        self.is_awaited = has_tiles()
        if self.is_awaited:
            grid.left_tokens = limits.AMX_FIRST_TOKENS

    def note(self, tokens: int) -> bool:
        """Tell whether a step of `tokens` tokens is the awaited one."""
        if tokens < limits.AMX_FIRST_TOKENS:
            return False
        self._grid.left_tokens = 1
        self.is_awaited = False
        return True
