"""An engine without vLLM speaks the local protocol: it names itself, asks, reads and saves."""

import logging
import socket
import threading
import time
import types
from collections.abc import Iterator
from typing import Any

import pytest
from tierkv.connectors.vllm.link.frames import Frame, encode
from tierkv.connectors.vllm.link.link import Asked, Link, Plan, Save
from tierkv.connectors.vllm.link.settings import Settings
from tierkv.mlx import exo

from .support.sidecar import WELCOME, FakeArena, FakeSidecar, pairs, wait_until

NAME = b"n" * 32
HASHES = [bytes([number]) * 32 for number in (1, 2, 3)]
ASKED = [Asked(0, "kv", HASHES)]
ARENA = 77
#: Seconds in which a new connection opens on a busy machine.
RETRY_S = 10.0


class Bench:
    """A link and the sidecar it speaks with."""

    def __init__(self, path: str) -> None:
        # Longer than a test waits: what ends a question here is not its time.
        self.sidecar = FakeSidecar(path, {**WELCOME, "wait_ms": 60_000})
        self.arena = FakeArena(4096, 4)
        self.name, self.weights = NAME, "memory:test"
        settings = Settings(path, "test", autostart=False)
        register: Frame = {"t": "register", "model": "m", "groups": []}
        self.opened = 0
        self.decided: list[Frame] = []
        self.link = Link(
            settings,
            "mlx-lm 0",
            register,
            engine="one-place",
            name=lambda fidelity: (self.name, {"fidelity": str(fidelity)}),
            identity=lambda: {"t": "weights", "weights": self.weights, "order": 1},
            reports=dict,
            opened=self.note_open,
            decided=self.decided.append,
        )

    def note_open(self) -> None:
        self.opened += 1

    def to(self, role: str, frame: Frame, fd: int | None = None) -> None:
        """Send to one half of the engine."""
        roles = [hello["role"] for hello in self.sidecar.hellos]
        connection = self.sidecar.connections[len(roles) - 1 - roles[::-1].index(role)]
        data = encode(frame)
        sent = 0 if fd is None else socket.send_fds(connection, [data], [fd])
        connection.sendall(data[sent:])

    def come_up(self) -> None:
        self.link.start()
        wait_until(lambda: len(self.sidecar.connections) == 2, "both halves are there")
        self.sidecar.expect("register")
        frame = {key: value for key, value in self.arena.frame(ARENA).items() if key != "fd"}
        self.to("worker", frame, self.arena.fd)
        assert self.sidecar.expect("mapped")[0]["arena"] == ARENA
        self.to("worker", {"t": "credits", "arena": ARENA, "slots": pairs((0, 5), (1, 6))})
        self.to("scheduler", {"t": "restore", "arena": ARENA, "on": True})
        assert self.link.wait_until_on(10.0)

    def ask(self) -> "Question":
        return Question(self.link)


class Question:
    """A question whose answer the test gives."""

    def __init__(self, link: Link) -> None:
        self.answer: Plan | None = None
        self._thread = threading.Thread(target=self._run, args=(link,), daemon=True)
        self._thread.start()

    def _run(self, link: Link) -> None:
        self.answer = link.ask(ASKED)

    def wait(self) -> Plan | None:
        self._thread.join(10.0)
        assert not self._thread.is_alive()
        return self.answer


@pytest.fixture
def bench(socket_path: str) -> Iterator[Bench]:
    found = Bench(socket_path)
    with found.sidecar:
        yield found
        found.link.close()


def of(plan: Frame, **fields: Any) -> Frame:
    return {"req": plan["req"], "plan": plan["plan"], **fields}


def test_it_restores_from_the_slots_that_were_placed_and_gives_them_back(bench: Bench) -> None:
    bench.come_up()
    assert bench.sidecar.expect("namespace")[0]["namespace"] == NAME
    question = bench.ask()
    (asked,) = bench.sidecar.expect("prefetch")
    assert asked["groups"] == [{"group": 0, "class": "kv", "hashes": b"".join(HASHES), "from": 0}]
    bench.arena.write(3, b"third")
    held = [{"group": 0, "held": b"\x03"}]
    slots = b"".join(number.to_bytes(4, "little") for number in (3, 2))
    bench.to("scheduler", of(asked, t="held", groups=held, tokens=512))
    bench.to("scheduler", of(asked, t="placed", group=0, first=0, slots=slots, local=0))
    bench.to("scheduler", of(asked, t="done", reason="complete"))
    plan = question.wait()
    assert plan is not None
    assert (plan.reason, plan.tokens) == ("complete", 512)
    assert [plan.is_held(0, at) for at in range(3)] == [True, True, False]
    views = bench.link.read(plan, 0, range(2))
    assert views is not None
    assert bytes(views[0][:5]) == b"third"
    assert bench.link.read(plan, 0, range(3)) is None
    bench.link.release(plan, 512, 0.25)
    (released,) = bench.sidecar.expect("release")
    assert (released["plan"], released["tokens"], released["load_us"]) == (
        asked["plan"],
        512,
        250_000,
    )


def test_a_filled_slot_is_handed_over_and_none_is_used_twice(bench: Bench) -> None:
    bench.come_up()
    taken = [bench.link.take(10.0) for _ in range(2)]
    first, second = (found for found in taken if found is not None)
    assert [(slot.number, slot.generation) for slot in (first, second)] == [(0, 5), (1, 6)]
    assert bench.link.take(0.0) is None
    second.view[:4] = b"mine"
    bench.link.save(NAME, [Save(second, 0, HASHES[1], HASHES[0], 512, HASHES[0])])
    bench.link.give_back(first)
    (saved,) = bench.sidecar.expect("save")
    row = [1, 6, 0, HASHES[1], HASHES[0], 512, 0, HASHES[0]]
    assert (saved["arena"], saved["namespace"], saved["items"]) == (ARENA, NAME, [row])
    assert bench.sidecar.expect("return")[0]["slots"] == pairs((0, 5))
    assert bench.arena.slot(1)[:4] == b"mine"


