"""Whole files are read once, by threads that give way; what changed meanwhile, or is not ours, is not believed."""

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from huggingface_hub._local_folder import write_download_metadata
from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.naming import digests
from tierkv.connectors.vllm.naming.digests import DigestStore, FileDigestError, FileDigests, Stamp

LATER_NS = 1 << 62


@pytest.fixture(autouse=True)
def files_have_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DIGEST_SETTLED_NS", -1 << 62)


def make_files(folder: Path, count: int = 5) -> list[Path]:
    paths = [folder / f"{number}.bin" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * (number * 1000 + 1))
    return paths


def read(folder: Path, paths: list[Path]) -> tuple[dict[Path, str], int]:
    """The digests, and how many bytes were read for them."""
    files = FileDigests(DigestStore(folder), LATER_NS)
    return files.read(paths), files.done_bytes


def expected(data: bytes) -> str:
    """The digest of a file: BLAKE3 of the digests of its segments."""
    at_once = limits.NAMING_SEGMENT_BYTES
    parts = [
        blake3(data[at : at + at_once]).digest() for at in range(0, max(1, len(data)), at_once)
    ]
    return f"blake3:{blake3(b''.join(parts)).hexdigest()}"


def test_files_are_read_whole_and_by_the_next_start_not_at_all(tmp_path: Path) -> None:
    paths = make_files(tmp_path)
    sizes = sum(path.stat().st_size for path in paths)
    found, bytes_read = read(tmp_path / "state", paths)
    assert found == {path: expected(path.read_bytes()) for path in paths}
    assert bytes_read == sizes
    assert read(tmp_path / "state", paths) == (found, 0)


def test_any_change_of_a_file_is_seen_by_its_stamp(tmp_path: Path) -> None:
    (path,) = make_files(tmp_path, 1)
    first = read(tmp_path / "state", [path])[0][path]
    found = path.stat()
    path.write_bytes(b"\x07")  # as long as before
    os.utime(
        path, ns=(found.st_atime_ns, found.st_mtime_ns)
    )  # and as old, but for the time of the change
    assert read(tmp_path / "state", [path])[0][path] != first


def test_a_file_that_has_just_changed_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DIGEST_SETTLED_NS", 3_600_000_000_000)
    paths = make_files(tmp_path)
    first = read(tmp_path / "state", paths)
    assert read(tmp_path / "state", paths) == first


def test_a_file_changed_after_the_engine_began_is_refused(tmp_path: Path) -> None:
    (path,) = make_files(tmp_path, 1)
    files = FileDigests(DigestStore(tmp_path / "state"), path.stat().st_ctime_ns - 1)
    with pytest.raises(FileDigestError, match=r"0\.bin was changed after this engine began"):
        files.read([path])


def test_a_file_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = make_files(tmp_path, 1)
    true = Stamp.of

    def later(found: os.stat_result) -> Stamp:
        path.write_bytes(b"other")
        return true(found)

    monkeypatch.setattr(Stamp, "of", later)
    files = FileDigests(DigestStore(tmp_path / "state"), LATER_NS)
    with pytest.raises(FileDigestError, match="changes while it is read"):
        files.read([path])


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    files = FileDigests(DigestStore(tmp_path / "state"), LATER_NS)
    with pytest.raises(FileDigestError, match=r"none\.bin: No such file"):
        files.read([tmp_path / "none.bin"])


def test_several_threads_read_one_file_and_all_give_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert digests.threads() == limits.NAMING_THREADS_MAX
    seen: set[tuple[int, int]] = set()
    together = threading.Barrier(limits.NAMING_THREADS_MAX)
    true = FileDigests._read_segment

    def note(self: FileDigests, *given: Any) -> None:
        together.wait(30)
        seen.add((threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0)))
        true(self, *given)

    monkeypatch.setattr(FileDigests, "_read_segment", note)
    monkeypatch.setattr(limits, "NAMING_SEGMENT_BYTES", 100)
    monkeypatch.setattr(limits, "NAMING_BUFFER_BYTES", 30)
    path = tmp_path / "one.bin"
    path.write_bytes(os.urandom(100 * limits.NAMING_THREADS_MAX - 7))
    found: dict[Path, str] = {}
    reading = threading.Thread(target=lambda: found.update(read(tmp_path / "state", [path])[0]))
    reading.start()
    reading.join(60)
    assert found == {path: expected(path.read_bytes())}
    assert len(seen) == limits.NAMING_THREADS_MAX
    # All but the caller, who sees to that himself (`Weights`).
    assert sorted(nice for _, nice in seen)[1:] == [limits.NAMING_NICE] * (len(seen) - 1)
    assert os.getpriority(os.PRIO_PROCESS, 0) < limits.NAMING_NICE


