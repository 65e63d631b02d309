"""mlx-lm through sidecar and vaults: the next process restores kept prompts bit for bit; other models do not."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from harness.mlx import MlxProgram, MlxServer, mlx_python
from harness.models import PLAIN, Models
from harness.processes import ROOT, WAIT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness.processes import Cluster
    from lab.checkpoint import Spec

pytestmark = pytest.mark.nightly

#: Its caches of windows cannot be cut, so tierKV computes whole chunks itself.
WINDOWED = replace(PLAIN, kind="gemma3", layers=6, window=300)
CHUNK = 256
CHUNKS = 5
TEXT = list(range(CHUNKS + 1))
#: Slightly more than five chunks, of which 1280 tokens can be restored.
TOKENS = CHUNKS * CHUNK + 20
#: Groups that are saved at every chunk, and ones saved at the last boundary only.
SHAPES = {
    "llama": (1, 0),
    "quantised": (1, 0),
    "rotating": (0, 1),
    "window": (1, 1),
    "hybrid": (1, 1),
    "list": (1, 1),
}


@pytest.fixture(scope="module")
def cluster(new_cluster: Callable[..., Cluster]) -> Cluster:
    return new_cluster(with_ssm=True)


@pytest.fixture
def start(folder: Path, cluster: Cluster) -> Iterator[Callable[..., MlxProgram]]:
    """Starts programs that end with the test."""
    made: list[MlxProgram] = []

    def begin(shape: str, name: str, **options: int) -> MlxProgram:
        made.append(MlxProgram(folder, f"{shape}-{name}", shape, cluster, **options))
        ready = made[-1].start()
        assert ready == {"ready": True, "refused": ""}
        return made[-1]

    yield begin
    for program in made:
        program.end()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_new_process_restores_what_a_killed_one_has_kept(
    shape: str, start: Callable[..., MlxProgram], cluster: Cluster
) -> None:
    rows, states = SHAPES[shape]
    before = cluster.saved()
    first = start(shape, "first")
    own = first.run(TEXT, TOKENS)
    assert own["restored"] == 0
    cluster.wait_saved(before + rows * CHUNKS + states)
    first.kill()
    second = start(shape, "second")
    again = second.run(TEXT, TOKENS)
    assert again["restored"] == CHUNKS * CHUNK >= 0.9 * TOKENS
    assert (again["logits"], again["tokens"]) == (own["logits"], own["tokens"])
    assert again["counters"].get("dropped_save_no_slot", 0) == 0


@pytest.mark.parametrize("shape", ["llama", "window"])
def test_other_weights_and_other_orders_share_nothing(
    shape: str, start: Callable[..., MlxProgram], cluster: Cluster
) -> None:
    rows, states = SHAPES[shape]
    before = cluster.saved()
    text = list(range(100, 100 + CHUNKS + 1))
    first = start(shape, "kept")
    own = first.run(text, TOKENS)
    cluster.wait_saved(before + rows * CHUNKS + states)
    swapped = first.run([text[1], text[0], *text[2:]], TOKENS)
    assert swapped["restored"] == 0
    later = first.run([text[0], text[2], text[1], *text[3:]], TOKENS)
    # A model with a window keeps nothing between the places where computing stopped.
    assert later["restored"] == (CHUNK if shape == "llama" else 0)
    stranger = start(shape, "stranger", seed=2)
    assert stranger.run(text, TOKENS)["restored"] == 0
    # The comparison must detect a difference: reordered keys give other logits.
    spoiled = start(shape, "spoiled").run(text, TOKENS, spoil=True)
    assert spoiled["restored"] == CHUNKS * CHUNK
    assert spoiled["logits"] != own["logits"]


def test_a_state_that_has_seen_more_than_the_tokens_is_not_kept_for_them(
    start: Callable[..., MlxProgram],
) -> None:
    program = start("hybrid", "ahead")
    # After five answers the tokens fill whole chunks, but mlx-lm has computed one more.
    answer = program.run(list(range(400, 403)), 3 * CHUNK - 5)
    assert answer["kept"] == 0
    assert answer["counters"]["bytes_offered"] > 0


def test_weights_that_are_replaced_have_no_name(start: Callable[..., MlxProgram]) -> None:
    program = start("llama", "trained")
    program.order("change_weights")
    answer = program.run(list(range(200, 203)), 2 * CHUNK + 20)
    assert "weights were replaced" in answer["refused"]
    assert (answer["restored"], answer["kept"]) == (0, 0)
    assert len(answer["tokens"]) == 6


@pytest.mark.parametrize("as_item", [True, False])
def test_weights_that_are_written_in_place_have_no_name(
    start: Callable[..., MlxProgram], as_item: bool
) -> None:
    program = start("llama", f"written-{as_item}")
    assert program.run(list(range(210, 213)), 2 * CHUNK + 20)["refused"] == ""
    program.order("write_weights", as_item=as_item)
    answer = program.run(list(range(210, 213)), 2 * CHUNK + 20)
    assert "weights were written" in answer["refused"]
    assert (answer["restored"], answer["kept"]) == (0, 0)
    assert len(answer["tokens"]) == 6


#: Models that differ only in values that a function captured when it was made.
_KEPT = """
import functools, sys
sys.path.insert(0, sys.argv[1])
import mlx.core as mx
from mlx import nn
from tierkv.mlx.form import ModelForm, UnnameableError

