"""A model is named by every byte of its files, wherever they lie; what cannot be read whole has no name."""

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api.exempt import FILES
from tierkv.connectors.vllm.naming import digests
from tierkv.connectors.vllm.naming.files import hub_cache
from tierkv.connectors.vllm.naming.weights import Weights, read_ahead, weights_of

from .support.engine import vllm_config

#: Later than any file of a test.
LATER_NS = 1 << 62
COMMIT = "a" * 40


def make_model(folder: Path, weights: bytes = bytes(range(256)) * 64) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text('{"hidden_size": 8}')
    (folder / "preprocessor_config.json").write_text('{"size": 336}')
    (folder / "model.safetensors").write_bytes(weights)
    return folder


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def named(config: Any, state: Path) -> Weights:
    """A model that was read to the end."""
    weights = Weights(config, state, LATER_NS)
    weights.start()
    weights._thread.join()
    assert bool(weights.digest) != bool(weights.refused)
    return weights


def digest(config: Any, state: Path) -> str:
    found = named(config, state)
    assert found.refused == ""
    assert found.percent == 100
    return found.digest


def test_one_model_at_two_places_has_one_name(tmp_path: Path, state: Path) -> None:
    one, two = make_model(tmp_path / "one"), make_model(tmp_path / "two")
    assert digest(vllm_config(one), state) == digest(vllm_config(two), state)


@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json", "model.safetensors"])
def test_f25_every_byte_of_every_file_counts(name: str, tmp_path: Path, state: Path) -> None:
    model = make_model(tmp_path / "m")
    data = bytearray((model / name).read_bytes())
    seen = {digest(vllm_config(model), state)}
    places = [0, 1, len(data) // 3, len(data) - 1]
    for place in places:
        data[place] ^= 1
        (model / name).write_bytes(data)
        seen.add(digest(vllm_config(model), state))
        data[place] ^= 1
    assert len(seen) == 1 + len(places)


def test_a_file_more_in_a_folder_below_and_under_another_name_counts(
    tmp_path: Path, state: Path
) -> None:
    model = make_model(tmp_path / "m")
    seen = [digest(vllm_config(model), state)]
    for name in ("more.safetensors", "other.safetensors", "below/more.safetensors", "modeling.py"):
        path = model / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"more")
        seen.append(digest(vllm_config(model), state))
        path.unlink()
    assert len(set(seen)) == len(seen)


def test_files_that_cannot_change_a_block_do_not_count(tmp_path: Path, state: Path) -> None:
    model = make_model(tmp_path / "m")
    before = digest(vllm_config(model), state)
    for pattern in FILES:
        (model / pattern.replace("*", "x")).write_text("other")
    (model / ".git").mkdir()
    (model / ".git" / "HEAD").write_text("other")
    (model / "below").mkdir()
    (model / "below" / "again").symlink_to(model)  # a circle
    assert digest(vllm_config(model), state) == before


def test_f25_every_source_of_weights_counts(tmp_path: Path, state: Path) -> None:
    model, other = make_model(tmp_path / "m"), make_model(tmp_path / "w", b"other")
    third = make_model(tmp_path / "x", b"third")
    seen = []
    for path in (None, other, third):
        config = vllm_config(model)
        config.model_config.model_weights = str(path or "")
        seen.append(digest(config, state))
    for path in (other, third):
        config = vllm_config(model)
        config.load_config.model_loader_extra_config = {"deep": [{"path": str(path)}], "n": 3}
        seen.append(digest(config, state))
        config = vllm_config(model)
        draft = vllm_config(path).model_config
        config.speculative_config = SimpleNamespace(
            draft_model_config=draft, draft_load_config=None
        )
        seen.append(digest(config, state))
        config = vllm_config(model)
        scales = str(path / "model.safetensors")
        config.model_config.multimodal_config = SimpleNamespace(mm_encoder_fp8_scale_path=scales)
        seen.append(digest(config, state))
        seen.append(digest(vllm_config(path / "model.safetensors"), state))
    assert len(set(seen)) == len(seen)


def in_hub(cache: Path, weights: bytes, sha256: str, *, is_blob: bool = True) -> None:
    """A snapshot as the hub's library writes it: links to blobs that bear the digest of their content."""
    folder = cache / "models--org--model"
    snapshot = folder / "snapshots" / COMMIT
    snapshot.mkdir(parents=True, exist_ok=True)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text(COMMIT)
    (folder / "blobs").mkdir(exist_ok=True)
    (snapshot / "config.json").write_text("{}")
    blob, link = folder / "blobs" / sha256, snapshot / "model.safetensors"
    link.unlink(missing_ok=True)
    blob.write_bytes(weights)
    if is_blob:
        link.symlink_to(blob)
    else:
        link.write_bytes(weights)


