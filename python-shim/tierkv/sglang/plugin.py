"""Owns the hooks in SGLang's processes that report changed weights and emptied caches; SGLang loads it as a plug-in."""

import pkgutil
from collections.abc import Callable
from typing import Any, Final

from tierkv.sglang.generation import CURRENT

_WEIGHTS: Final = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"
_RUNNER: Final = "sglang.srt.model_executor.model_runner.ModelRunner"
_MANAGER: Final = (
    "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
)
_SCHEDULER: Final = "sglang.srt.managers.scheduler.Scheduler"

#: Methods that change weights. LoRA adapters that are loaded later have random names in every page's hash.
CHANGES: Final = (
    f"{_WEIGHTS}.update_weights_from_disk",
    f"{_WEIGHTS}.load_weights_from_distributed",
    f"{_WEIGHTS}.update_weights_from_tensor",
    f"{_WEIGHTS}.update_weights_from_ipc",
    f"{_WEIGHTS}.begin_weight_update",
    f"{_WEIGHTS}.end_weight_update",
    # Without a backup of the weights, memory that comes back holds anything.
    f"{_MANAGER}.resume_memory_occupation",
    f"{_SCHEDULER}.handle_scale_elastic_ep",
)
#: Changes weights with the action `reset_tensors`.
CHECK: Final = f"{_RUNNER}.check_weights"
FORWARD: Final = f"{_RUNNER}.forward"
FLUSH: Final = f"{_SCHEDULER}.flush_cache"
TARGETS: Final = (*CHANGES, CHECK, FORWARD, FLUSH)


def register() -> None:
    """Register the hooks; SGLang calls this in each of its processes and then puts them in place."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415

    for target in CHANGES:
        HookRegistry.register(target, _around_change, HookType.AROUND)
    HookRegistry.register(CHECK, _around_check, HookType.AROUND)
    HookRegistry.register(FORWARD, _before_forward, HookType.BEFORE)
    HookRegistry.register(FLUSH, _after_flush, HookType.AFTER)


def missing() -> list[str]:
    """Give the methods without a hook, in this process."""
    return [target for target in TARGETS if not _is_hooked(target)]


def _is_hooked(target: str) -> bool:
    try:
        return "__wrapped__" in vars(pkgutil.resolve_name(target))
    except (AttributeError, ImportError):
        return False


def _around_change(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    CURRENT.note_change()
    try:
        return original(*args, **kwargs)
    finally:
        CURRENT.note_change()


def _around_check(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if "reset_tensors" in (*args, *kwargs.values()):
        return _around_change(original, *args, **kwargs)
    return original(*args, **kwargs)


def _before_forward(*_args: Any, **_kwargs: Any) -> None:
    CURRENT.note_pages()


def _after_flush(is_flushed: Any, *_args: Any, **_kwargs: Any) -> None:
    if is_flushed:
        CURRENT.note_flush()
