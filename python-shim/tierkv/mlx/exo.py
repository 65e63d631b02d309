"""Continues EXO's `KVPrefixCache` in vaults without patching its source: wraps three methods of known signatures."""

import functools
import inspect
import logging
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tierkv.mlx.tier import Tier

log = logging.getLogger("tierkv.shim")

#: Method -> its parameters in EXO at commit b5375f8.
CONTRACT: Final = {
    "__init__": ("self", "group"),
    "get_kv_cache": ("self", "model", "prompt_tokens", "media_regions"),
    "add_kv_cache": (
        "self",
        "prompt_tokens",
        "cache",
        "ssm_snapshots",
        "media_regions",
        "prefill_tps",
    ),
    "update_kv_cache": (
        "self",
        "index",
        "prompt_tokens",
        "cache",
        "snapshots",
        "restore_pos",
        "media_regions",
        "prefill_tps",
    ),
}
#: Parameters of `make_kv_cache`, by which `get_kv_cache` makes an empty cache.
_MAKER: Final = ("model", "max_kv_size", "keep")


def difference(module: ModuleType) -> str:
    """Give how EXO's module differs from the known one; empty if it does not."""
    try:
        owner, maker = module.KVPrefixCache, module.make_kv_cache
        found = {
            name: tuple(inspect.signature(getattr(owner, name)).parameters) for name in CONTRACT
        }
        made = tuple(inspect.signature(maker).parameters)
    except (AttributeError, TypeError, ValueError) as error:
        return f"its cache is another ({error})"
    for name, known in {**CONTRACT, "make_kv_cache": _MAKER}.items():
        has = made if name == "make_kv_cache" else found[name]
        if has != known:
            return f"{name} takes ({', '.join(has)}), known is ({', '.join(known)})"
    return ""


def install(module: ModuleType) -> bool:
    """Wrap the class of `exo.worker.engines.mlx.cache`; False, with a log line, for an unknown version."""
    unlike = difference(module)
    if unlike:
        log.warning("tierKV: off: this version of EXO is not known: %s", unlike)
        return False
    owner = module.KVPrefixCache
    for name, wrapper in (
        ("get_kv_cache", _getting),
        ("add_kv_cache", _keeping),
        ("update_kv_cache", _keeping),
    ):
        setattr(owner, name, wrapper(getattr(owner, name), module))
    return True


class _Keeper:
    """The tier of one `KVPrefixCache`, made with the first prompt, which brings the model."""

    def __init__(self, module: ModuleType, group: Any) -> None:
        self._module = module
        self._tier: Tier | None = None
        self._model: Any = None
        self._is_alone = group is None or group.size() == 1
        if not self._is_alone:
            log.warning("tierKV: off: a model that is split over machines is not saved or restored")

    def of(self, model: Any) -> "Tier | None":
        """Give the tier of a model."""
        if self._is_alone and self._model is not model:
            if self._tier is not None:
                self._tier.close()
            self._model = model
            # Imported here, so that an unknown version of EXO loads nothing of tierKV.
            from tierkv.mlx.tier import Tier  # noqa: PLC0415

            self._tier = Tier(model, lambda: self._module.make_kv_cache(model))
        return self._tier

    @property
    def current(self) -> "Tier | None":
        """Give the tier of the last model."""
        return self._tier


def _keeper(cache: Any, module: ModuleType) -> _Keeper:
    if "_tierkv" not in vars(cache):
        cache._tierkv = _Keeper(module, cache._group)  # noqa: SLF001 - the class is EXO's
    keeper: _Keeper = cache._tierkv  # noqa: SLF001 - ours
    return keeper


def _getting(call: Any, module: ModuleType) -> Any:
    @functools.wraps(call)
    def get_kv_cache(self: Any, model: Any, prompt_tokens: Any, media_regions: Any = None) -> Any:
        found = call(self, model, prompt_tokens, media_regions)
        try:
            tier = _keeper(self, module).of(model)
            if tier is None:
                return found
            own = len(prompt_tokens) - len(found[1])
            restored = tier.restore(prompt_tokens.tolist(), own, _extras(media_regions))
        except Exception:  # EXO goes on without us
            log.exception("tierKV: a restore failed")
            return found
        if restored is None:
            return found
        cache, tokens = restored
        # No entry of EXO's own, which it adds when the rest is computed.
        return cache, prompt_tokens[tokens:], None, False

    return get_kv_cache


def _keeping(call: Any, module: ModuleType) -> Any:
    """Wrap `add_kv_cache` or `update_kv_cache`, which name the snapshots differently."""
    signature = inspect.signature(call)

    @functools.wraps(call)
    def keep(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(self, *args, **kwargs).arguments
            snapshots = given.get("ssm_snapshots", given.get("snapshots"))
            regions = given.get("media_regions")
            _keep(_keeper(self, module), given["prompt_tokens"], given["cache"], snapshots, regions)
        except Exception:  # EXO goes on without us
            log.exception("tierKV: a save failed")
        return call(self, *args, **kwargs)

    return keep


def _keep(keeper: _Keeper, prompt: Any, cache: Any, snapshots: Any, media_regions: Any) -> None:
    """Save EXO's entry: rows as they are, states from its snapshots at chunk ends."""
    tier = keeper.current
    if tier is None:
        return
    tokens, extras = prompt.tolist(), _extras(media_regions)
    if not tier.needs_boundaries:
        tier.keep(tokens, cache, extras)
        return
    for snapshot in snapshots or ():
        end = snapshot.token_count
        if end and end % tier.chunk == 0:
            states = [
                whole if state is None else state
                for state, whole in zip(snapshot.states, cache, strict=True)
            ]
            tier.keep_states(tokens, cache, states, end, extras)


def _extras(media_regions: Any) -> list[tuple[int, str]]:
    return [(region.start_pos, region.content_hash) for region in media_regions or ()]
