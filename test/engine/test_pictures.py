"""A picture processed differently, or named by its client, restores nothing of another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from harness.models import prompt
from harness.releases import MAIN, OLDEST
from harness.sight import PICTURE, PICTURE_TOKENS, TEXT, write_sighted

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.engine import Engine, Engines
    from harness.processes import Cluster

pytestmark = pytest.mark.skipif(
    MAIN == OLDEST, reason="its LLaVA needs older transformers than its lock has"
)

BLOCK = 32
SHOWN = [*prompt(940, 8, PICTURE), PICTURE, *prompt(941, 3 * BLOCK, PICTURE)]
#: Tokens of whole blocks, the first of which shows the picture.
WHOLE = (len(SHOWN) - 1 + PICTURE_TOKENS) // BLOCK * BLOCK
#: Without normalisation pixels keep their range, so that the same file gives other values.
UNNORMALIZED = {"do_normalize": False}


@pytest.fixture(scope="module")
def cluster(new_cluster: Callable[..., Cluster]) -> Cluster:
    return new_cluster()


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    return Path(write_sighted(folder / "seeing"))


def start(engines: Engines, model: Path, cluster: Cluster | None, **changes: Any) -> Engine:
    """An engine; without a cluster, without a connector."""
    options = {"model": str(model), "dtype": TEXT.dtype, "block_size": BLOCK, **changes}
    options["skip_tokenizer_init"] = False
    if cluster is None:
        return engines.start(vllm=options)
    return engines.start(vllm={**options, "kv_transfer_config": cluster.transfer_config}).wait_up()


def ask(engine: Engine, picture: int = 1, **options: Any) -> dict[str, Any]:
    return engine.ask(SHOWN, picture=picture, **options)


@pytest.fixture(scope="module")
def saved(engines: Engines, cluster: Cluster, model: Path) -> dict[str, Any]:
    """Records an engine's answers and saves; a second engine of the same kind has found them, so others could."""
    before = cluster.saved()
    with start(engines, model, cluster) as engine:
        cold = ask(engine)
        cluster.wait_saved(before + WHOLE // BLOCK)
    with start(engines, model, cluster) as engine:
        again = ask(engine)
    assert (again["cached"], again["tokens"]) == (WHOLE, cold["tokens"])
    return cold


def assert_sees_otherwise(engine: Engine, saved: dict[str, Any]) -> None:
    other = ask(engine)
    assert other["cached"] == 0
    assert other["logprobs"] != pytest.approx(saved["logprobs"], abs=1e-6)


def test_f25_other_arguments_of_the_processor_restore_nothing(
    engines: Engines, cluster: Cluster, model: Path, saved: dict[str, Any]
) -> None:
    with start(engines, model, cluster, mm_processor_kwargs=UNNORMALIZED) as engine:
        assert_sees_otherwise(engine, saved)


def test_f25_a_processor_edited_in_place_restores_nothing(
    engines: Engines, cluster: Cluster, model: Path, saved: dict[str, Any]
) -> None:
    path = model / "preprocessor_config.json"
    text = path.read_text()
    path.write_text(json.dumps({**json.loads(text), **UNNORMALIZED}))
    try:
        with start(engines, model, cluster) as engine:
            assert_sees_otherwise(engine, saved)
    finally:
        path.write_text(text)


def test_f25_pictures_that_clients_gave_one_name_are_not_taken_for_each_other(
    engines: Engines, cluster: Cluster, model: Path
) -> None:
    """Within one engine a name is its client's promise; the second engine's client has promised nothing."""
    with start(engines, model, None) as alone:
        wanted = [ask(alone, picture) for picture in (3, 4)]
    assert wanted[0]["tokens"] != wanted[1]["tokens"]
    before = cluster.saved()
    with start(engines, model, cluster) as engine:
        assert ask(engine, 3, uuid="cat")["tokens"] == wanted[0]["tokens"]
        assert ask(engine, 5)["cached"] == 0  # the control: its engine saves, and in order
        cluster.wait_saved(before + WHOLE // BLOCK)
    with start(engines, model, cluster) as engine:
        named = ask(engine, 4, uuid="cat")
        assert (named["cached"], named["tokens"]) == (0, wanted[1]["tokens"])
        assert named["logprobs"] == pytest.approx(wanted[1]["logprobs"], abs=1e-6)
        assert ask(engine, 5)["cached"] == WHOLE
