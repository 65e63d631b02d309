"""The gateway before two real engines: its beliefs equal the engines' reported reuse; one engine may end."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from harness.gateway import Gateway
from harness.models import PLAIN, Models, prompt
from harness.processes import free_port, wait_until
from harness.server import Server

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.processes import Cluster

BLOCK = 32
#: Three prompts fit into `--num-gpu-blocks-override 32`, more evict others.
TOKENS = 9 * BLOCK + 5
PROMPTS = 5
#: A little above GATEWAY_SPECULATION_MS, until which new requests count as held.
SPECULATION_S = 2.2


def engines_at(servers: list[Server], events: list[tuple[int, int]]) -> str:
    def quoted(ports: list[int]) -> str:
        return ", ".join(f'"127.0.0.1:{port}"' for port in ports)

    return (
        f"engines = [{quoted([server.port for server in servers])}]\n"
        f"events = [{quoted([port for port, _ in events])}]\n"
        f"replays = [{quoted([port for _, port in events])}]\n"
    )


def line_of(events: int, replays: int) -> list[str]:
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{events}",
        "replay_endpoint": f"tcp://127.0.0.1:{replays}",
    }
    line = ["vllm", "serve", "MODEL", "--block-size", str(BLOCK), "--enable-prefix-caching"]
    return [*line, "--kv-events-config", json.dumps(config), "--enable-prompt-tokens-details"]


@pytest.mark.nightly
def test_an_engine_whose_core_hangs_is_left_until_it_works_again(
    folder: Path, models: Models
) -> None:
    """Its server goes on answering `/health`; only its counters stand still. It listens on a Unix socket."""
    place = folder / "hung"
    place.mkdir()
    model = models.path(PLAIN)
    line = ["vllm", "serve", "MODEL", "--block-size", str(BLOCK)]
    at = place / "b.sock"
    servers = [
        Server(line, model, place / "a.log", {}),
        Server(line, model, place / "b.log", {}, on=at),
    ]
    with contextlib.ExitStack() as stack:
        for server in servers:
            stack.enter_context(server)
        names = [f"127.0.0.1:{servers[0].port}", f"unix:{at}"]
        gateway = Gateway(place, f'engines = {json.dumps(names)}\npreset = "round-robin"\n')
        stack.callback(gateway.process.end)

        def served(seed: int) -> str:
            body = {"model": model, "prompt": prompt(seed, TOKENS), "max_tokens": 2}
            _, headers = gateway.ask("/v1/completions", body)
            return headers["x-gateway-destination-endpoint-served"]

        def two(seed: int) -> list[str]:
            with ThreadPoolExecutor(2) as pool:
                return sorted(pool.map(served, (seed, seed + 1)))

        assert two(730) == names
        core = servers[1].core
        os.kill(core, signal.SIGSTOP)
        stack.callback(os.kill, core, signal.SIGCONT)
        assert two(740) == [names[0], names[0]]
        assert gateway.metric("tierkv_gateway_engine_up", names[1]) == [0]
        os.kill(core, signal.SIGCONT)
        wait_until(lambda: gateway.metric("tierkv_gateway_engine_up", names[1]) == [1], "it works")
        assert two(750) == names


@pytest.mark.nightly
def test_what_is_believed_of_engines_is_what_they_reuse(folder: Path, models: Models) -> None:
    place = folder / "gateway"
    place.mkdir()
    model = models.path(PLAIN)
    events = [(free_port(), free_port()) for _ in range(2)]
    servers = [
        Server(line_of(*ports), model, place / f"server{at}.log", {})
        for at, ports in enumerate(events)
    ]
    with contextlib.ExitStack() as stack:
        for server in servers:
            stack.enter_context(server)
        early = prompt(700, TOKENS)
        # Sent before the gateway starts, so that it learns of this by replay.
        servers[0].complete(early)
        gateway = Gateway(place, engines_at(servers, events))
        stack.callback(gateway.process.end)
        wait_until(
            lambda: gateway.metric("tierkv_gateway_events_live") == [1, 1], "events are live"
        )
        served, believed, cached = gateway.complete(model, early)
        assert (served, believed, cached) == (f"127.0.0.1:{servers[0].port}", 288, 288)

        seen = []
        for turn in range(3):
            for seed in range(PROMPTS + turn):
                time.sleep(SPECULATION_S)
                seen.append(gateway.complete(model, prompt(710 + seed, TOKENS))[1:])
        assert all(believed == cached for believed, cached in seen), seen
        # Some prompts must be held and some evicted, because otherwise this would prove nothing.
        assert {0, 288} <= {cached for _, cached in seen}, seen

        servers[0].__exit__()
        for seed in range(4):
            served, _, _ = gateway.complete(model, prompt(720 + seed, TOKENS))
            assert served == f"127.0.0.1:{servers[1].port}"
        wait_until(lambda: gateway.metric("tierkv_gateway_engine_up") == [0, 1], "one is away")


@pytest.mark.nightly
def test_what_one_engine_saved_another_one_is_believed_to_pull_and_does(
    folder: Path, models: Models, new_cluster: Callable[..., Cluster]
) -> None:
    place = folder / "pulls"
    place.mkdir()
    model = models.path(PLAIN)
    cluster = new_cluster()
    events = [(free_port(), free_port()) for _ in range(2)]
    transfer = ["--kv-transfer-config", json.dumps(cluster.transfer_config)]
    servers = [
        Server([*line_of(*ports), *transfer], model, place / f"server{at}.log", {})
        for at, ports in enumerate(events)
    ]
    names = [f"127.0.0.1:{server.port}" for server in servers]
    with contextlib.ExitStack() as stack:
        for server in servers:
            stack.enter_context(server)
        cluster.wait_restoring(2)
        # The gateway learns the engines and their events from the sidecar that both are connected to.
        gateway = Gateway(place, f'[sidecar]\nsocket = "{cluster.socket}"\n')
        stack.callback(gateway.process.end)
        wait_until(
            lambda: gateway.metric("tierkv_gateway_events_live") == [1, 1], "events are live"
        )

        def in_vaults(at: int) -> float:
            return gateway.metric("tierkv_gateway_indexed_blocks", names[at])[1]

        def vaulted(at: int, blocks: int) -> None:
            """Steps the engine, because it publishes with a step."""

            def is_told() -> bool:
                servers[at].complete([1, 2, 3])
                return in_vaults(at) >= blocks

            wait_until(is_told, f"{blocks} blocks of engine {at} lie in a vault")

        text = prompt(730, TOKENS)
        servers[0].complete(text)
        vaulted(0, 9)
        # The second engine has reported a vault, too, but nothing of this prompt.
        servers[1].complete(prompt(731, TOKENS))
        vaulted(1, 9)
        gateway.command("drain", names[0])
        body = {"model": model, "prompt": text, "max_tokens": 2, "ignore_eos": True}
        answer, headers = gateway.ask("/v1/completions", body)
        assert headers["x-gateway-destination-endpoint-served"] == names[1]
        assert headers["x-tierkv-hit-tokens"] == f"0/{TOKENS}"
        assert headers["x-tierkv-vault-tokens"] == "288"
        assert headers["x-tierkv-reason"] == "vault"
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 288
        # The belief ends once no vault holds the prompt.
        assert cluster.command("flush", "--yes")[0] == 0
        wait_until(
            lambda: bool(servers[1].complete([1, 2, 3])) and in_vaults(1) == 0,
            "what was flushed is withdrawn",
        )


@pytest.mark.nightly
@pytest.mark.parametrize("algorithm", ["sha256", "sha256_cbor"])
def test_a_gateway_that_starts_late_makes_the_engines_hashes_and_asks_the_vault(
    folder: Path, models: Models, new_cluster: Callable[..., Cluster], algorithm: str
) -> None:
    place = folder / f"late-{algorithm}"
    place.mkdir()
    model = models.path(PLAIN)
    cluster = new_cluster()
    events = [(free_port(), free_port()) for _ in range(2)]
    transfer = ["--kv-transfer-config", json.dumps(cluster.transfer_config)]
    transfer += ["--prefix-caching-hash-algo", algorithm]
    servers = [
        Server([*line_of(*ports), *transfer], model, place / f"server{at}.log", {})
        for at, ports in enumerate(events)
    ]
    with contextlib.ExitStack() as stack:
        for server in servers:
            stack.enter_context(server)
        cluster.wait_restoring(2)
        text = prompt(760, TOKENS)
        servers[0].complete(text)
        wait_until(lambda: cluster.counters()["blocks_saved"] >= 9, "it lies in the vault")
        # Without replays, so that earlier events are lost to the gateway.
        lines = engines_at(servers, events).splitlines()[:2]
        own = f'lookup_ms = 1000\n[cluster]\nkv_cold = "{cluster.vault_address}"\n'
        gateway = Gateway(place, "\n".join([*lines, own]))
        stack.callback(gateway.process.end)
        wait_until(
            lambda: gateway.metric("tierkv_gateway_events_live") == [1, 1], "events are live"
        )
        seeds = itertools.count(761)

        def is_known() -> bool:
            """Steps the engine, because it repeats its namespace with its steps."""
            for server in servers:
                server.complete(prompt(next(seeds), TOKENS))
            found = json.loads(gateway.command("status", "--json"))["engines"]
            return all(each["hashes"] == "agreed" and each["namespace"] for each in found)

        wait_until(is_known, "the engines' hashes are made by the gateway")
        gateway.command("drain", f"127.0.0.1:{servers[0].port}")
        body = {"model": model, "prompt": text, "max_tokens": 2, "ignore_eos": True}
        answer, headers = gateway.ask("/v1/completions", body)
        assert headers["x-tierkv-hit-tokens"] == f"0/{TOKENS}"
        assert headers["x-tierkv-vault-tokens"] == "288"
        assert headers["x-tierkv-reason"] == "vault"
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 288


@pytest.mark.nightly
def test_one_engine_computes_prompts_that_another_one_answers(
    folder: Path, models: Models, new_cluster: Callable[..., Cluster]
) -> None:
    place = folder / "handoffs"
    place.mkdir()
    model = models.path(PLAIN)
    cluster = new_cluster()
    events = [(free_port(), free_port()) for _ in range(2)]

    def server(at: int, role: str) -> Server:
        config = json.dumps({**cluster.transfer_config, "kv_role": role})
        line = [*line_of(*events[at]), "--kv-transfer-config", config]
        return Server(line, model, place / f"server{at}.log", {})

    servers = [server(0, "kv_producer"), server(1, "kv_consumer")]
    with contextlib.ExitStack() as stack:
        for one in servers:
            stack.enter_context(one)
        cluster.wait_restoring(2)
        helper = f'prefill = ["127.0.0.1:{servers[0].port}"]\nprefill_tokens = {BLOCK}\n'
        gateway = Gateway(place, engines_at(servers, events) + helper)
        stack.callback(gateway.process.end)

        def question(seed: int) -> dict[str, Any]:
            body = {"model": model, "prompt": prompt(seed, TOKENS), "max_tokens": 4}
            return {**body, "ignore_eos": True, "temperature": 0, "return_token_ids": True}

        def ask(seed: int) -> tuple[list[int], int, str]:
            answer, headers = gateway.ask("/v1/completions", question(seed))
            details = answer["usage"]["prompt_tokens_details"] or {}
            (choice,) = answer["choices"]
            served = headers["x-gateway-destination-endpoint-served"]
            return choice["token_ids"], details.get("cached_tokens") or 0, served

        seeds = range(740, 746)
        # All at once, so that the answering engine is busy, because an idle one computes by itself.
        with ThreadPoolExecutor(len(seeds)) as pool:
            answers = list(pool.map(ask, seeds))
        (handed_over,) = gateway.metric("tierkv_gateway_handoffs_total", "handed_over")
        assert handed_over >= 1
        assert [cached for _, cached, _ in answers].count(9 * BLOCK) == handed_over
        for seed, (tokens, _, served) in zip(seeds, answers, strict=True):
            assert served == f"127.0.0.1:{servers[1].port}"
            # Hits of the computing engine are its own, because it restores nothing.
            body = json.dumps(question(seed)).encode()
            (choice,) = json.loads(servers[0].post("/v1/completions", body))["choices"]
            assert choice["token_ids"] == tokens
        counters = cluster.counters()
        assert (counters["handoffs"], counters["handoffs_late"]) == (handed_over, 0)


#: Sequences with more prompts than one engine's memory holds.
SEQUENCES = 12
WORKERS = 3


@pytest.mark.nightly
def test_sequences_of_a_worker_that_left_are_restored_from_the_pool(
    folder: Path, models: Models, new_cluster: Callable[..., Cluster]
) -> None:
    place = folder / "moved"
    place.mkdir()
    model = models.path(PLAIN)
    cluster = new_cluster(more_vaults=1)
    transfer = ["--kv-transfer-config", json.dumps(cluster.transfer_config)]
    line = [*line_of(free_port(), free_port()), *transfer]
    # No events are configured, because the ring needs none.
    line = [
        word for at, word in enumerate(line) if "--kv-events-config" not in line[at - 1 : at + 1]
    ]
    servers = [Server(line, model, place / f"server{at}.log", {}) for at in range(WORKERS)]
    with contextlib.ExitStack() as stack:
        for server in servers:
            stack.enter_context(server)
        cluster.wait_restoring(WORKERS)
        gateway = Gateway(place, 'preset = "ring"\nsequences = true\n')
        stack.callback(gateway.process.end)
        workers = {
            f"worker-{at}": f"http://127.0.0.1:{server.port}" for at, server in enumerate(servers)
        }
        for worker, address in workers.items():
            gateway.ask("/register", {"worker_id": worker, "address": address})
        up = [1.0] * WORKERS
        wait_until(lambda: gateway.metric("tierkv_gateway_engine_up") == up, "all are up")

        def ask(sequence: int) -> tuple[str, int, list[int]]:
            """Returns the worker that answered, the tokens it had, and the computed ones."""
            text = prompt(760 + sequence, TOKENS)
            body = {"model": model, "prompt": text, "max_tokens": 4, "ignore_eos": True}
            more = {"user": f"seq-{sequence}", "temperature": 0, "return_token_ids": True}
            answer, headers = gateway.ask("/v1/completions", {**body, **more})
            details = answer["usage"]["prompt_tokens_details"] or {}
            (choice,) = answer["choices"]
            served = headers["x-gateway-destination-endpoint-served"]
            return served, details.get("cached_tokens") or 0, choice["token_ids"]

        first = [ask(sequence) for sequence in range(SEQUENCES)]
        cluster.wait_saved(9 * SEQUENCES)
        gone = first[0][0]
        moved = [sequence for sequence in range(SEQUENCES) if first[sequence][0] == gone]
        assert 0 < len(moved) < SEQUENCES, first
        left = next(name for name, address in workers.items() if address.endswith(gone))
        gateway.ask("/deregister", {"worker_id": left})
        before = cluster.counters()
        restored = 0
        for sequence in moved:
            served, cached, tokens = ask(sequence)
            assert served != gone
            assert tokens == first[sequence][2]
            restored += cached
        assert restored >= 0.9 * TOKENS * len(moved)
        after = cluster.counters()
        names = ("blocks_restored_vault", "blocks_restored_local")
        moves = {name: after[name] - before[name] for name in names}
        # All of it is from vaults, not from the new owner's memory.
        assert sum(moves.values()) * BLOCK == restored, moves
        for sequence in range(SEQUENCES):
            if sequence not in moved:
                assert ask(sequence)[0] == first[sequence][0]