def test_f25_a_hub_model_is_named_by_its_blobs_without_reading_them(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    seen = []
    for sha256 in ("1" * 64, "2" * 64):
        in_hub(tmp_path, b"the same", sha256)
        weights = named(vllm_config("org/model"), state)
        assert weights._files.total_bytes == len("{}")
        seen.append(weights.digest)
    # Who edits a snapshot by hand puts a file in a link's place; it is read, as is a blob of another name.
    in_hub(tmp_path, b"the same", "1" * 64, is_blob=False)
    assert named(vllm_config("org/model"), state)._files.total_bytes == len("{}the same")
    in_hub(tmp_path, b"the same", "1" * 40)
    assert named(vllm_config("org/model"), state)._files.total_bytes == len("{}the same")
    assert len(set(seen)) == 2


def test_a_hub_model_without_a_known_commit_is_found_by_its_revision_or_refused(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    in_hub(tmp_path, b"w", "1" * 64)
    config = vllm_config("org/model")
    assert digest(config, state)
    config.model_config.revision = COMMIT
    assert digest(config, state)
    config.model_config.revision = "other"
    assert "no snapshot of org/model" in named(config, state).refused
    config.model_config.hf_config._commit_hash = COMMIT
    assert digest(config, state)
    # Where weights and configuration lie apart, both count.
    in_hub(tmp_path / "apart", b"w", "2" * 64)
    before = digest(config, state)
    config.load_config.download_dir = str(tmp_path / "apart")
    assert digest(config, state) != before


def remote(config: Any) -> None:
    config.model_config.model_weights = "s3://bucket/model"


def remote_option(config: Any) -> None:
    config.load_config.model_loader_extra_config = {"tensorizer_uri": "https://host/model"}


def elsewhere(config: Any) -> None:
    config.model_config.model = "org/nowhere"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (remote, "come from s3://bucket/model"),
        (remote_option, "come from https://host/model"),
        (elsewhere, "no snapshot of org/nowhere"),
    ],
)
def test_f25_weights_that_cannot_be_read_here_have_no_name(
    change: Any, reason: str, tmp_path: Path, state: Path
) -> None:
    config = vllm_config(make_model(tmp_path / "m"))
    change(config)
    assert reason in named(config, state).refused


def test_a_cache_without_digests_and_a_folder_without_weights_have_no_name(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_USE_MODELSCOPE", "True")
    assert "ModelScope" in named(vllm_config("org/model"), state).refused
    model = make_model(tmp_path / "m")
    (model / "model.safetensors").unlink()
    assert "no weights" in named(vllm_config(model), state).refused
    config = vllm_config(model)
    config.load_config.load_format = "dummy"
    assert digest(config, state)
    monkeypatch.setattr(limits, "WEIGHT_FILES_MAX", 1)
    assert "more than 1 files" in named(config, state).refused


def test_the_hubs_cache_is_found_by_its_librarys_rule() -> None:
    home = Path.home()
    assert hub_cache({}) == home / ".cache/huggingface/hub"
    assert hub_cache({"XDG_CACHE_HOME": "/c"}) == Path("/c/huggingface/hub")
    assert hub_cache({"HF_HOME": "/h", "XDG_CACHE_HOME": "/c"}) == Path("/h/hub")
    assert hub_cache({"HF_HUB_CACHE": "/x", "HF_HOME": "/h"}) == Path("/x")


def test_an_error_nobody_thought_of_is_a_refusal(state: Path) -> None:
    assert "cannot be read" in named(SimpleNamespace(), state).refused


def test_it_starts_once_and_ends_when_told(tmp_path: Path, state: Path) -> None:
    model = make_model(tmp_path / "m")
    weights = Weights(vllm_config(model), state, LATER_NS)
    weights.close()
    weights.start()
    weights.start()
    weights._thread.join()
    assert weights.refused == "the engine ends"
    assert weights.percent < 100
    assert not os.path.exists(state / "weights.json") or weights.digest == ""


def test_what_a_worker_began_to_read_its_scheduler_side_goes_on_with(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    config = vllm_config(make_model(tmp_path / "m"))
    config.parallel_config.distributed_executor_backend = "uni"
    read_ahead(config, "")
    begun = weights_of(config, "")
    assert begun._thread.ident is not None
    begun._thread.join()
    other = weights_of(config, "")
    assert other is not begun
    assert other._thread.ident is None


def test_a_process_beside_one_that_reads_waits_for_its_digests(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = vllm_config(make_model(tmp_path / "m"))
    monkeypatch.setattr(limits, "DIGEST_SETTLED_NS", -LATER_NS)
    first, second = Weights(config, state, LATER_NS), Weights(config, state, LATER_NS)
    may_read, reads = threading.Event(), threading.Event()
    read_all = first._files._read_all

    def wait_and_read(wanted: Any) -> None:
        reads.set()
        may_read.wait()
        read_all(wanted)

    monkeypatch.setattr(first._files, "_read_all", wait_and_read)
    is_put_off = threading.Event()
    take = digests._takes

    def takes(lock: int) -> bool:
        is_free = take(lock)
        if not is_free:
            is_put_off.set()
        return is_free

    monkeypatch.setattr(digests, "_takes", takes)
    first.begin()
    assert reads.wait(10)
    second.begin()
    assert is_put_off.wait(10)
    may_read.set()
    second._thread.join()
    assert second.digest == first.digest
    assert second._files.done_bytes == 0
