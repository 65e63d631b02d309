"""Drives vLLM's own Scheduler with our scheduler side against a scripted sidecar and workers that compute nothing.

Counts blocks, loads and steps, which depend on no clock: every look-up is answered before the next step.
"""

from __future__ import annotations

import json
import struct
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.checkpoint import Spec
from tests.support.sidecar import WELCOME, FakeSidecar, wait_until
from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api.metadata import Memory, StepReceipts
from tierkv.connectors.vllm.api.resolved import Resolved
from tierkv.connectors.vllm.link.frames import Frame, encode
from vllm import SamplingParams
from vllm.config import (
    CacheConfig,
    KVTransferConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK = 16
ARENA = 7
#: Longest text of a frame: FRAME_TEXT_BYTES_MAX of src/base/limits/general.ts.
TEXT_MAX = 64 * 1024
#: Steps, and steps in a row without a token, after which a driven engine has hung.
STEPS_MAX = 2000
IDLE_STEPS_MAX = 200
MODEL = Spec(layers=2, hidden=128, heads=4, kv_heads=2, head_dim=64, vocab=512, dtype="float32")
#: The sidecar's budget is never over, so that a slow machine changes no answer.
PATIENT = {**WELCOME, "wait_ms": 600_000, "stall_ms": 600_000}


class Vault(FakeSidecar):
    """Answers each look-up by the hashes it holds, and gives every block a slot of its own."""

    def __init__(self, path: str) -> None:
        self.held: set[bytes] = set()
        self.asks: list[Frame] = []
        self.slots: dict[bytes, int] = {}
        super().__init__(path, PATIENT)

    def _take(self, connection: Any, frame: Frame) -> None:
        if len(str(frame.get("req", ""))) > TEXT_MAX:
            self.drop_connections()  # as a sidecar refuses the frame and its engine
            return
        super()._take(connection, frame)
        if frame["t"] == "prefetch":
            self.asks.append(frame)
            self._answer(frame)

    def _answer(self, frame: Frame) -> None:
        asked = {
            group["group"]: [
                group["hashes"][at : at + 32] for at in range(0, len(group["hashes"]), 32)
            ]
            for group in frame["groups"]
        }
        count = min(self._held(hashes) for hashes in asked.values())
        of = {"req": frame["req"], "plan": frame["plan"]}
        held = [{"group": index, "held": _bits(count, len(of))} for index, of in asked.items()]
        answers: list[Frame] = [{"t": "held", **of, "groups": held, "tokens": count * BLOCK}]
        first = frame["groups"][0]["from"]
        for index, hashes in asked.items():
            named = [bytes([index]) + each for each in hashes[first:count]]
            slots = [self.slots.setdefault(each, len(self.slots)) for each in named]
            packed = struct.pack(f"<{len(slots)}I", *slots)
            if slots:
                answers.append(
                    {"t": "placed", **of, "group": index, "first": first, "slots": packed}
                )
        is_placed = count > first
        answers.append({"t": "done", **of, "reason": "complete" if is_placed else "nothing_held"})
        self.connections[-1].sendall(b"".join(encode(each) for each in answers))

    def _held(self, hashes: list[bytes]) -> int:
        """Count the leading hashes that are held."""
        count = 0
        while count < len(hashes) and hashes[count] in self.held:
            count += 1
        return count


def _bits(count: int, of: int) -> bytes:
    return ((1 << count) - 1).to_bytes(of // 8 + 1, "little")


class Rig:
    """A scheduler, its connector and its workers.

    `load_steps`, `save_steps`: steps from a load's last part, or from a step with saves, to its report; `beside`: a
    second group of layers, with a `window` or with a `state`; `ranks`: as of tensor parallelism.
    """

    def __init__(
        self,
        model: str,
        *,
        with_tierkv: bool = True,
        blocks: int = 400,
        running: int = 256,
        load_steps: int = 1,
        save_steps: int = 1,
        policy: str = "fcfs",
        step_tokens: int = 2048,
        beside: str = "",
        ranks: int = 1,
    ) -> None:
        self.ranks = ranks
        self._folder = tempfile.TemporaryDirectory(prefix="tk-")
        self.path = str(Path(self._folder.name, "s.sock"))
        self.vault = self.make_vault()
        self.load_steps, self.save_steps = load_steps, save_steps
        config = self._config(model, running, policy, step_tokens, with_tierkv=with_tierkv)
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(BLOCK, sha256)
        groups = _groups(config.model_config.dtype, beside)
        cache = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups)
        if hasattr(cache, "hash_block_size"):
            cache.hash_block_size = BLOCK
        config.cache_config.num_gpu_blocks = blocks
        self.scheduler = Scheduler(
            vllm_config=config,
            kv_cache_config=cache,
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK,
            log_stats=True,
        )
        self.pool = self.scheduler.kv_cache_manager.block_pool
        self.step_number = 0
        self.computing_steps = 0
        self.empty_steps = 0
        self._idle_steps = 0
        self.peak_blocks = 0
        self.peak_running = 0
        self.loads = 0
        self.loaded_blocks = 0
        self.saved: list[bytes] = []
        self.first_tokens: list[str] = []
        self.order: list[str] = []
        self.failing: set[str] = set()
        self._loading: list[tuple[int, str]] = []
        self._tickets: list[tuple[int, int]] = []
        self._taken: set[int] = set()
        self.blocks_taken = 0
        #: Steps in a row that each running request was not scheduled in, and the most of any.
        self._stalled: dict[str, int] = {}
        self.longest_stall = 0
        self.preemptions = 0
        self._note_taken()
        self.shim: Any = None
        if with_tierkv:
            self.shim = self.scheduler.connector.scheduler_side
            told = Resolved({"model_config": "as the worker has it"})
            # As after an engine's first step: on CPUs with AMX the first load is shorter.
            self.shim._first_step.note(limits.AMX_FIRST_TOKENS)
            self.shim.introduce(dict.fromkeys(range(ranks), told))
            wait_until(lambda: self.shim._channel.is_up, "the channel is up")
            self.vault.send({"t": "restore", "arena": ARENA, "on": True})
            wait_until(lambda: self.shim._book.restore_on, "restore is on")
            wait_until(lambda: self.shim._naming.is_complete, "the model has a name", 60.0)

    def make_vault(self) -> Vault:
        return Vault(self.path)

    def _config(
        self, model: str, running: int, policy: str, step_tokens: int, *, with_tierkv: bool
    ) -> VllmConfig:
        transfer = KVTransferConfig(
            kv_connector="TierKVConnector",
            kv_connector_module_path="tierkv.connectors.vllm.connector",
            kv_role="kv_both",
            kv_connector_extra_config={"socket": self.path, "autostart": False},
        )
        named = ModelConfig(model=model, skip_tokenizer_init=True, dtype="float32", seed=0)
        return VllmConfig(
            model_config=named,
            parallel_config=ParallelConfig(tensor_parallel_size=self.ranks),
            cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=True),
            scheduler_config=SchedulerConfig(
                max_num_seqs=running,
                max_num_batched_tokens=step_tokens,
                max_model_len=2048,
                enable_chunked_prefill=True,
                async_scheduling=False,
                is_encoder_decoder=False,
                policy=policy,
                disable_hybrid_kv_cache_manager=False,
            ),
            kv_transfer_config=transfer if with_tierkv else None,
        )

    def _note_taken(self) -> None:
        """Count the blocks that the pool hands out."""
        take = self.pool.get_new_blocks

        def counted(count: int, *more: Any, **others: Any) -> Any:
            found = take(count, *more, **others)
            self.blocks_taken += len(found)
            return found

        self.pool.get_new_blocks = counted

    def request(self, name: str, prompt: list[int], answers: int = 2, **options: Any) -> Request:
        params = SamplingParams(
            temperature=0,
            max_tokens=answers,
            ignore_eos=True,
            extra_args=options.pop("extra", None),
        )
        of = {"block_hasher": self._hasher, **options}
        return Request(name, prompt, params, None, **of)

    def add(self, name: str, prompt: list[int], answers: int = 2, **options: Any) -> Request:
        made = self.request(name, prompt, answers, **options)
        self.scheduler.add_request(made)
        return made

    def store(self, prompt: list[int]) -> None:
        """Put a prompt's whole blocks into the vault."""
        self.vault.held.update(bytes(each) for each in self.request("stored", prompt).block_hashes)

    def settle(self) -> None:
        """Wait until every look-up was answered."""
        if self.shim is None:
            return
        book = self.shim._book

        def is_settled() -> bool:
            return all(plan.is_done for plan in list(book._by_id.values()))

        wait_until(is_settled, "the look-ups are answered")

    def step(self) -> None:
        self.settle()
        self.step_number += 1
        assert self.step_number < STEPS_MAX, f"left: {list(self.scheduler.requests)}"
        output = self.scheduler.schedule()
        free = self.pool.get_num_free_blocks()
        self.peak_blocks = max(self.peak_blocks, self.pool.num_gpu_blocks - 1 - free)
        self.peak_running = max(self.peak_running, len(self.scheduler.running))
        self._note_stalls(output)
        is_computing = bool(output.num_scheduled_tokens)
        self.computing_steps += is_computing
        self.empty_steps += not is_computing
        self._idle_steps = 0 if is_computing else self._idle_steps + 1
        assert self._idle_steps < IDLE_STEPS_MAX, (
            f"nobody computes: {list(self.scheduler.requests)}"
        )
        told = self._work(output)
        names, sampled = [], []
        for name, count in output.num_scheduled_tokens.items():
            request = self.scheduler.requests[name]
            is_whole = request.num_computed_tokens >= request.num_tokens
            names.append(name)
            sampled.append([1] if is_whole else [])
            if is_whole and name not in self.first_tokens:
                self.first_tokens.append(name)
            if name not in self.order and count:
                self.order.append(name)
        made = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: at for at, name in enumerate(names)},
            sampled_token_ids=sampled,
            kv_connector_output=told,
        )
        self.scheduler.update_from_output(output, made)

    def _note_stalls(self, output: Any) -> None:
        for request in self.scheduler.running:
            name = request.request_id
            is_served = name in output.num_scheduled_tokens
            self._stalled[name] = 0 if is_served else self._stalled.get(name, 0) + 1
            self.longest_stall = max(self.longest_stall, self._stalled[name])
        self.preemptions += len(output.preempted_req_ids or ())

    def _work(self, output: Any) -> KVConnectorOutput | None:
        metadata = output.kv_connector_metadata
        if metadata is None:
            return None
        for part in metadata.loads:
            self.loaded_blocks += len(part.block_ids)
            if part.last:
                self.loads += 1
                self._loading.append((self.step_number + self.load_steps, part.req_id))
        self.saved.extend(item.block_hash for item in metadata.saves)
        if metadata.saves:
            self._tickets.append((self.step_number + self.save_steps, metadata.ticket))
        ended = {name for due, name in self._loading if due <= self.step_number}
        self._loading = [each for each in self._loading if each[1] not in ended]
        receipts = StepReceipts()
        if metadata.question:
            receipts.memory[0] = Memory(metadata.question, is_loaded=True)
        for due, ticket in list(self._tickets):
            if due <= self.step_number:
                receipts.tickets[ticket] = 1
                self._tickets.remove((due, ticket))
        failed = ended & self.failing
        receipts.failed |= failed
        told = KVConnectorOutput(finished_recving=ended or None)
        if failed:
            self._fail(told, failed)
        told.kv_connector_worker_meta = None if receipts.is_empty else receipts
        return told

    def _fail(self, told: KVConnectorOutput, failed: set[str]) -> None:
        """Report as the worker's half does: by request, before 0.30 by block."""
        if hasattr(told, "failed_recving"):
            told.failed_recving = failed
            return
        for name in failed:
            (table,) = self.scheduler.kv_cache_manager.get_block_ids(name)
            told.invalid_block_ids |= set(table)

    def run(self) -> None:
        """Step until every request is answered and nothing is under way."""
        while self.scheduler.requests:
            self.step()

    def abort(self, name: str) -> None:
        from vllm.v1.request import RequestStatus  # noqa: PLC0415

        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def preempt_all(self) -> None:
        """Preempt every running request and forget all cached blocks, as `/pause` and a change of weights do."""
        assert self.scheduler.reset_prefix_cache(reset_running_requests=True)

    def is_loading(self, name: str) -> bool:
        request = self.scheduler.requests.get(name)
        return request is not None and request.status.name == "WAITING_FOR_REMOTE_KVS"

    def counts(self) -> dict[str, Any]:
        free = self.pool.get_num_free_blocks()
        shim = {} if self.shim is None else self.shim.counters.snapshot()
        return {
            "blocks": self.blocks_taken,
            "peak": self.peak_blocks,
            "leaked": self.pool.num_gpu_blocks - 1 - free,
            "loads": self.loads,
            "loaded": self.loaded_blocks,
            "steps": self.computing_steps,
            "empty": self.empty_steps,
            "running": self.peak_running,
            "asks": len(self.vault.asks),
            "saves": len(self.saved),
            "first": self.first_tokens,
            "order": self.order,
            "off": shim.get("turned_off", 0),
            "stall": self.longest_stall,
            "preempted": self.preemptions,
            "shim": shim,
            "status": {} if self.shim is None else self.shim.status(),
        }

    def close(self) -> None:
        if self.shim is not None:
            self.shim.shutdown()
        self.vault.kill()
        self._folder.cleanup()


