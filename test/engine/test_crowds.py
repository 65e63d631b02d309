"""Many requests of few prompts, by vLLM's own scheduler: one load each, in turn, no more blocks than vLLM alone."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from harness.engine import ENVIRONMENT
from harness.models import PLAIN, Models
from harness.processes import ROOT
from harness.releases import NEWEST, OLDEST, python_of

if TYPE_CHECKING:
    from pathlib import Path

TIMEOUT_S = 900.0
PREFIX_BLOCKS = 20
Json = dict[str, Any]


class Scenes(dict[str, Any]):
    """Results by scene; a scene that failed fails its tests only."""

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        assert "failed" not in found, found["failed"]
        return found


@pytest.fixture(scope="module", params=(OLDEST, NEWEST))
def scenes(request: pytest.FixtureRequest, folder: Path, models: Models) -> Scenes:
    """Run all scenes in one process of a release."""
    paths = os.pathsep.join([str(ROOT / "test/engine"), str(ROOT / "python-shim")])
    more = {"PYTHONPATH": paths, "XDG_STATE_HOME": str(folder / "state")}
    ran = subprocess.run(
        [python_of(request.param), "-m", "harness.scenes", models.path(PLAIN)],
        env={**os.environ, **ENVIRONMENT, **more},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return Scenes(json.loads(ran.stdout.splitlines()[-1]))


def sound(found: Json) -> Json:
    """Expect that nothing is left, and that nothing of ours failed."""
    assert found["leaked"] == 0
    assert found["off"] == 0
    assert not [name for name in found["shim"] if name.startswith("errors_")]
    assert not any(found["status"].values())
    return found


@pytest.mark.parametrize(
    ("crowd", "prefixes"), [("one", 1), ("many", 1), ("eight", 8), ("same", 1), ("tails", 1)]
)
def test_a_prefix_is_loaded_once_and_takes_the_blocks_and_steps_of_vllm_alone(
    scenes: Json, crowd: str, prefixes: int
) -> None:
    alone, ours = scenes["crowds"][f"{crowd} alone"], sound(scenes["crowds"][f"{crowd} ours"])
    assert ours["blocks"] <= 1.1 * alone["blocks"]
    assert ours["loads"] == prefixes
    assert ours["steps"] <= 1.05 * alone["steps"]
    assert ours["running"] == alone["running"]
    assert sorted(ours["first"]) == sorted(alone["first"])


def test_prompts_that_arrive_together_are_looked_up_once(scenes: Json) -> None:
    asks = {name: scenes["crowds"][f"{name} ours"]["asks"] for name in ("one", "eight", "same")}
    assert asks == {"one": 1, "eight": 8, "same": 1}
    # Ends of five blocks may be held, too, so each is looked up.
    assert scenes["crowds"]["tails ours"]["asks"] == 8


def test_a_slow_load_is_one_load_and_no_step_more(scenes: Json) -> None:
    for name in ("one slow", "one priority"):
        slow = sound(scenes["crowds"][name])
        assert (slow["loads"], slow["blocks"], slow["running"]) == (1, 28, 8)
        assert slow["steps"] == scenes["crowds"]["one alone"]["steps"]


def test_an_aborted_leader_is_followed_by_the_next_within_a_step(scenes: Json) -> None:
    lost = sound(scenes["lost"]["abort"])
    assert lost["before"] == [True, *[False] * 7]
    assert lost["after"] == [False, True, *[False] * 6]
    assert (lost["loads"], len(lost["first"])) == (2, 7)
    assert lost["asks"] == 1  # its plan goes on with the others


def test_a_failed_leader_computes_and_the_others_hit_its_blocks(scenes: Json) -> None:
    lost = sound(scenes["lost"]["fail"])
    assert (lost["loads"], len(lost["first"])) == (1, 8)
    assert lost["steps"] == scenes["crowds"]["one alone"]["steps"]


@pytest.mark.parametrize("how", ["again", "lost"])
def test_a_preempted_leader_leads_again_and_its_loss_is_made_good_within_a_step(
    scenes: Json, how: str
) -> None:
    found = sound(scenes["preempted"][how])
    assert found["was_running"] == ["r0", "r1"]
    assert found["preempted"] == 2
    # The weights are asked for, the blocks are looked up, the load begins: a step each.
    assert found["until_led"] <= 3
    assert (
        len(found["before"]) == len(found["after"]) == 1
    )  # releases queue them in different orders
    is_lost = how == "lost"
    assert (found["after"] != found["before"]) == is_lost
    assert found["loads"] == 2 + is_lost
    assert found["asks"] == 2  # one for each time that the cache was empty
    assert len(found["first"]) == 4 - (is_lost and found["before"][0] not in found["was_running"])


@pytest.mark.parametrize("beside", ["window", "state"])
def test_followers_of_models_with_windows_or_states_wait_and_hit_the_whole_load(
    scenes: Json, beside: str
) -> None:
    found = scenes["groups"]
    if f"{beside} ours" not in found:
        pytest.skip("needs vLLM 0.29")
    alone = found[f"{beside} alone"]
    for name in ("ours", "slow"):
        ours = sound(found[f"{beside} {name}"])
        assert (ours["loads"], ours["asks"], len(ours["first"])) == (1, 1, 8)
        assert ours["blocks"] <= 1.1 * alone["blocks"]
        # vLLM serves one hit of a state a step, and its last step computes the last answer.
        assert ours["steps"] <= (alone["steps"] if beside == "window" else 8 + 1)
    lost = sound(found[f"{beside} lost"])
    assert lost["before"] == [True, False, False, False]
    assert lost["after"] == [False, True, False, False]
    assert (lost["loads"], len(lost["first"])) == (2, 3)


@pytest.mark.parametrize("late", [1, 2, 3])
def test_no_running_request_waits_for_copies_of_blocks_that_others_hold(
    scenes: Json, late: int
) -> None:
    found = scenes["stalls"]
    ours, always = sound(found[f"ours {late}"]), found[f"always {late}"]
    assert ours["preempted"] > 0  # the cache was full
    assert ours["stall"] == 0
    if always["preempted"] < ours["preempted"]:  # releases that ask before they preempt
        assert always["stall"] > 3


def test_a_new_prompt_before_six_restorable_ones_is_answered_first_and_alone(scenes: Json) -> None:
    ours, alone = sound(scenes["one_slot"]["ours"]), scenes["one_slot"]["alone"]
    assert ours["first"] == alone["first"] == ["new", *(f"r{at}" for at in range(6))]
    assert ours["until_new"] == alone["until_new"]
    assert ours["peak"] == alone["peak"]  # what the largest request holds
    assert ours["loads"] == 6
    assert ours["steps"] <= alone["steps"]


def test_a_failed_load_is_not_counted_as_restored(scenes: Json) -> None:
    said = scenes["lost"]["fail"]["shim"]
    assert said.get("tokens_restored", 0) == 0
    assert said["restores_failed"] == 1
    assert scenes["lost"]["abort"]["shim"]["tokens_restored"] == PREFIX_BLOCKS * 16


def test_prompts_with_little_in_common_do_not_wait_for_each_other(scenes: Json) -> None:
    found = sound(scenes["partly"]["loads"])
    assert found["loading"] == {"long": True, "other": True, "short": True}


def test_nobody_follows_for_longer_than_the_load_was_predicted_to_take(scenes: Json) -> None:
    late = sound(scenes["late"]["late"])
    assert late["waiting"] == [True, False, False]
    assert late["alone"] == [True, True, False]  # the next one leads


@pytest.mark.parametrize(
    ("case", "order"),
    [
        ("first", ["new", "r1", "r2", "r3", "r4", "r5"]),
        ("middle", ["r0", "r1", "r2", "new", "r4", "r5"]),
        ("priority", ["new", "r0", "r1", "r2", "r3", "r4"]),
    ],
)
def test_requests_are_served_in_their_order_and_load_in_their_turn(
    scenes: Json, case: str, order: list[str]
) -> None:
    found = sound(scenes["turns"][case])
    assert found["order"] == order
    assert found["peak"] == 9  # as many blocks as one request holds
    assert found["loads"] == 5


def test_two_slots_load_for_two_requests(scenes: Json) -> None:
    found = sound(scenes["turns"]["two slots"])
    assert 9 < found["peak"] <= 18


def test_what_waits_for_its_turn_is_fetched_meanwhile(scenes: Json) -> None:
    found = sound(scenes["prefetched"]["held"])
    assert (found["loading"], found["placed"]) == (1, 3)


def test_blocks_that_eight_requests_compute_at_once_are_saved_once(scenes: Json) -> None:
    found = sound(scenes["saved"]["saved"])
    assert found["saves"] == found["at_once"] == found["blocks"] == PREFIX_BLOCKS


@pytest.mark.parametrize("what", ["params", "text", "salt", "trace", "key", "id", "surrogate id"])
def test_nothing_that_a_client_sends_keeps_another_request_from_its_restore(
    scenes: Json, what: str
) -> None:
    found = sound(scenes["malformed"][what])
    assert found["up"]
    assert found["shim"]["tokens_restored"] == PREFIX_BLOCKS * 16
    assert len(found["first"]) == 2
    is_counted = what in {"params", "text", "key"}
    assert found["shim"].get("wishes_ignored", 0) == int(is_counted)
