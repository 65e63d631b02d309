"""SGLang's own pools through sidecar and vaults, without an engine: layouts, MLA, ranks, names and generations."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
from harness.models import PLAIN, Models
from harness.processes import wait_until
from harness.sglang import SglangPools
from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.naming.fidelity import OTHER_FIDELITY
from tierkv.sglang.exempt import ARGUMENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness.processes import Cluster

PAGES = 12
#: All pages of a pool.
WHOLE = 24
#: Layouts of the host's pool, each with an I/O back-end that SGLang allows for it.
LAYOUTS = [
    ("page_first", "kernel"),
    ("page_first_direct", "direct"),
    ("layer_first", "kernel"),
    ("layer_first", "direct"),
]


@pytest.fixture(scope="module")
def cluster(new_cluster: Callable[..., Cluster]) -> Cluster:
    return new_cluster(arena_bytes="64MiB", more_vaults=1)


@pytest.fixture(scope="module")
def pools(folder: Path, models: Models) -> Iterator[SglangPools]:
    models.path(PLAIN)  # a model's files must be older than the process
    made = SglangPools(folder, "pools")
    made.start()
    yield made
    made.end()


class Rank:
    """One rank in the program: its pools and its storage."""

    def __init__(self, pools: SglangPools, cluster: Cluster, name: str, **order: Any) -> None:
        self._pools, self._cluster, self._name = pools, cluster, name
        order = {"layout": "page_first_direct", "io": "direct", **order}
        order["config"] = str(cluster.config_path)
        self.refused: str = pools.run("add", name=name, order=order)["refused"]

    def run(self, what: str, **options: Any) -> Any:
        return self._pools.run(what, rank=self._name, **options)

    def wait_named(self) -> Rank:
        assert self.refused == ""
        assert self.run("named") == {"named": True}
        return self

    def save(self, chain: str, seed: int) -> str:
        """Save a chain's pages with random values; return their digest."""
        before = self._cluster.saved()
        digest: str = self.run("fill", seed=seed, pages=PAGES)["digest"]
        assert self.run("save", chain=chain, skip=0, pages=PAGES)["done"] == [True] * PAGES
        self._cluster.wait_saved(before + PAGES)
        return digest

    def load(self, chain: str, skip: int = 0, batch: int = 5) -> dict[str, Any]:
        found: dict[str, Any] = self.run(
            "load", chain=chain, skip=skip, pages=PAGES - skip, batch=batch
        )
        return found

    def finds(self, chain: str) -> int:
        found: int = self.run("exists", chain=chain, skip=0, pages=PAGES)["found"]
        return found


@pytest.fixture
def start(
    pools: SglangPools, cluster: Cluster, models: Models, request: pytest.FixtureRequest
) -> Callable[..., Rank]:
    def begin(name: str, **order: Any) -> Rank:
        named = {"model": models.path(PLAIN), **order}
        return Rank(pools, cluster, f"{request.node.name} {name}", **named)

    return begin


def whole(digest: str, pages: int = PAGES) -> dict[str, Any]:
    return {"found": pages, "done": [True] * pages, "digest": digest}


@pytest.mark.parametrize("form", ["mha", "mla", "fp8", "float32"])
def test_pages_of_one_layout_are_read_in_every_other(form: str, start: Callable[..., Rank]) -> None:
    dtype = {"fp8": "float8_e4m3fn", "float32": "float32"}.get(form, "bfloat16")
    digests: dict[tuple[str, str], str] = {}
    for number, (layout, io) in enumerate(LAYOUTS):
        rank = start(
            f"{layout} {io}", layout=layout, io=io, mla=form == "mla", dtype=dtype
        ).wait_named()
        for other, digest in digests.items():
            assert rank.load(f"{form} {other}") == whole(digest), (layout, other)
        digests[layout, io] = rank.save(f"{form} {layout, io}", number)
    assert len(set(digests.values())) == len(LAYOUTS)


def test_the_rest_of_a_prompt_is_read_behind_its_prefix(start: Callable[..., Rank]) -> None:
    rank = start("one").wait_named()
    rank.save("rest", 1)
    found = rank.load("rest", skip=7, batch=2)
    assert (found["found"], found["done"]) == (PAGES - 7, [True] * (PAGES - 7))


def test_ranks_of_heads_keep_their_own_pages(start: Callable[..., Rank]) -> None:
    first, second = (start(str(tp), tp=tp, tp_size=2, heads=1).wait_named() for tp in (0, 1))
    saved = first.save("ranks", 1)
    assert second.finds("ranks") == 0
    other = second.save("ranks", 2)
    assert first.load("ranks") == whole(saved)
    assert second.load("ranks") == whole(other)
    alone = start("alone", heads=1).wait_named()
    assert alone.finds("ranks") == 0


