"""What engines with longer blocks call a prompt: their names and hashes come of vLLM's own code, and fit exactly."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api import compat
from tierkv.connectors.vllm.naming import namespace
from tierkv.connectors.vllm.restore.longer import key_of
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils
from vllm.v1.request import Request as EngineRequest

from .support import engine as doubles
from .support import scheduler as benches
from .support.engine import FullAttentionSpec, Request, chain, make_group, make_state
from .support.scheduler import RESOLVED, Bench
from .support.sidecar import FakeSidecar, wait_until

#: Tokens of a block of this engine, and of the other one.
SHORT, LONG = 4, 8
TOKENS = 41

Start = Callable[..., Bench]


def in_longer_blocks(request: Any, tokens: int) -> list[bytes]:
    return chain(f"{request.seed} in longer blocks", tokens // LONG)


@pytest.fixture
def start(
    socket_path: str, engine_core_started: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Start]:
    made: list[Bench] = []

    def hashes(request: Any, tokens: int, block_tokens: int, algorithm: str) -> list[bytes]:
        assert (block_tokens, algorithm) == (LONG, "sha256")
        return in_longer_blocks(request, tokens)

    monkeypatch.setattr(compat, "block_hashes", hashes)
    with FakeSidecar(socket_path) as sidecar:

        def start(role: str = "kv_consumer", **options: Any) -> Bench:
            made.append(Bench(socket_path, sidecar, role=role, **options))
            return made[-1]

        yield start
        for bench in made:
            bench.shim.shutdown()


@pytest.fixture
def name_of_the_other(start: Start, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """What an engine names itself whose blocks are longer, and that differs in nothing else."""
    longer = doubles.kv_cache_config(FullAttentionSpec())
    longer.hash_block_size = LONG
    with monkeypatch.context() as patched:
        patched.setattr(benches, "kv_cache_config", lambda _spec: longer)
        producer = start("kv_producer", groups=[make_group(tokens=LONG)])
    wait_until(producer.shim._name_ourselves, "its name")
    digest = producer.shim._naming.digest
    assert len(digest) == 32
    return digest


def said(digest: bytes, tokens: int = 40, seed: str = "prompt") -> dict[str, Any]:
    """What that engine would tell of a prompt."""
    last = in_longer_blocks(SimpleNamespace(seed=seed), tokens)[-1]
    return {"tokens": tokens, "key": key_of(digest, last), "block_tokens": LONG}


def handed(bench: Bench, said: Any, tokens: int = TOKENS, **options: Any) -> Request:
    params = {"tierkv": {"handoff": said}}
    wait_until(bench.shim._name_ourselves, "the name")
    return bench.new(Request("c", tokens, kv_transfer_params=params, **options))


def counted(bench: Bench) -> tuple[int, ...]:
    names = ("handoffs_taken", "handoffs_longer", "handoffs_foreign")
    return tuple(bench.shim.counters.get(name) for name in names)


def test_a_consumer_asks_for_longer_blocks_by_their_names(
    start: Start, name_of_the_other: bytes
) -> None:
    bench = start()
    handed(bench, said(name_of_the_other))
    prefetch = bench.prefetch()
    assert prefetch["handoff"] == 40
    hashes = b"".join(chain("prompt in longer blocks", 5))
    assert prefetch["longer"] == {"namespace": name_of_the_other, "tokens": LONG, "hashes": hashes}
    assert len(prefetch["groups"][0]["hashes"]) == 10 * 32
    assert counted(bench) == (1, 1, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": "0123456789abcdef" * 2},
        {"tokens": 36},
        {"tokens": 48},
        {"block_tokens": 6},
        {"block_tokens": SHORT},
        {"block_tokens": limits.LONGER_TOKENS_MAX + SHORT},
        {"seed": "another prompt"},
        {"role": "kv_both"},
        {"resolved": {"model_config": "of another model"}},
    ],
)
def test_what_is_not_its_own_prompt_and_model_is_foreign(
    start: Start, name_of_the_other: bytes, wrong: dict[str, Any]
) -> None:
    role = wrong.pop("role", "kv_consumer")
    seed = {"seed": wrong.pop("seed")} if "seed" in wrong else {}
    resolved = wrong.pop("resolved", None)
    bench = start(role, introduced=resolved is None)
    if resolved is not None:
        bench.shim.introduce({0: type(RESOLVED)(resolved)})
    handed(bench, {**said(name_of_the_other), **wrong}, **seed)
    prefetch = bench.prefetch()
    assert "handoff" not in prefetch
    assert "longer" not in prefetch
    assert counted(bench) == (0, 0, 1)


def test_a_prompt_that_the_engine_holds_itself_needs_no_longer_blocks(
    start: Start, name_of_the_other: bytes
) -> None:
    bench = start()
    hashes = Request("same", TOKENS).block_hashes
    bench.pool.cached = {block_hash: n + 1 for n, block_hash in enumerate(hashes[:4])}
    handed(bench, said(name_of_the_other, tokens=16))
    assert "longer" not in bench.prefetch()


def test_a_release_that_hashes_by_other_rules_costs_the_handoff_alone(
    start: Start, name_of_the_other: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = start()

    def raises(*_args: Any) -> list[bytes]:
        raise TypeError("a new argument")

    monkeypatch.setattr(compat, "block_hashes", raises)
    handed(bench, said(name_of_the_other))
    assert "handoff" not in bench.prefetch()
    assert counted(bench) == (0, 0, 1)


def test_whoever_has_states_or_windows_says_no_length(start: Start) -> None:
    def length(*groups: Any) -> int:
        return start(groups=list(groups)).shim._handoffs._longer.own_tokens

    assert length(make_group()) == SHORT
    assert length(make_group(), make_state()) == 0
    assert length(make_group(tail=2)) == 0
    assert length(make_group(), make_group(index=1)) == 0


def test_the_length_of_blocks_is_a_part_of_the_name() -> None:
    groups = [make_group()]
    assert namespace.of_blocks(groups, SHORT) != namespace.of_blocks(groups, LONG)
    parts = {"model": "m", **namespace.of_blocks(groups, SHORT)}
    longer = {**parts, **namespace.of_blocks(groups, LONG)}
    assert namespace.digest_of(parts) != namespace.digest_of(longer)


def picture(offset: int, length: int, name: str) -> MultiModalFeatureSpec:
    place = PlaceholderRange(offset=offset, length=length)
    return MultiModalFeatureSpec(
        data=None, modality="image", identifier=name * 32, mm_position=place
    )


@pytest.mark.parametrize("algorithm", ["sha256_cbor", "sha256"])
@pytest.mark.parametrize(
    "beside",
    [
        {},
        {"cache_salt": "a tenant's"},
        {"lora_request": LoRARequest("adapter", 1, "/adapters/one")},
        {"mm_features": [picture(20, 30, "ab"), picture(100, 150, "cd")]},
    ],
    ids=["tokens", "salt", "adapter", "pictures"],
)
def test_hashes_are_those_that_vllm_gives_longer_blocks(
    algorithm: str, beside: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_cache_utils, "NONE_HASH", bytes(range(32)), raising=False)
    hash_fn = get_hash_fn_by_name(algorithm)

    def request(block_tokens: int, **changes: Any) -> EngineRequest:
        return EngineRequest(
            request_id="r",
            prompt_token_ids=[(7 * at) % 251 for at in range(700)],
            sampling_params=SamplingParams(max_tokens=1),
            pooling_params=None,
            block_hasher=kv_cache_utils.get_request_block_hasher(block_tokens, hash_fn),
            **{**beside, **changes},
        )

    theirs, ours = request(128), request(32)
    before = list(ours.block_hashes)
    assert len(before) == 21
    found = compat.block_hashes(ours, 640, 128, algorithm)
    assert found == [bytes(block_hash) for block_hash in theirs.block_hashes]
    assert ours.block_hashes == before
    assert compat.block_hashes(ours, 256, 128, algorithm) == found[:2]
    other = request(32, cache_salt="another tenant's")
    assert compat.block_hashes(other, 640, 128, algorithm)[-1] != found[-1]