def test_a_connection_that_ends_voids_slots_and_ends_the_question(bench: Bench) -> None:
    bench.come_up()
    question = bench.ask()
    bench.sidecar.expect("prefetch")
    before = bench.opened  # more than once where a busy machine answered a ping too late
    bench.sidecar.drop_connections()
    assert question.wait() is None
    assert bench.link.take(0.0) is None
    assert bench.link.ask(ASKED) is None

    dropped_s = time.monotonic()

    def has_come_back() -> bool:
        nonlocal dropped_s
        if bench.opened > before:
            return True
        # One that was being opened meanwhile, on a busy machine; a new one is given time to open.
        if time.monotonic() - dropped_s > RETRY_S:
            bench.sidecar.drop_connections()
            dropped_s = time.monotonic()
        return False

    wait_until(has_come_back, "it has come back")
    # A sidecar that has come back is told the name though nobody asks for blocks.
    bench.sidecar.expect("namespace", before + 1)


def test_a_slot_of_an_arena_that_has_gone_is_never_handed_over_as_one_of_the_next(
    bench: Bench,
) -> None:
    bench.come_up()
    slot = bench.link.take(10.0)
    assert slot is not None
    frame = {key: value for key, value in bench.arena.frame(ARENA + 1).items() if key != "fd"}
    bench.to("worker", frame, bench.arena.fd)
    bench.sidecar.expect("mapped", 2)
    bench.link.save(NAME, [Save(slot, 0, HASHES[0], bytes(32), 256, HASHES[0])])
    assert bench.sidecar.expect("save")[0]["arena"] == ARENA


def test_a_look_up_that_no_request_waits_for_can_be_reclaimed(bench: Bench) -> None:
    bench.come_up()
    first, second = (bench.link.begin(ASKED, is_waiting=False) for _ in range(2))
    assert first is not None
    assert second is not None
    asked, other = bench.sidecar.expect("prefetch", 2)
    bench.link.press(second)
    assert bench.sidecar.expect("asked")[0]["plan"] == other["plan"]
    slots = (3).to_bytes(4, "little")
    for frame in (asked, other):
        bench.to("scheduler", of(frame, t="placed", group=0, first=0, slots=slots, local=0))
        bench.to("scheduler", of(frame, t="reclaim"))
    assert bench.link.wait(lambda: first.reason and second.slots, 10.0)
    assert bench.sidecar.expect("release")[0]["plan"] == asked["plan"]
    assert (first.reason, bench.link.read(first, 0, range(1))) == ("closed", None)
    assert bench.link.read(second, 0, range(1)) is not None


def test_another_generation_of_weights_is_named_anew_before_anything_is_asked(
    bench: Bench,
) -> None:
    bench.come_up()
    plan = bench.link.begin(ASKED)
    bench.name, bench.weights = b"o" * 32, "memory:other"
    bench.link.renew()
    assert plan is not None
    assert plan.reason == "closed"
    wait_until(lambda: len(bench.sidecar.weights) == 2, "the weights are named anew")
    assert bench.sidecar.weights[1]["weights"] == "memory:other"
    assert bench.link.wait_until_on(10.0)
    assert bench.sidecar.expect("namespace", 2)[1]["namespace"] == bench.name


def test_without_a_name_nothing_is_asked(bench: Bench) -> None:
    bench.name = b""
    bench.link.start()
    wait_until(lambda: bench.opened, "it is there")
    assert bench.link.ask(ASKED) is None
    assert bench.link.counters.get("misses_not_named") == 1
    assert not [frame for frame in bench.sidecar.frames if frame["t"] in ("namespace", "prefetch")]


def exo_module(*parameters: str) -> types.ModuleType:
    """EXO's module as far as the contract goes, one method with other parameters."""
    module = types.ModuleType("exo.worker.engines.mlx.cache")
    space: dict[str, Any] = {}
    methods = {**exo.CONTRACT, "get_kv_cache": parameters or exo.CONTRACT["get_kv_cache"]}
    for name, names in methods.items():
        space[name] = types.FunctionType(
            compile(f"def {name}({', '.join(names)}): ...", "exo", "exec").co_consts[0], {}, name
        )
    module.__dict__["KVPrefixCache"] = type("KVPrefixCache", (), space)
    module.__dict__["make_kv_cache"] = lambda model, max_kv_size, keep: None
    return module


def test_an_exo_that_is_as_known_is_wrapped_another_is_left_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    known, other = exo_module(), exo_module("self", "model", "tokens")
    before = {name: known.KVPrefixCache.__dict__[name] for name in exo.CONTRACT}
    untouched = dict(other.KVPrefixCache.__dict__)
    with caplog.at_level(logging.INFO, "tierkv.shim"):
        assert exo.install(known)
        assert caplog.messages == []
        assert not exo.install(other)
        assert not exo.install(types.ModuleType("empty"))
    wrapped = [name for name in before if known.KVPrefixCache.__dict__[name] is not before[name]]
    assert wrapped == ["get_kv_cache", "add_kv_cache", "update_kv_cache"]
    assert dict(other.KVPrefixCache.__dict__) == untouched
    assert len(caplog.messages) == 2
    assert "get_kv_cache takes (self, model, tokens)" in caplog.messages[0]
