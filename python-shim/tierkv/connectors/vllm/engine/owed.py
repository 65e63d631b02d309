"""Owns the scheduler side's duties once it is off: failed loads are reported, references to blocks go back."""

from typing import Any

from tierkv.connectors.vllm.api.metadata import StepMetadata, StepReceipts
from tierkv.connectors.vllm.link.guard import Failures
from tierkv.connectors.vllm.pages.grid import Grid
from tierkv.connectors.vllm.requests.plans import Plan
from tierkv.connectors.vllm.requests.requests import RequestState
from tierkv.connectors.vllm.restore.loads import LoadQueue
from tierkv.connectors.vllm.save.saves import SavePlanner


class Owed:
    """Relies on little state, and on none that a failed call may have left inconsistent."""

    def __init__(
        self,
        failures: Failures,
        grid: Grid,
        requests: dict[str, RequestState],
        loads: LoadQueue,
        saves: SavePlanner,
    ) -> None:
        self._failures = failures
        self._grid = grid
        self._requests = requests
        self._loads = loads
        self._saves = saves

    def alloc(
        self, request: Any, blocks: Any, num_external_tokens: int, plan: Plan | None = None
    ) -> None:
        """Have an admission that will not be filled reported as failed, so that vLLM computes it.

        `plan`: the admission's plan, whose slots return then.
        """
        req_id = request.request_id
        if num_external_tokens == 0 or self._loads.is_loading(req_id):
            return
        failed: list[int] = []
        group = self._grid.groups[0]
        self._failures.attempt(
            "update_state_after_alloc_owed",
            lambda: failed.extend(self._external(req_id, blocks, num_external_tokens)),
        )
        self._loads.add_failed(req_id, group.index, failed, plan)

    def _external(self, req_id: str, blocks: Any, tokens: int) -> list[int]:
        """Give the blocks for the tokens that are not the engine's own; without the offer they are the last ones."""
        group = self._grid.groups[0]
        table = blocks.get_block_ids()[group.index]
        state = self._requests.get(req_id)
        count = tokens // group.block_tokens
        first = max(0, len(table) - count)
        if state is not None and state.offer is not None:
            first = state.offer[1] // group.block_tokens
        return [block_id for block_id in table[first : first + count] if block_id]

    def step(self, scheduler_output: Any) -> StepMetadata:
        """Let the workers fail every load they do not have yet, and turn themselves off."""
        self._failures.attempt("build_connector_meta_owed", self._saves.take_back)
        has_forward = bool(scheduler_output.num_scheduled_tokens)
        return StepMetadata(has_forward=has_forward, loads=self._loads.fail_rest(), is_off=True)

    def output(self, output: Any) -> None:
        """Take ended loads and copied saves: their blocks are vLLM's again."""
        for req_id in output.finished_recving or ():
            self._loads.finish(req_id)
        receipts = output.kv_connector_worker_meta
        if isinstance(receipts, StepReceipts):
            self._saves.hear(receipts)
            self._saves.forget("off")

    def finished(self, request: Any) -> tuple[bool, None]:
        """Forget a request; its blocks are the engine's."""
        self._requests.pop(request.request_id, None)
        return False, None
