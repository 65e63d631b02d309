"""The arena mapping: the promised size or none, slots side by side, alive after the sidecar is gone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.link.counters import Counters
from tierkv.connectors.vllm.pages.arena import Arena
from tierkv.connectors.vllm.pages.copies import CpuCopier
from tierkv.connectors.vllm.pages.credits import Credits

from .support import another_system
from .support.sidecar import FakeArena


def test_slots_show_the_shared_memory_both_ways() -> None:
    fake = FakeArena(4096, 4)
    arena = Arena(1, fake.fd, 4 * 4096, 4096, 4)
    fake.write(2, b"from the sidecar")
    assert arena.slot(2)[:16].numpy().tobytes() == b"from the sidecar"
    arena.slot(1)[0] = 77
    assert fake.slot(1)[0] == 77
    assert fake.slot(0) == bytes(4096)
    fake.close()


def test_f18_the_mapping_outlives_the_sidecars_file() -> None:
    fake = FakeArena(4096, 1)
    arena = Arena(1, fake.fd, 4096, 4096, 1)
    fake.write(0, b"late")
    fake.close()
    assert arena.slot(0)[:4].numpy().tobytes() == b"late"


@pytest.mark.parametrize("number", [-1, 4, 1 << 31])
def test_a_slot_outside_is_refused(number: int) -> None:
    fake = FakeArena(4096, 4)
    arena = Arena(1, fake.fd, 4 * 4096, 4096, 4)
    fake.close()
    with pytest.raises(ValueError, match=f"slot {number} is not one of the arena's 4"):
        arena.slot(number)


@pytest.mark.parametrize(
    ("size", "slot_bytes", "slot_count", "complaint"),
    [
        (5 * 4096, 4096, 5, "the sidecar promised 20480"),
        (4096, 4096, 2, "2 slots of 4096 bytes do not fit 4096"),
        (4096, 0, 1, "do not fit"),
        (4096, 4096, 0, "do not fit"),
        (4096, 4096, -1, "do not fit"),
    ],
)
def test_a_size_that_cannot_be_is_refused(
    size: int, slot_bytes: int, slot_count: int, complaint: str
) -> None:
    fake = FakeArena(4096, 4)
    with pytest.raises(OSError, match=complaint):
        Arena(1, fake.fd, size, slot_bytes, slot_count)
    fake.close()


def test_without_a_descriptor_it_is_an_os_error() -> None:
    with pytest.raises(OSError, match="arena 1 came without its descriptor"):
        Arena(1, None, 4096, 4096, 1)


def test_what_is_no_shared_memory_of_ours_is_refused(tmp_path: Path) -> None:
    with open("/dev/zero", "rb") as device, pytest.raises(OSError, match="no shared memory"):
        Arena(1, device.fileno(), 4096, 4096, 1)
    if hasattr(os, "memfd_create"):
        unsealed = os.memfd_create("tierkv-test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(unsealed, 4096)
        with pytest.raises(OSError, match="not sealed"):
            Arena(1, unsealed, 4096, 4096, 1)
        os.close(unsealed)
    with (tmp_path / "arena").open("w+b") as file:
        file.truncate(4096)
        if os.geteuid() == 0:
            os.chown(file.fileno(), 65_534, 65_534)
            with pytest.raises(OSError, match="no shared memory of user 0"):
                Arena(1, file.fileno(), 4096, 4096, 1)
            os.chown(file.fileno(), 0, 0)
        assert Arena(1, file.fileno(), 4096, 4096, 1).slot(0)[0] == 0


def test_populating_ends_and_changes_no_byte() -> None:
    fake = FakeArena(limits.POPULATE_STEP_BYTES, 2)
    arena = Arena(1, fake.fd, fake.slot_bytes * 2, fake.slot_bytes, 2)
    fake.write(1, b"kept")
    arena.populate()
    assert _resident_bytes(arena) >= arena.bytes.numel()
    assert fake.slot(1)[:4] == b"kept"
    fake.close()


def test_the_newest_arenas_stay_mapped() -> None:
    table, copier = Credits(Counters(), lambda frame: True), CpuCopier()
    fakes = [FakeArena(4096, 1) for _ in range(limits.ARENAS_MAX + 2)]
    for number, fake in enumerate(fakes):
        named = {"arena": number, "fd": fake.fd, "slot_bytes": 4096, "slot_count": 1}
        table.take_in({"t": "arena", "bytes": 4096, **named}, copier)
        fake.close()
    kept = [number for number in range(len(fakes)) if table.mapped(number) is not None]
    assert kept == list(range(2, len(fakes)))


def test_an_arena_that_no_load_reads_any_more_is_given_up() -> None:
    table, copier = Credits(Counters(), lambda frame: True), CpuCopier()

    def take_in(number: int) -> None:
        fake = FakeArena(4096, 1)
        named = {"arena": number, "fd": fake.fd, "slot_bytes": 4096, "slot_count": 1}
        table.take_in({"t": "arena", "bytes": 4096, **named}, copier)
        fake.close()

    def mapped() -> list[int]:
        return [number for number in range(1, 5) if table.mapped(number) is not None]

    take_in(1)
    take_in(2)
    assert table.retire((3,)) is None  # this rank has yet to map it
    assert mapped() == [1, 2]
    take_in(3)
    take_in(4)  # newer than what the scheduler side knows
    old = table.retire((3,))
    assert old is not None
    assert [arena.arena_id for arena in old] == [1, 2]
    assert mapped() == [3, 4]
    assert table.retire((3,)) == []


def _resident_bytes(arena: Arena) -> int:
    """Present bytes of the mapping, as the kernel counts them."""
    start = f"{arena.bytes.data_ptr():x}-"
    with open("/proc/self/smaps", encoding="ascii") as file:
        lines = iter(file)
        for line in lines:
            if line.startswith(start):
                rss = next(later for later in lines if later.startswith("Rss:"))
                return int(rss.split()[1]) * 1024
    return 0


@pytest.mark.skipif(another_system.VARIABLE in os.environ, reason="of this process alone")
def test_f23_a_process_that_attached_and_ended_takes_no_memory_with_it() -> None:
    fake = FakeArena(4096, 2)
    fake.write(0, b"still here")
    code = (
        "import sys; from tierkv.connectors.vllm.pages.arena import Arena\n"
        "arena = Arena(1, int(sys.argv[1]), 8192, 4096, 2); assert bytes(arena.slot(0)[:5]) == b'still'"
    )
    run = [sys.executable, "-c", code, str(fake.fd)]
    done = subprocess.run(
        run, pass_fds=[fake.fd], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, "resource_tracker" in done.stderr) == (0, False), done.stderr
    assert Arena(2, fake.fd, 8192, 4096, 2).slot(0)[:10].numpy().tobytes() == b"still here"
    fake.close()
