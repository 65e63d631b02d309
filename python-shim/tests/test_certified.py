"""The fidelity of an engine: asked for by its weights, part of its name, and never of other weights."""

import logging
from typing import Any

import pytest
from tierkv.connectors.vllm.link.counters import Counters
from tierkv.connectors.vllm.link.messages import PAGE_ORDER
from tierkv.connectors.vllm.naming import namespace
from tierkv.connectors.vllm.naming.fidelity import OTHER_FIDELITY
from tierkv.connectors.vllm.naming.naming import Naming

from .support.engine import make_group, make_state
from .support.scheduler import RESOLVED, known_weights

pytestmark = pytest.mark.usefixtures("engine_core_started")


class Bench:
    """A naming, and the frames that it has sent."""

    def __init__(self, order: int = 1) -> None:
        parts = {"groups": "g"}
        self.naming = Naming(parts, "m", 1, known_weights(), Counters(), order=order)
        self.naming.introduce({0: RESOLVED})
        self.sent: list[dict[str, Any]] = []

    def send(self, frame: dict[str, Any]) -> bool:
        self.sent.append(frame)
        return True

    def name(self, connection: int = 1) -> bool:
        return self.naming.name(connection, self.send)

    def hear(self, fidelity: int, otherwise: int = 0) -> None:
        weights = self.asked()[-1]["weights"]
        told = {"weights": weights, "fidelity": fidelity, "otherwise": otherwise}
        self.naming.hear({"t": "fidelity", **told})

    def asked(self) -> list[dict[str, Any]]:
        return [frame for frame in self.sent if frame["t"] == "weights"]

    def fidelities(self) -> list[str]:
        return [frame["parts"]["fidelity"] for frame in self.sent if frame["t"] == "namespace"]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_an_engine_has_no_name_before_its_fidelity_is_decided(bench: Bench) -> None:
    bench.naming.open()
    assert not bench.name()
    assert not bench.naming.is_complete
    assert bench.asked() == [{"t": "weights", "weights": known_weights().digest, "order": 1}]
    assert not bench.name()
    assert len(bench.asked()) == 1  # once on each connection
    bench.hear(3)
    assert bench.name()
    assert bench.naming.is_lossy
    assert bench.fidelities() == ["3"]


def test_each_connection_is_asked_anew_and_an_exact_past_may_become_lossy(bench: Bench) -> None:
    bench.name()
    bench.hear(0)
    assert bench.name()
    bench.naming.open()
    assert not bench.name(2)
    bench.hear(3)
    assert bench.name(2)
    assert bench.fidelities() == ["0", "3"]


def test_a_lossy_past_never_becomes_exact_while_the_engine_runs(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.name()
    bench.hear(3)
    assert bench.name()
    bench.naming.open()
    bench.name(2)
    with caplog.at_level(logging.WARNING, "tierkv.shim"):
        bench.hear(0)
        refused = bench.naming.report()["naming"]["refused"]
    assert not bench.name(2)
    assert refused == OTHER_FIDELITY
    assert OTHER_FIDELITY in caplog.text


def test_weights_changed_in_place_take_no_certificate_with_them(bench: Bench) -> None:
    bench.name()
    bench.hear(3, otherwise=0)
    assert bench.name()
    bench.naming.renew("5eed")
    assert bench.name()  # at once: the sidecar said what holds for other weights
    assert bench.asked()[-1]["weights"] == f"{known_weights().digest}+5eed"
    assert bench.fidelities() == ["3", "0"]
    assert not bench.naming.is_lossy


def test_an_answer_about_earlier_weights_is_not_taken(bench: Bench) -> None:
    bench.name()
    late = {"t": "fidelity", "weights": bench.asked()[0]["weights"], "fidelity": 3, "otherwise": 0}
    bench.naming.renew("5eed")
    bench.name()
    bench.naming.hear(late)
    assert not bench.name()
    bench.hear(0)
    assert bench.name()
    assert bench.fidelities() == ["0"]


def test_the_order_is_known_of_attention_and_of_nothing_opaque() -> None:
    assert namespace.order_of([make_group()]) == PAGE_ORDER
    assert namespace.order_of([make_state(index=0)]) == 0
    assert namespace.order_of([]) == 0
