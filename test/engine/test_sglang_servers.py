"""Servers of SGLang one after the other, nightly: restarts, ranks, MLA, LoRA, published weights, and refusals."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from harness.models import Models, write_adapter
from harness.published import NIGHTLY_S, folder_of, prompts
from harness.sglang import (
    FULL_PAGES,
    LATENT,
    LLAMA,
    PAGE,
    SglangServer,
    is_restored,
    is_same,
    storage,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.processes import Cluster
    from lab.checkpoint import Spec

pytestmark = pytest.mark.nightly

#: Ranks share the processors of a small machine: SGLang asks which belong to whom where memory has one node. Without
#: a library of NCCL they talk by Gloo.
RANKS: dict[str, Any] = {
    "arguments": ("--tp-size", "2"),
    "variables": {"SGLANG_CPU_OMP_THREADS_BIND": "0|0", "SGLANG_NCCL_SO_PATH": "none"},
}
#: Published models, with prompts of whole pages and a rest.
PROMPTS, PAGES, TAIL = 6, 24, 7


@pytest.fixture(scope="module")
def cluster(new_cluster: Callable[..., Cluster]) -> Cluster:
    return new_cluster(with_proxy=True, wait_ms=5_000, stall_ms=2_000)


@pytest.fixture
def start(folder: Path, cluster: Cluster, models: Models) -> Iterator[Callable[..., SglangServer]]:
    """Starts servers that end with the test."""
    made: list[SglangServer] = []

    def begin(
        name: str, model: Spec | Path = LLAMA, engines: int = 1, **options: Any
    ) -> SglangServer:
        path = str(model) if isinstance(model, Path) else models.path(model)
        made.append(SglangServer(folder, name, path, storage(cluster.config_path), **options))
        made[-1].start()
        cluster.wait_restoring(engines)
        return made[-1]

    yield begin
    for one in made:
        one.end()


def test_a_server_started_again_restores_in_another_layout(
    start: Callable[..., SglangServer], cluster: Cluster
) -> None:
    before = cluster.saved()
    first = start("again-0", layout="page_first", io="kernel")
    own = first.generate(text(1))
    cluster.wait_saved(before + FULL_PAGES)
    first.end()
    for number, (layout, io, policy) in enumerate(
        (
            ("layer_first", "kernel", "wait_complete"),
            ("layer_first", "direct", "timeout"),
            ("page_first_direct", "direct", "best_effort"),
        )
    ):
        again = start(f"again-{number + 1}", layout=layout, io=io, policy=policy)
        answer = again.generate(text(1))
        if policy == "best_effort":  # starts with the pages that have come, which may be none
            is_same(answer, own)
        else:
            is_restored(answer, own)
        again.end()


@pytest.mark.parametrize(
    ("model", "ranks"), [(LLAMA, 2), (LATENT, 1), (LATENT, 2)], ids=["mha-2", "mla-1", "mla-2"]
)
def test_ranks_and_latent_pages_come_back(
    start: Callable[..., SglangServer], cluster: Cluster, model: Spec, ranks: int
) -> None:
    options = RANKS if ranks == 2 else {}
    # Ranks of MLA hold equal pages, which the first one saves.
    savers = 1 if model is LATENT else ranks
    before = cluster.saved()
    name = f"{model.kind}-{ranks}"
    server = start(name, model, engines=ranks, **options)
    own = server.own_hit(text(2))
    cluster.wait_saved(before + savers * FULL_PAGES)
    server.flush()
    is_restored(server.generate(text(2)), own)
    # The ranks get different parts of what they ask for, and go on with the pages that all of them have.
    server.flush()
    assert cluster.proxy is not None
    cluster.proxy.set_faults(dropAt=20)
    part = server.generate(text(2))
    cluster.proxy.set_faults()
    is_same(part, own)
    server.flush()
    cluster.sidecar.kill()
    alone = server.generate(text(2))
    assert alone["restored"] == 0
    is_same(alone, own)
    cluster.sidecar.start()
    cluster.wait_restoring(ranks)
    server.flush()
    is_restored(server.generate(text(2)), own)
    if ranks == 2:
        server.end()
        again = start(f"{name}-again", model, engines=ranks, **options)
        is_restored(again.generate(text(2)), own)


def test_adapters_have_pages_of_their_own(
    start: Callable[..., SglangServer], cluster: Cluster, tmp_path: Path
) -> None:
    one, two = (
        write_adapter(tmp_path / name, LLAMA, seed=seed) for seed, name in enumerate(("one", "two"))
    )
    adapters = ("--lora-paths", f"one={one}", f"two={two}")
    arguments = (*adapters, "--lora-backend", "torch_native", "--max-loras-per-batch", "4")
    server = start("lora", arguments=arguments)
    status, answer = server.post("/load_lora_adapter", {"lora_name": "late", "lora_path": two})
    assert status == 200, answer
    asked: dict[str, dict[str, Any]] = {
        "base": {},
        **{name: {"lora_path": name} for name in ("one", "two", "late")},
    }
    own = {}
    for who, more in asked.items():
        before = cluster.saved()
        first = server.generate(text(3), **more)
        assert first["cached"] == 0, who
        own[who] = server.own_hit(text(3), **more)
        cluster.wait_saved(before + FULL_PAGES)
    assert len({tuple(own[who]["ids"]) for who in ("base", "one", "two")}) == 3
    is_same(own["late"], own["two"])
    server.flush()
    for who, more in asked.items():
        is_restored(server.generate(text(3), **more), own[who])
    server.end()
    # Adapters of the command line have the same pages in the next server.
    again = start("lora-again", arguments=arguments)
    for who in ("base", "one", "two"):
        is_restored(again.generate(text(3), **asked[who]), own[who])
    again.end()
    # Other weights under the same name and path.
    shutil.copy(Path(two, "adapter_model.safetensors"), one)
    changed = start("lora-changed", arguments=arguments)
    other = changed.generate(text(3), **asked["one"])
    assert other["cached"] == 0
    assert other["ids"] == own["two"]["ids"]


@pytest.mark.parametrize("name", ["gemma3-270m", "qwen25-0.5b"])
def test_published_models_answer_as_from_their_own_cache(
    start: Callable[..., SglangServer], cluster: Cluster, name: str
) -> None:
    model = folder_of(name, NIGHTLY_S)
    # Half of the memory, because a tenth is less than their weights on a small machine.
    server = start(name, model, arguments=("--mem-fraction-static", "0.5"))
    asked = prompts(model, PROMPTS, PAGES * PAGE + TAIL)
    own = []
    for prompt in asked:
        before = cluster.saved()
        own.append(server.own_hit(prompt))
        cluster.wait_saved(before + PAGES)
    server.flush()
    for prompt, hit in zip(asked, own, strict=True):
        is_restored(server.generate(prompt), hit, PAGES)
    assert len({tuple(each["ids"]) for each in own}) > PROMPTS / 2


def test_a_sidecar_that_is_absent_at_the_start_is_found_later(
    folder: Path, cluster: Cluster, models: Models
) -> None:
    cluster.sidecar.kill()
    server = SglangServer(folder, "absent", models.path(LLAMA), storage(cluster.config_path))
    try:
        server.start()
        own = server.own_hit(text(4))
        cluster.sidecar.start()
        cluster.wait_restoring()
        server.flush()
        before = cluster.saved()
        is_same(server.generate(text(4)), own)
        cluster.wait_saved(before + FULL_PAGES)
        server.flush()
        is_restored(server.generate(text(4)), own)
    finally:
        server.end()


def test_without_the_plug_in_the_server_does_not_start(
    folder: Path, cluster: Cluster, models: Models
) -> None:
    server = SglangServer(
        folder,
        "unwatched",
        models.path(LLAMA),
        storage(cluster.config_path),
        variables={"SGLANG_PLUGINS": "sgl_cpu_test"},
    )
    log = server.refuses()
    server.end()
    assert "tierKV's plug-in does not watch" in log
