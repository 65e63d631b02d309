"""mlx-lm's server with a prompt cache that continues in vaults: `python -m tierkv.mlx.server`, with its arguments."""

import logging
import threading
from functools import partial
from typing import Any

from mlx_lm import server
from mlx_lm.models.cache import LRUPromptCache

from tierkv.mlx.tier import Tier

log = logging.getLogger("tierkv.shim")


class _Computed(threading.local):
    """`tokens`: of the prompt that a thread fetched last, those that tierKV computed for it."""

    tokens = 0


_COMPUTED = _Computed()


class TieredContext(server.GenerationContext):  # type: ignore[misc, unused-ignore] # mlx-lm has no types
    """A request's context, with two counts of tokens: those that need no computing, and those of them from a cache.

    The thread that generates reads the former; other threads, which write answers, read the latter.
    """

    _generator = 0
    _done = _cached = -1

    @property
    def prompt_cache_count(self) -> int:  # type: ignore[override, unused-ignore]
        """Tokens in caches; -1 before they were looked up."""
        return self._done if threading.get_ident() == self._generator else self._cached

    @prompt_cache_count.setter
    def prompt_cache_count(self, done: int) -> None:
        self._generator = threading.get_ident()
        self._done = done
        self._cached = done if done < 0 else done - _COMPUTED.tokens


class TieredPromptCache(LRUPromptCache):
    """The server's own cache, looked up first; missing entries are restored, and new ones saved."""

    def __init__(self, provider: Any, *args: Any, **kwargs: Any) -> None:
        """`provider`: holds the server's model, which may change with each request."""
        super().__init__(*args, **kwargs)
        self._provider = provider
        self._tier: Tier | None = None
        self._tier_of: Any = None

    def fetch_nearest_cache(self, model: Any, tokens: list[Any]) -> tuple[Any, list[Any]]:
        """Give the longer of the own and the restored cache, and the tokens left to compute."""
        _COMPUTED.tokens = 0
        cache, rest = super().fetch_nearest_cache(model, tokens)
        tier = self._current(model)
        if tier is None:
            return cache, rest
        done = len(tokens) - len(rest)
        found = tier.restore(tokens, own=done)
        if found is not None:
            cache, done = found
        if tier.needs_boundaries:
            cache = tier.new_cache() if cache is None else cache
            cached, done = done, tier.prefill(tokens, cache, done)
            _COMPUTED.tokens = done - cached
        return cache, tokens[done:]

    def insert_cache(
        self, model: Any, tokens: list[Any], prompt_cache: list[Any], **more: Any
    ) -> None:
        """Keep a cache here and in the vaults."""
        tier = self._current(model)
        if tier is not None:
            tier.keep(tokens, prompt_cache)
        super().insert_cache(model, tokens, prompt_cache, **more)

    def _current(self, key: Any) -> Tier | None:
        """Give the tier of the model that the server has; None with a draft model, which has a cache of its own.

        None also for a model split over machines: all parts must restore the same tokens, and each is answered alone.
        """
        if key != self._provider.model_key:
            return None
        if self._tier_of != key:
            if self._tier is not None:
                self._tier.close()
            self._tier_of, self._tier = key, None
            if self._provider.draft_model is not None:
                log.warning("tierKV: off: with a draft model nothing is saved or restored")
            elif self._provider.is_distributed:
                log.warning(
                    "tierKV: off: a model that is split over machines is not saved or restored"
                )
            else:
                self._tier = Tier(self._provider.model, label=str(key[0]))
        return self._tier


def run(host: str, port: int, model_provider: Any, **more: Any) -> None:
    """Serve as mlx-lm does, with this cache instead of its own."""
    server.LRUPromptCache = partial(TieredPromptCache, model_provider)
    server.GenerationContext = TieredContext
    _RUN(host, port, model_provider, **more)


_RUN = server.run


def main() -> None:
    """Become the server."""
    server.run = run
    server.main()


if __name__ == "__main__":
    main()