def plain(x):
    return x

class Scale:
    def __init__(self, by):
        self.by = by
    def apply(self, x):
        return x * self.by

def closure(by):
    return functools.wraps(plain)(lambda x: x * by)

class Model(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
    def own(self, x):
        return x

for make in (closure, lambda by: Scale(by).apply, lambda by: mx.compile(closure(by))):
    try:
        print(*{ModelForm(Model(make(by))).digest(print) for by in (1, 2)})
    except UnnameableError:
        print("refused")
own = Model(None)
own.function = own.own
print(len(ModelForm(own).digest(print)))
"""


def test_functions_that_keep_values_of_their_own_have_no_name() -> None:
    argv = [mlx_python(), "-I", "-c", _KEPT, str(ROOT / "python-shim")]
    said = subprocess.run(argv, capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert said.stdout.split() == ["refused", "refused", "refused", "64"]


def test_without_a_sidecar_it_computes_on(
    start: Callable[..., MlxProgram], cluster: Cluster
) -> None:
    program = start("llama", "alone")
    text = list(range(300, 303))
    own = program.run(text, 2 * CHUNK + 20)
    cluster.sidecar.kill()
    answer = program.run(text, 2 * CHUNK + 20)
    assert answer["restored"] == 0
    assert answer["tokens"] == own["tokens"]
    cluster.sidecar.start()
    cluster.wait_restoring()
    assert program.run(text, 2 * CHUNK + 20)["restored"] == 2 * CHUNK


def test_a_process_that_holds_int8_never_becomes_an_exact_one(
    new_cluster: Callable[..., Cluster], folder: Path
) -> None:
    lossy = new_cluster(int8=True)
    text, tokens = list(range(500, 503)), 2 * CHUNK + 20
    first = MlxProgram(folder, "int8-first", "llama", lossy)
    first.start()
    assert first.run(text, tokens)["kept"] == 2
    lossy.wait_saved(2)
    first.kill()
    second = MlxProgram(folder, "int8-second", "llama", lossy)
    second.start()
    assert second.run(text, tokens)["restored"] == 2 * CHUNK
    lossy.sidecar.stop()
    config = lossy.config_path.read_text().replace('kv = "int8"', 'kv = "raw"')
    lossy.config_path.write_text(config.replace("enabled = true", "enabled = false"))
    lossy.sidecar.start()
    wait_until(lambda: lossy.status()["engines"], "it is there again")
    told = wait_until(
        lambda: [
            e["naming"]["refused"] for e in lossy.status()["engines"] if e["naming"]["refused"]
        ],
        "it has no name any more",
    )
    assert "fidelity 0" in told[0]
    assert second.run(text, tokens)["kept"] == 0
    assert lossy.saved() == 0
    second.end()


@pytest.mark.parametrize("spec", [PLAIN, WINDOWED], ids=["plain", "windowed"])
def test_a_server_that_is_started_again_goes_on_where_the_killed_one_was(
    spec: Spec, cluster: Cluster, models: Models, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIERKV_CONFIG", str(cluster.config_path))
    text = "".join(chr(97 + (at * at // 7) % 26) for at in range(3 * CHUNK + 20))
    before = cluster.saved()
    answers = []
    for name in (f"{spec.kind}-1", f"{spec.kind}-2"):
        server = MlxServer(folder, name, models.path(spec))
        server.start()
        try:
            # A short prompt makes the server name the model in the background, and computes nothing of the other.
            server.complete("hello")
            cluster.wait_restoring()
            answers.append(server.complete(text))
            cluster.wait_saved(before + 3)
        finally:
            server.kill()
        wait_until(lambda: not cluster.status()["engines"], "the sidecar has seen it go")
    first, second = answers
    # Tokens that tierKV computes itself were in no cache.
    assert (first["cached"], second["cached"]) == (0, 3 * CHUNK)
    assert second["text"] == first["text"]
    assert second["cached"] >= 0.9 * second["tokens"]


#: Parts of a split model that restore different lengths would compute different tokens, or wait for ever.
_SPLIT = """
import sys
sys.path.insert(0, sys.argv[1])
from types import SimpleNamespace
from tierkv.mlx import server

server.Tier = lambda model, label: f"a tier of {label}"
for is_distributed in (False, True):
    provider = SimpleNamespace(
        model_key=("m", None, None), model=None, draft_model=None, is_distributed=is_distributed
    )
    print(server.TieredPromptCache(provider)._current(provider.model_key))
"""


def test_a_model_that_is_split_over_machines_has_no_tier() -> None:
    argv = [mlx_python(), "-I", "-c", _SPLIT, str(ROOT / "python-shim")]
    said = subprocess.run(argv, capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert said.stdout.splitlines() == ["a tier of m", "None"]
