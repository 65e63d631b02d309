"""The engine's own event publisher listens on both IP families, once the connector has prepared its sockets."""

import socket
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import zmq
from tierkv.connectors.vllm.api import compat
from vllm.distributed.kv_events import ZmqEventPublisher

CONNECT_S = 10.0


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    shared: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    yield shared
    shared.setsockopt(zmq.IPV6, 0)


def free_port() -> int:
    with socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::", 0))
        port: int = probe.getsockname()[1]
        return port


def answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=CONNECT_S).close()
    except ConnectionRefusedError:
        return False
    return True


def config(*, is_on: bool) -> SimpleNamespace:
    return SimpleNamespace(kv_events_config=SimpleNamespace(enable_kv_cache_events=is_on))


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
@pytest.mark.parametrize(("is_on", "hosts"), [(True, {"127.0.0.1", "::1"}), (False, {"127.0.0.1"})])
def test_the_engines_publisher_listens_on_ipv6_too(
    context: zmq.Context[zmq.Socket[bytes]], is_on: bool, hosts: set[str]
) -> None:
    del context
    compat.publish_over_ipv6(config(is_on=is_on))
    events, replays = free_port(), free_port()
    publisher = ZmqEventPublisher(
        0, endpoint=f"tcp://*:{events}", replay_endpoint=f"tcp://*:{replays}"
    )
    try:
        for port in (events, replays):
            assert {host for host in ("127.0.0.1", "::1") if answers(host, port)} == hosts
    finally:
        publisher.shutdown()
