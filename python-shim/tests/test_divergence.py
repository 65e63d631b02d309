"""The first token at which a prompt stops matching an earlier one: found exactly, within bounds, and never raising."""

import json
import random
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.naming.markers import Markers
from tierkv.connectors.vllm.requests.divergence import Divergences, equal_tokens

from .support.engine import Request, vllm_config
from .support.scheduler import Bench
from .support.sidecar import wait_until

BLOCK = 4
#: Ids of `<start>` and `<end>`, around a role and a message.
START, END = 900, 901


def ids(part: bytes) -> list[int]:
    return array("I", part).tolist()


def request(req: str, tokens: list[int], **others: Any) -> Request:
    return Request(req, len(tokens), prompt_token_ids=tokens, **others)


def compared(*requests: Request, markers: tuple[int, ...] = ()) -> list[dict[str, Any]]:
    """The rows of requests that come one after another."""
    tokenizer: Any = SimpleNamespace(find=lambda: markers, folder="/model")
    divergences = Divergences(tokenizer, BLOCK)
    for one in requests:
        divergences.note(one)
    return list(divergences.take().get("divergences", []))


def words(seed: int, count: int) -> list[int]:
    return [random.Random(seed * 1000 + n).randrange(1, 800) for n in range(count)]


@pytest.mark.parametrize("equal", [0, 1, 63, 64, 65, 191, 192, 1000, 5000])
def test_equal_tokens_are_counted_exactly(equal: int) -> None:
    one = array("I", [*words(1, equal), 7, *words(2, 300)]).tobytes()
    other = array("I", [*words(1, equal), 8, *words(3, 40)]).tobytes()
    assert equal_tokens(one, other) == equal == equal_tokens(other, one)
    assert equal_tokens(one, one[: equal * 4]) == equal


def test_a_replaced_token_is_found_with_the_equal_text_behind_it() -> None:
    head, tail = words(1, 300), words(2, 2000)
    first = request("a", [*head, 11, 12, 13, *tail])
    second = request("b", [*head, 11, 21, *tail, *words(3, 50)])
    [row] = compared(first, second)
    assert (row["req"], row["earlier"], row["what"], row["at"]) == ("b", "a", "tokens", 301)
    assert (row["gone"], row["come"], row["same"], row["tokens"]) == (2, 1, 2000, 2352)
    assert ids(row["before"]) == [*head, 11][-limits.DIVERGENCE_TOKENS_SHOWN :]
    assert ids(row["was"])[:2] == [12, 13]
    assert ids(row["now"])[:1] == [21]
    assert (row["answer"], row["moved"]) == (0, 0)


def test_parts_in_another_order_are_told_apart_from_replaced_ones() -> None:
    one, other, tail = words(1, 100), words(2, 120), words(3, 100)
    [row] = compared(request("a", [5, *one, *other, *tail]), request("b", [5, *other, *one, *tail]))
    assert (row["at"], row["moved"]) == (1, 1)
    [row] = compared(request("a", [5, *one, *tail]), request("b", [5, *other, *one, *tail]))
    assert (row["at"], row["moved"], row["gone"], row["come"]) == (1, 0, 0, 120)


def test_of_several_earlier_prompts_the_one_that_begins_most_alike_counts() -> None:
    head = words(1, 200)
    near = request("near", [*head, 1, *words(2, 30)])
    far = request("far", [*head[:50], 2, *words(3, 500)])
    rows = compared(near, far, request("new", [*head, 3, *words(4, 30)]))
    assert [(row["req"], row["earlier"], row["at"]) for row in rows] == [
        ("far", "near", 50),
        ("new", "near", 200),
    ]


def test_a_repeated_or_continued_prompt_diverges_nowhere() -> None:
    head = words(1, 100)
    assert compared(request("a", head), request("b", head), request("c", [*head, 1, 2])) == []
    assert compared(request("a", head)) == []


def test_a_rewritten_answer_is_found_behind_the_prompt() -> None:
    head, thought, answer = words(1, 100), words(2, 40), words(3, 40)
    divergences = Divergences(Markers(vllm_config()), BLOCK)
    first = request("a", head)
    divergences.note(first)
    first.output_token_ids = [START, *thought, *answer]
    divergences.note(first, is_ended=True)
    assert divergences.take() == {}
    divergences.note(request("b", [*head, START, *answer, *words(4, 20)]))
    [row] = divergences.take()["divergences"]
    assert (row["at"], row["answer"], row["gone"], row["come"], row["same"]) == (101, 1, 40, 0, 40)


