"""The small models of bench/fidelity: a model of the same stamp is trained once."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

SCRIPT = Path(__file__).parents[2] / "bench" / "fidelity" / "train.py"
MODULES = 40
TINY = {"hidden_size": 32, "intermediate_size": 64, "head_dim": 16, "max_position_embeddings": 64}


@pytest.fixture
def train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Run a copy of the script beside a small library; give what it printed."""
    script = tmp_path / "bench" / "fidelity" / "train.py"
    script.parent.mkdir(parents=True)
    script.write_text(SCRIPT.read_text())
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("A page.\n")
    library = tmp_path / "library"
    library.mkdir()
    for index in range(MODULES):
        body = f"value = {index}\n\n\ndef read(path: str) -> str:\n    return path\n" * 4
        (library / f"module{index}.py").write_text(body)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(*given: str, is_real: bool = False) -> str:
        spec = importlib.util.spec_from_file_location("train_copy", script)
        assert spec is not None
        assert spec.loader is not None
        module: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.library = lambda: library
        module.HELD_OUT_TOKENS = module.LENGTH = 64
        module._SIZES |= TINY
        # Its own kernels would be compiled first.
        module.SHAPES["hybrid"] = module.llama
        if not is_real:
            module.train = lambda _model, _tokens, options: [{"step": options.steps, "loss": 0.0}]
        monkeypatch.setattr(sys, "argv", ["train.py", "--batch", "1", "--length", "32", *given])
        module.main()
        return capsys.readouterr().out

    return run


def test_a_finished_model_of_the_same_stamp_is_not_trained_again(
    train: Callable[..., str], tmp_path: Path
) -> None:
    into = tmp_path / "model"
    first = ("--steps", "2", "--into", str(into))
    assert "nats a token" in train(*first, is_real=True)
    before = {path.name: path.stat().st_mtime_ns for path in into.iterdir()}
    # Threads decide nothing that is learnt.
    assert "trained already" in train(*first, "--threads", "1")
    assert {path.name: path.stat().st_mtime_ns for path in into.iterdir()} == before

    assert "nats a token" in train("--steps", "3", "--into", str(into))
    assert json.loads((into / "training.json").read_text())["losses"][-1]["step"] == 3


def test_another_script_other_text_and_a_damaged_model_are_trained_anew(
    train: Callable[..., str], tmp_path: Path
) -> None:
    into = tmp_path / "model"
    given = ("--steps", "1", "--into", str(into))
    assert "nats a token" in train(*given)
    script = tmp_path / "bench" / "fidelity" / "train.py"
    changes: list[Callable[[], object]] = [
        lambda: script.write_text(script.read_text() + "# changed\n"),
        lambda: (tmp_path / "docs" / "page.md").write_text("Another page.\n"),
        lambda: (into / "model.safetensors").write_bytes(b"half of it"),
        lambda: (into / "training.json").write_text("{"),
    ]
    for changed in changes:
        changed()
        assert "nats a token" in train(*given)
        assert "trained already" in train(*given)


def test_another_shape_does_not_take_the_repositorys_place(
    train: Callable[..., str], tmp_path: Path
) -> None:
    assert "nats a token" in train("--shape", "hybrid", "--steps", "1")
    cached = tmp_path / "cache" / "tierkv" / "trained-hybrid"
    assert (cached / "model.safetensors").exists()
    assert not (tmp_path / "bench" / "fidelity" / "model").exists()
    assert str(cached) in train("--shape", "hybrid", "--steps", "1")
