"""Decoders meet anything: nothing makes them fail in any way but their own. TIERKV_TEST_SEED repeats a run."""

import itertools
import math
import os
import pickle
import secrets
import struct
from collections import Counter
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import hypothesis
import msgspec
import pytest
from hypothesis import strategies as st
from tierkv.connectors.vllm.api.metadata import LoadPart, SaveItem, StepMetadata, StepReceipts
from tierkv.connectors.vllm.link.frames import FrameDecoder, FrameError, encode
from tierkv.connectors.vllm.link.settings import FORMS, Settings, load_settings

from .support.length import cases

SEED = int(os.environ.get("TIERKV_TEST_SEED", secrets.randbelow(2**31)))


def many(examples: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test with so many examples (`cases`), always the same for one seed; nothing is kept from run to run."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        health = list(hypothesis.HealthCheck)
        settings = hypothesis.settings(
            max_examples=cases(examples), deadline=None, database=None, suppress_health_check=health
        )
        return hypothesis.seed(SEED)(settings(test))

    return decorate


@pytest.fixture(autouse=True)
def seed() -> None:
    print(f"run it again with TIERKV_TEST_SEED={SEED}")  # noqa: T201 -- pytest shows it when the test fails


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.binary(max_size=16)
)
VALUES = st.recursive(
    SCALARS,
    lambda inside: (
        st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=4), inside, max_size=3)
    ),
    max_leaves=6,
)
FRAMES = st.dictionaries(st.text(max_size=6), VALUES, max_size=4).map(
    lambda fields: fields | {"t": "held"}
)


def read(data: bytes) -> list[dict[str, Any]]:
    frames = FrameDecoder().feed(data)
    assert all(isinstance(frame["t"], str) for frame in frames)
    return frames


def read_or_refuse(data: bytes) -> None:
    try:
        read(data)
    except FrameError:
        return


@many(600)
@hypothesis.given(st.lists(FRAMES, min_size=1, max_size=3), st.lists(st.integers(0), max_size=4))
def test_f10_frames_come_out_as_they_went_in_however_the_stream_is_cut(
    sent: list[dict[str, Any]], places: list[int]
) -> None:
    data = b"".join(encode(frame) for frame in sent)
    cuts = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    decoder = FrameDecoder()
    came = [decoder.feed(data[begin:end]) for begin, end in itertools.pairwise(cuts)]
    assert list(itertools.chain(*came)) == sent


@many(3_000)
@hypothesis.given(st.binary(max_size=80), st.none() | st.integers(0, 2**32 - 1))
def test_f10_frames_of_any_bytes_are_read_or_refused(body: bytes, length: int | None) -> None:
    read_or_refuse(struct.pack("<I", len(body) if length is None else length) + body)


@many(700)
@hypothesis.given(FRAMES, st.integers(1, 255))
def test_f10_frames_with_any_byte_changed_or_cut_anywhere_are_read_or_refused(
    frame: dict[str, Any], change: int
) -> None:
    good = msgspec.msgpack.encode(frame)
    for at in range(len(good)):
        head = struct.pack("<I", len(good))
        read_or_refuse(head + good[:at] + bytes([good[at] ^ change]) + good[at + 1 :])
        read_or_refuse(struct.pack("<I", at) + good[:at])


TOML = '[sidecar]\nsocket = "/run/x.sock"\nautostart = false\n[turbo_quant]\nstates = "raw"\n'
PIECES = st.sampled_from(
    ["[", "]", "=", '"', "'", "\n", "#", "{", "}", "true", "1e9", "\0", '"""', "socket", "ü"]
) | st.text(max_size=3)


@pytest.fixture(scope="module")
def config_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("settings") / "tierkv.toml")


def check(settings: Settings) -> None:
    assert settings.socket
    assert isinstance(settings.socket, str)
    assert isinstance(settings.autostart, bool)
    assert settings.states in FORMS


@many(700)
@hypothesis.given(
    edits=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 5), PIECES), max_size=4)
)
def test_f10_settings_of_any_file_are_read_or_refused_with_the_file_named(
    config_path: str, edits: list[tuple[int, int, str]]
) -> None:
    text = TOML
    for place, without, piece in edits:
        at = place % (len(text) + 1)
        text = text[:at] + piece + text[at + without :]
    Path(config_path).write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        check(load_settings({"config_path": config_path}))
    except ValueError as error:
        assert config_path in str(error)


@many(500)
@hypothesis.given(
    st.dictionaries(
        st.sampled_from(["config_path", "socket", "autostart"]) | st.text(max_size=4),
        VALUES,
        max_size=3,
    )
)
def test_f10_settings_of_any_launch_line_are_read_or_refused_with_the_key_named(
    given: dict[str, Any],
) -> None:
    try:
        check(load_settings(given))
    except ValueError as error:
        assert "kv_connector_extra_config" in str(error)


HASHES = st.binary(min_size=32, max_size=32)
NUMBERS = st.integers(0, 2**53)
STEPS = st.builds(
    StepMetadata,
    has_forward=st.booleans(),
    ticket=NUMBERS,
    saves=st.lists(
        st.builds(SaveItem, NUMBERS, NUMBERS, HASHES, HASHES, NUMBERS, NUMBERS), max_size=3
    ).map(tuple),
    loads=st.lists(
        st.builds(
            LoadPart,
            st.text(),
            NUMBERS,
            NUMBERS,
            st.lists(NUMBERS),
            st.lists(NUMBERS),
            st.booleans(),
        ),
        max_size=3,
    ).map(tuple),
    namespace=st.just(b"") | HASHES,
    question=st.just(0) | NUMBERS,
    is_off=st.booleans(),
    tokens=NUMBERS,
    attended=NUMBERS,
)


@many(500)
@hypothesis.given(STEPS)
def test_f10_work_for_a_step_comes_out_of_the_engines_messages_as_it_went_in(
    step: StepMetadata,
) -> None:
    # What vLLM's executor does with it on its way to the workers.
    assert pickle.loads(pickle.dumps(step, protocol=pickle.HIGHEST_PROTOCOL)) == step


RANKS = st.lists(st.dictionaries(NUMBERS, st.integers(1, 8), max_size=4), min_size=1, max_size=5)


@many(300)
@hypothesis.given(RANKS, st.randoms(use_true_random=False))
def test_f10_receipts_add_up_in_any_order(ranks: list[dict[int, int]], dice: Any) -> None:
    receipts = [StepReceipts(Counter(tickets)) for tickets in ranks]
    total = reduce(StepReceipts.aggregate, receipts)
    dice.shuffle(receipts)
    assert reduce(StepReceipts.aggregate, receipts) == total
    assert total.tickets.total() == math.fsum(sum(tickets.values()) for tickets in ranks)
