"""The scheduler side, its block pool and its sidecar, driven by hand."""

import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Self

from tierkv.connectors.vllm.api.metadata import StepMetadata
from tierkv.connectors.vllm.api.resolved import CANONICAL, Resolved
from tierkv.connectors.vllm.engine.scheduler import Match, SchedulerShim
from tierkv.connectors.vllm.link.frames import Frame
from tierkv.connectors.vllm.link.settings import Settings
from tierkv.connectors.vllm.naming.weights import Weights
from tierkv.connectors.vllm.pages.specs import Group
from tierkv.connectors.vllm.requests.cursors import Missing

from .engine import (
    Blocks,
    FullAttentionSpec,
    Pool,
    Request,
    kv_cache_config,
    make_group,
    scheduled,
    step_output,
    vllm_config,
)
from .sidecar import FakeSidecar, wait_until

ARENA = 3
#: What every rank says it runs with.
RESOLVED = Resolved({"model_config": "as the workers have it", "pages": CANONICAL})
NOTHING = (0, False)
ASK_AGAIN = (None, False)


def known_weights() -> Weights:
    """Those of a model that nobody has to read."""
    weights = Weights(vllm_config())
    weights.digest = "files:known"
    return weights


def missing_where(holds: Callable[[int, int], bool] | None) -> Missing | None:
    """What a look-up says is missing, by what it says is held (of group and index)."""
    if holds is None:
        return None
    return lambda group, first, end: [n for n in range(first, end) if not holds(group, n)]


class Bench:
    """A scheduler side, its block pool and its sidecar, driven by hand."""

    def __init__(
        self,
        path: str,
        sidecar: FakeSidecar | None,
        world: int = 1,
        groups: list[Group] | None = None,
        *,
        introduced: bool = True,
        role: str = "kv_both",
        weights: Weights | None = None,
        drafts: str = "",
    ) -> None:
        self.sidecar = sidecar
        self.pool = Pool()
        config = vllm_config(world=world)
        config.kv_transfer_config.kv_role = role
        config.speculative_config = SimpleNamespace(method=drafts) if drafts else None
        cache = kv_cache_config(FullAttentionSpec())
        settings = Settings(path, "test", autostart=False)
        self.shim = SchedulerShim(
            config, settings, groups or [make_group()], cache, weights=weights or known_weights()
        )
        self.shim.bind_gpu_block_pool(self.pool)
        if introduced:
            self.shim.introduce(dict.fromkeys(range(world), RESOLVED))
        if sidecar is not None:
            self.connected()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shim.shutdown()

    @property
    def fake(self) -> FakeSidecar:
        assert self.sidecar is not None
        return self.sidecar

    def connected(self) -> None:
        wait_until(lambda: self.shim._channel.is_up, "the channel is up")
        self.fake.send({"t": "restore", "arena": ARENA, "on": True})
        wait_until(lambda: self.shim._book.restore_on, "restore is on")
        wait_until(self.is_decided, "the fidelity is decided")

    def is_decided(self) -> bool:
        is_asked = self.fake.fidelity is not None and self.shim._naming.identity() is not None
        return not is_asked or self.shim._naming._fidelity is not None

    def new(self, request: Request) -> Request:
        self.shim.on_new_request(request)
        return request

    def ask(self, request: Request, local_tokens: int = 0) -> Match:
        return self.shim.get_num_new_matched_tokens(request, local_tokens)

    def kinds(self) -> list[str]:
        """What the sidecar heard, in order, but the reports of every second."""
        return [frame["t"] for frame in self.fake.frames if frame["t"] != "counts"]

    def prefetch(self, number: int = 1) -> Frame:
        """The `number`-th prefetch the sidecar heard."""
        return self.fake.expect("prefetch", number)[number - 1]

    def held(self, prefetch: Frame, *indices: int) -> None:
        bitmap = bytearray(8)
        for index in indices:
            bitmap[index // 8] |= 1 << index % 8
        self.boundary(prefetch, (len(indices)) * 4, {0: bytes(bitmap)})

    def boundary(self, prefetch: Frame, tokens: int, held: dict[int, bytes]) -> None:
        groups = [{"group": group, "held": bits} for group, bits in held.items()]
        self._about(prefetch, t="held", groups=groups, tokens=tokens)

    def place(
        self, prefetch: Frame, first: int, *slots: int, group: int = 0, local: int = 0
    ) -> None:
        """Places blocks, `local` of which no vault had to bring."""
        packed = struct.pack(f"<{len(slots)}I", *slots)
        self._about(prefetch, t="placed", group=group, first=first, slots=packed, local=local)

    def done(self, prefetch: Frame, reason: str = "complete", **why: str) -> None:
        self._about(prefetch, t="done", reason=reason, **why)

    def let_load(self, prefetch: Frame) -> None:
        """Lets the engine load what is placed while the rest comes."""
        self._about(prefetch, t="load")

    def reclaim(self, prefetch: Frame) -> None:
        self._about(prefetch, t="reclaim")
        wait_until(lambda: prefetch["plan"] in self.shim._book.wanted_back, "the wish arrived")

    def _about(self, prefetch: Frame, **fields: Any) -> None:
        self.fake.send({"req": prefetch["req"], "plan": prefetch["plan"], **fields})

    def answer(self, request: Request, local_tokens: int = 0) -> Match:
        """Asks as the engine does, until it gets an answer."""
        return wait_until(  # type: ignore[no-any-return]
            lambda: (m := self.ask(request, local_tokens)) != ASK_AGAIN and m, "an answer"
        )

    def admit(self, request: Request, block_ids: list[int], tokens: int) -> None:
        self.shim.update_state_after_alloc(request, Blocks(block_ids), tokens)

    def step(self, tokens: dict[str, int] | None = None, **tables: list[int]) -> StepMetadata:
        return self.shim.build_connector_meta(scheduled(tokens or {}, tables))

    def hand_over(
        self, request: Request, *states: tuple[int, int, int], drafts: int = 0
    ) -> StepMetadata:
        """A step in which vLLM hands over recurrent states: (group, block id, tokens before it)."""
        drafted = {request.request_id: [1] * drafts} if drafts else None
        output = scheduled({}, {}, {request.request_id: list(states)}, drafted)
        return self.shim.build_connector_meta(output)

    def finish_load(self, *req_ids: str, took_us: int = 1) -> None:
        loads = dict.fromkeys(req_ids, took_us)
        self.shim.update_connector_output(step_output(set(req_ids), loads=loads))

    def releases(self, count: int) -> list[int]:
        return [frame["plan"] for frame in self.fake.expect("release", count)] if count else []