def _groups(dtype: Any, beside: str) -> list[KVCacheGroupSpec]:
    """Give attention over the whole prompt and, if wanted, layers beside it whose pages are as large."""
    heads = {"num_kv_heads": MODEL.kv_heads, "head_size": MODEL.head_dim}
    full = FullAttentionSpec(block_size=BLOCK, **heads, dtype=dtype)
    names = {kind: [f"{kind}.{n}.self_attn.attn" for n in range(MODEL.layers)] for kind in "ab"}
    found = [KVCacheGroupSpec(names["a"], full)]
    if beside == "window":
        spec = SlidingWindowSpec(block_size=BLOCK, **heads, dtype=dtype, sliding_window=3 * BLOCK)
        found.append(KVCacheGroupSpec(names["b"], spec))
    elif beside == "state":
        shape = (full.page_size_bytes // dtype.itemsize,)
        state = MambaSpec(
            block_size=BLOCK, shapes=(shape,), dtypes=(dtype,), mamba_cache_mode="align"
        )
        found.append(KVCacheGroupSpec(names["b"], state))
    return found


def tokens(seed: int, count: int) -> list[int]:
    """Give a prompt that shares no block with another seed's."""
    return [(seed * 31 + at * 7) % 500 + 1 for at in range(count)]


def _tried(scene: Callable[[str], Any], model: str) -> Any:
    try:
        return scene(model)
    except Exception:  # noqa: BLE001  its tests report it
        return {"failed": traceback.format_exc()}


def main(scenes: dict[str, Callable[[str], Any]], model: str, chosen: list[str]) -> None:
    """Run scenes, each given the folder of a MODEL; print one JSON line of their results, or of why they failed."""
    found = {name: _tried(scenes[name], model) for name in chosen or scenes}
    sys.stdout.write("\n" + json.dumps(found) + "\n")