def test_another_salt_or_picture_is_named_and_no_text_of_another_tenant_is_told() -> None:
    head = words(1, 100)
    [row] = compared(request("a", head, cache_salt="one"), request("b", head, cache_salt="two"))
    assert (row["what"], row["same"], row["was"], row["before"]) == ("salt", 100, b"", b"")
    other = [*head[:60], 1, *words(2, 40)]
    salted = request("a", head, cache_salt="one")
    assert compared(salted, request("b", other[:3] + words(5, 50), cache_salt="two")) == []

    def pictured(req: str, digest: str) -> Request:
        place = SimpleNamespace(offset=40, length=10)
        feature = SimpleNamespace(identifier=digest * 32, mm_position=place)
        return request(req, head, mm_features=[feature])

    [row] = compared(pictured("a", "ab"), pictured("b", "cd"))
    assert (row["what"], row["at"]) == ("picture", 40)
    assert compared(pictured("a", "ab"), pictured("b", "ab")) == []


def test_the_head_begins_at_the_last_two_markers() -> None:
    turn = [START, 3, 4, *words(2, 50), END]
    prompt = [START, 1, 2, *words(1, 50), END, 9, *turn]
    [row] = compared(
        request("a", [*prompt, 5, *words(3, 30)]),
        request("b", [*prompt[:100], 6, *words(4, 30)]),
        markers=(START, END),
    )
    assert ids(row["head"])[:5] == [END, 9, START, 3, 4]
    assert len(ids(row["head"])) == limits.DIVERGENCE_HEAD_TOKENS
    [row] = compared(request("a", [*words(1, 9)]), request("b", [*words(1, 5), 801, 802]))
    assert row["head"] == b""


def test_prompts_kept_and_waiting_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PROMPT_BYTES_KEPT_MAX", 4 * 250)
    head = words(1, 100)
    rows = compared(
        request("a", [*head, 1, 1]),
        request("b", words(2, 120)),
        request("c", words(3, 120)),
        request("d", [*head, 2, 2]),
    )
    assert [row["at"] for row in rows if row["req"] == "d"] == [0]
    monkeypatch.setattr(limits, "PROMPT_TOKENS_WAITING_MAX", 205)
    rows = compared(request("a", [*head, 1]), request("b", [*head, 2]), request("c", [*head, 3]))
    assert [row["req"] for row in rows] == ["b"]


def test_a_prompt_that_cannot_be_read_turns_the_comparison_off_and_nothing_else() -> None:
    tokenizer: Any = SimpleNamespace(find=list, folder="")
    divergences = Divergences(tokenizer, BLOCK)
    broken = request("a", words(1, 50))
    broken.mm_features = [object()]
    divergences.note(broken)
    assert divergences.take() == {}
    divergences.note(request("b", words(1, 50)))
    assert not divergences._waiting
    assert compared(request("a", [-1] * 20), request("b", words(1, 20))) == []


def test_a_sidecar_hears_where_a_prompt_diverged(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PING_EVERY_S", 0.02)
    head = words(1, 40)
    for req, token in (("a", 1), ("b", 2)):
        one = request(req, [*head, token, 3, 4])
        bench.new(one)
        bench.shim.request_finished(one)

    def rows() -> list[dict[str, Any]]:
        frames = [frame for frame in list(bench.fake.frames) if frame["t"] == "counts"]
        return [row for frame in frames for row in frame.get("divergences", [])]

    wait_until(lambda: bool(rows()), "the divergence")
    assert [(row["req"], row["earlier"], row["at"]) for row in rows()] == [("b", "a", 40)]


def test_markers_are_the_special_tokens_of_the_tokenizers_file(tmp_path: Path) -> None:
    config = vllm_config()
    config.model_config.tokenizer = str(tmp_path)
    assert (Markers(config).folder, Markers(config).find()) == ("", [])
    added = [{"id": 7, "special": True}, {"id": 8, "special": False}, {"id": 9, "special": True}]
    text = json.dumps({"version": "1.0", "added_tokens": added, "model": {"vocab": {}}})
    (tmp_path / "tokenizer.json").write_text(text + "not JSON, as if cut")
    assert (Markers(config).folder, Markers(config).find()) == (str(tmp_path), [7, 9])
    (tmp_path / "tokenizer.json").write_text("{}")
    assert Markers(config).find() == []