@pytest.mark.parametrize(("processors", "count"), [(1, 1), (2, 2), (3, 2), (8, 4), (None, 1)])
def test_half_of_the_processors_read_and_two_where_there_are_two(
    processors: int | None, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    assert digests.threads() == count


# --- what a download noted -----------------------------------------------------------------------


def downloaded(folder: Path, etag: str, *, later_s: float = 0.0) -> Path:
    """A file as `hf download --local-dir` leaves it: beside it a note of its commit, ETag and time."""
    path = folder / "part" / "model.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"weights")
    write_download_metadata(folder, "part/model.safetensors", "c0ffee", etag)
    note = folder / ".cache" / "huggingface" / "download" / "part" / "model.safetensors.metadata"
    commit, tag, noted_s = note.read_text().split()
    note.write_text(f"{commit}\n{tag}\n{float(noted_s) + later_s}\n")
    return path


def test_the_digest_that_a_download_noted_is_taken_unread(tmp_path: Path) -> None:
    path = downloaded(tmp_path / "model", "ab" * 32)
    assert read(tmp_path / "state", [path]) == ({path: "ab" * 32}, 0)


def test_a_file_that_changed_after_its_download_is_read(tmp_path: Path) -> None:
    path = downloaded(tmp_path / "model", "ab" * 32, later_s=-5.0)
    assert read(tmp_path / "state", [path]) == ({path: expected(b"weights")}, 7)


def test_a_replaced_file_is_read_though_it_looks_older(tmp_path: Path) -> None:
    path = downloaded(tmp_path / "model", "ab" * 32, later_s=-5.0)
    os.utime(path, (1, 1))
    assert read(tmp_path / "state", [path])[0] == {path: expected(b"weights")}


@pytest.mark.parametrize("etag", ["ab" * 20, "", "no digest", "AB" * 32])
def test_another_note_is_no_digest(tmp_path: Path, etag: str) -> None:
    path = downloaded(tmp_path / "model", "ab" * 32)
    note = next((tmp_path / "model" / ".cache").rglob("*.metadata"))
    note.write_text(note.read_text().replace("ab" * 32, etag))
    assert read(tmp_path / "state", [path])[0] == {path: expected(b"weights")}


def test_the_store_is_ours_alone_and_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DIGESTS_KEPT_MAX", 3)
    paths = make_files(tmp_path)
    read(tmp_path / "state", paths)
    kept = tmp_path / "state" / "weights.json"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert kept.parent.stat().st_mode & 0o777 == 0o700
    assert len(json.loads(kept.read_text())["files"]) == 3
    (lock,) = {*kept.parent.iterdir()} - {kept}
    assert lock.name.startswith("reading-")
    assert lock.stat().st_mode & 0o777 == 0o600


def test_two_engines_keep_what_both_have_read(tmp_path: Path) -> None:
    one, two = make_files(tmp_path, 2)
    early = FileDigests(DigestStore(tmp_path / "state"), LATER_NS)
    read(tmp_path / "state", [two])
    early.read([one])
    assert read(tmp_path / "state", [one, two])[1] == 0


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"version": 1, "files": {}}', '{"version": 2, "files": [1]}', "\xff"]
)
def test_a_damaged_store_is_an_empty_one(text: str, tmp_path: Path) -> None:
    (path,) = make_files(tmp_path, 1)
    (tmp_path / "weights.json").write_text(text, encoding="latin-1")
    assert read(tmp_path, [path])[1] == 1
    assert read(tmp_path, [path])[1] == 0


def test_a_store_that_others_may_write_or_that_is_a_link_is_not_read(tmp_path: Path) -> None:
    (path,) = make_files(tmp_path, 1)
    read(tmp_path, [path])
    kept = tmp_path / "weights.json"
    kept.chmod(0o620)
    assert read(tmp_path, [path])[1] == 1
    away = tmp_path / "away.json"
    kept.rename(away)
    kept.symlink_to(away)
    assert read(tmp_path, [path])[1] == 1
    assert not kept.is_symlink()  # replaced by our own


def test_without_a_place_to_write_it_works_the_same(tmp_path: Path) -> None:
    (path,) = make_files(tmp_path, 1)
    assert read(path, [path])[1] == 1  # a file where the folder should be
    assert read(path, [path])[1] == 1


def test_the_birth_of_a_process_lies_in_its_past() -> None:
    born_ns = digests.process_born_ns() - limits.NAMING_CLOCK_MARGIN_NS
    assert 0 < time.time_ns() - born_ns < 86_400_000_000_000


def test_the_state_folder_is_the_vaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/s")
    assert digests.state_folder() == Path("/s/tierkv")
    monkeypatch.delenv("XDG_STATE_HOME")
    assert digests.state_folder() == Path.home() / ".local/state/tierkv"