def test_ranks_of_mla_share_the_first_ones_pages(start: Callable[..., Rank]) -> None:
    first, second = (start(str(tp), tp=tp, tp_size=2, mla=True).wait_named() for tp in (0, 1))
    saved = first.save("latent", 1)
    assert second.load("latent") == whole(saved)


def test_changed_weights_part_from_pages_of_earlier_ones(
    pools: SglangPools, start: Callable[..., Rank]
) -> None:
    rank = start("one").wait_named()
    rank.save("before", 1)
    rank.run("fill", seed=2, pages=PAGES)
    # With pages in SGLang's caches nothing is saved or found until they are flushed.
    pools.run("compute")
    pools.run("change")
    assert rank.run("save", chain="mixed", skip=0, pages=PAGES)["done"] == [False] * PAGES
    assert rank.finds("before") == 0
    pools.run("flush")
    assert rank.finds("before") == 0
    rank.wait_named()
    assert rank.finds("before") == 0
    after = rank.save("after", 3)
    assert rank.load("after") == whole(after)
    # Without any page since the last flush, a change needs no other.
    pools.run("flush")
    pools.run("change")
    rank.wait_named()
    assert rank.finds("after") == 0
    again = rank.save("after", 4)
    assert rank.load("after") == whole(again)
    pools.run("flush")


def test_everything_that_could_change_a_value_is_in_the_name(
    folder: Path, tmp_path: Path, models: Models, cluster: Cluster
) -> None:
    copied, edited = tmp_path / "copied", tmp_path / "edited"
    for one in (copied, edited):
        shutil.copytree(models.path(PLAIN), one)
    _spoil(edited)
    adapters = [_adapter(tmp_path / name, name.encode()) for name in ("one", "two")]
    # Other folders with the same files, another port, more memory, another layout: the same pages.
    quiet = {"port": 31_999, "max_running_requests": 7, "mem_fraction_static": 0.2}
    same: dict[str, dict[str, Any]] = {
        "folder": {"model": str(copied), "arguments": quiet},
        "layout": {"layout": "layer_first"},
    }
    # Other weights, though the shape is the same; arguments of each kind; another shape, type or rank.
    differ: dict[str, dict[str, Any]] = {
        "weights": {"model": str(edited)},
        "dtype": {"arguments": {"dtype": "float16"}},
        "kv dtype": {"arguments": {"kv_cache_dtype": "fp8_e5m2"}},
        "backend": {"arguments": {"attention_backend": "triton"}},
        "quantised": {"arguments": {"quantization": "fp8"}},
        "override": {"arguments": {"json_model_override_args": '{"rope_theta": 1.0}'}},
        "deterministic": {"arguments": {"enable_deterministic_inference": True}},
        "context": {"arguments": {"context_length": 77}},
        "heads": {"heads": 1},
        "float16": {"dtype": "float16"},
        "rank": {"tp": 1, "tp_size": 2},
        "adapter": {"arguments": {"lora_paths": {"a": str(adapters[0])}}},
        "another adapter": {"arguments": {"lora_paths": {"a": str(adapters[1])}}},
    }
    made = SglangPools(folder, "names")  # files must be older than the process
    made.start()
    try:
        names = {
            what: _named(Rank(made, cluster, what, **{"model": models.path(PLAIN), **order}))
            for what, order in [("plain", {}), *same.items(), *differ.items()]
        }
    finally:
        made.end()
    assert {names[what] for what in same} == {names["plain"]}
    assert len({names[what] for what in ("plain", *differ)}) == 1 + len(differ), names


def _named(rank: Rank) -> str:
    name: str = rank.wait_named().run("name")["name"]
    return name


def test_exceptions_are_arguments_of_sglang(pools: SglangPools) -> None:
    known = pools.run("arguments")
    assert [name for name in ARGUMENTS if name not in known] == []


def test_what_is_not_carried_is_refused_by_name(start: Callable[..., Rank]) -> None:
    assert "mamba, swa" in start("pools", others=["swa", "mamba"]).refused
    linker = {"enable_unified_cache_external_linker": True}
    assert "--enable-unified-cache-external-linker" in start("linker", arguments=linker).refused
    without = {"hicache_storage_backend_extra_config": "{}"}
    assert "hicache_storage_pass_prefix_keys" in start("prefix", arguments=without).refused
    remote = start("remote", arguments={"load_format": "remote_instance"})
    assert remote.refused == ""
    wait_until(lambda: "--load-format" in remote.run("name")["refused"], "the refusal is said")


def test_a_look_up_that_nobody_reads_expires(cluster: Cluster, start: Callable[..., Rank]) -> None:
    rank = start("one").wait_named()
    rank.save("unread", 1)
    assert rank.finds("unread") == PAGES
    assert any(engine["plans"] for engine in cluster.status()["engines"])
    wait_until(
        lambda: rank.run("counters").get("plans_expired", 0) >= 1,
        "the plan expires",
        limits.SGLANG_PLAN_KEPT_S + 60,
    )
    cluster.wait_idle()


