"""Whole files are read once, by threads that give way; what changed meanwhile, or is not ours, is not believed."""

import hashlib
import json
import os
import threading
import time
from pathlib import Path

import pytest
from tierkv.connectors.vllm import digests, limits
from tierkv.connectors.vllm.digests import DigestStore, FileDigestError, FileDigests, Stamp

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


def test_files_are_read_whole_and_by_the_next_start_not_at_all(tmp_path: Path) -> None:
    paths = make_files(tmp_path)
    sizes = sum(path.stat().st_size for path in paths)
    found, bytes_read = read(tmp_path / "state", paths)
    assert found == {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
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


def test_several_threads_read_and_all_give_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert digests.threads() == limits.NAMING_THREADS_MAX
    seen: set[tuple[int, int]] = set()
    together = threading.Barrier(limits.NAMING_THREADS_MAX)
    true = FileDigests._read_one

    def note(self: FileDigests, path: Path, stamp: Stamp) -> str:
        together.wait(30)
        seen.add((threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0)))
        return true(self, path, stamp)

    monkeypatch.setattr(FileDigests, "_read_one", note)
    paths = make_files(tmp_path, limits.NAMING_THREADS_MAX)
    reading = threading.Thread(target=read, args=(tmp_path / "state", paths))
    reading.start()
    reading.join(60)
    assert len(seen) == limits.NAMING_THREADS_MAX
    # All but the caller, who sees to that himself (`Weights`).
    assert sorted(nice for _, nice in seen)[1:] == [limits.NAMING_NICE] * (len(seen) - 1)
    assert os.getpriority(os.PRIO_PROCESS, 0) < limits.NAMING_NICE


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
    assert [path.name for path in kept.parent.iterdir()] == ["weights.json"]


def test_two_engines_keep_what_both_have_read(tmp_path: Path) -> None:
    one, two = make_files(tmp_path, 2)
    early = FileDigests(DigestStore(tmp_path / "state"), LATER_NS)
    read(tmp_path / "state", [two])
    early.read([one])
    assert read(tmp_path / "state", [one, two])[1] == 0


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"version": 2, "files": {}}', '{"version": 1, "files": [1]}', "\xff"]
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