@pytest.fixture
def apart(new_cluster: Callable[..., Cluster]) -> Cluster:
    """Returns a cluster behind a fault proxy, which the test may destroy."""
    return new_cluster(arena_bytes="64MiB", with_proxy=True)


def test_a_store_that_brings_a_part_restores_that_part(
    pools: SglangPools, models: Models, apart: Cluster
) -> None:
    rank = Rank(pools, apart, "part", model=models.path(PLAIN)).wait_named()
    rank.save("part", 1)
    assert apart.proxy is not None
    apart.proxy.set_faults(corruptAt=5)
    found = rank.load("part", batch=PAGES)
    done = found["done"]
    assert found["found"] == PAGES
    assert done == sorted(done, reverse=True)
    assert 0 < sum(done) < PAGES


def test_a_store_that_takes_a_part_drops_the_rest(
    pools: SglangPools, models: Models, new_cluster: Callable[..., Cluster]
) -> None:
    tight = new_cluster(arena_bytes="16MiB")
    # Pages of 0.8 MB, of which the arena has room for fewer than the prompt has.
    rank = Rank(pools, tight, "tight", model=models.path(PLAIN), heads=130).wait_named()
    rank.run("fill", seed=1, pages=WHOLE)
    tight.sidecar.freeze()  # gives no slot back
    done = rank.run("save", chain="tight", skip=0, pages=WHOLE)["done"]
    assert done == sorted(done, reverse=True)
    assert 0 < sum(done) < WHOLE
    assert rank.run("counters")["dropped_save_no_slot"] == WHOLE - sum(done)
    tight.sidecar.thaw()
    tight.wait_saved(sum(done))
    assert rank.run("exists", chain="tight", skip=0, pages=WHOLE)["found"] == sum(done)


def test_a_hung_sidecar_costs_one_deadline_and_then_nothing(
    pools: SglangPools, models: Models, apart: Cluster
) -> None:
    rank = Rank(pools, apart, "hung", model=models.path(PLAIN)).wait_named()
    rank.save("hung", 1)
    apart.sidecar.freeze()
    assert rank.finds("hung") == 0
    assert rank.run("counters")["misses_no_answer"] == 1
    # From here on the sidecar counts as gone, so that no call waits for it.
    assert rank.finds("hung") == 0
    assert rank.run("counters")["misses_no_answer"] == 1
    assert rank.run("save", chain="hung too", skip=0, pages=PAGES)["done"] == [False] * PAGES
    apart.sidecar.thaw()
    rank.wait_named()
    assert rank.finds("hung") == PAGES


def test_an_absent_sidecar_is_found_once_it_comes(
    pools: SglangPools, models: Models, apart: Cluster
) -> None:
    apart.sidecar.kill()
    rank = Rank(pools, apart, "absent", model=models.path(PLAIN))
    assert rank.refused == ""
    assert rank.finds("absent") == 0
    assert rank.run("save", chain="absent", skip=0, pages=PAGES)["done"] == [False] * PAGES
    apart.sidecar.start()
    rank.wait_named()
    saved = rank.save("absent", 1)
    assert rank.load("absent") == whole(saved)


def test_an_engine_with_rounded_pages_is_named_where_its_sidecar_stores_exactly(
    pools: SglangPools, models: Models, apart: Cluster
) -> None:
    exact = apart.config_path.read_text()
    rounded = exact.replace("enabled = false", "enabled = true", 1).replace('"raw"', '"int8"')

    def start_with(text: str) -> None:
        apart.sidecar.end()
        apart.config_path.write_text(text)
        apart.sidecar.start()

    def refusals() -> list[str]:
        return [engine["naming"]["refused"] for engine in apart.status()["engines"]]

    start_with(rounded)
    rank = Rank(pools, apart, "rounded", model=models.path(PLAIN)).wait_named()
    start_with(exact)
    wait_until(lambda: refusals() == [OTHER_FIDELITY], "status says why nothing is restored")
    start_with(rounded)
    rank.wait_named()
    wait_until(lambda: refusals() == [""], "nothing is refused any more")


def test_a_vault_killed_in_the_middle_of_a_read_costs_the_rest(
    pools: SglangPools, models: Models, apart: Cluster
) -> None:
    rank = Rank(pools, apart, "killed", model=models.path(PLAIN)).wait_named()
    rank.save("killed", 1)
    assert apart.proxy is not None
    apart.proxy.set_faults(hangAt=4)
    assert rank.finds("killed") == PAGES
    apart.vault.kill()
    found = rank.run("read", chain="killed", skip=0, pages=PAGES)["done"]
    assert found == sorted(found, reverse=True)
    assert sum(found) < PAGES


def _adapter(folder: Path, content: bytes) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(content)
    return folder


def _spoil(folder: Path) -> None:
    """Change one byte of the weights."""
    path = next(folder.glob("*.safetensors"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
