"""The scenes of test_crowds.py: many requests of few prompts, run in a process of one vLLM release."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api import compat
from tierkv.connectors.vllm.save.saves import SavePlanner

from harness.scheduling import BLOCK, Rig, main, tokens

PREFIX = 20 * BLOCK
Json = dict[str, Any]


def _end(rig: Rig) -> Json:
    """Run to the end; a rig of its own is closed then."""
    rig.run()
    found = rig.counts()
    rig.close()
    return found


def _crowd(
    model: str,
    *,
    prompts: int = 1,
    each: int = 8,
    tail: int = 10,
    stored: bool = True,
    **options: Any,
) -> Json:
    """Ask `prompts` prefixes of 20 blocks `each` times at once, each time with another end of `tail` tokens."""
    rig = Rig(model, **options)
    prefixes = [tokens(n, PREFIX) for n in range(prompts)]
    for prefix in prefixes:
        if stored:
            rig.store(prefix)
    for at in range(each):
        for number, prefix in enumerate(prefixes):
            rig.add(f"{number}-{at}", [*prefix, *tokens(100 + at * prompts + number, tail)])
    return _end(rig)


def crowds(model: str) -> Json:
    """Ask one prefix, eight prefixes, and one prompt eight times (as `n=8` does), beside vLLM alone."""
    found: Json = {}
    shapes: dict[str, Json] = {
        "one": {},
        "many": {"each": 64, "blocks": 800},
        "eight": {"prompts": 8, "blocks": 800},
        "same": {"tail": 0},
        "tails": {"tail": 5 * BLOCK, "blocks": 800},
    }
    for name, of in shapes.items():
        for who, ours in {"alone": False, "ours": True}.items():
            found[f"{name} {who}"] = _crowd(model, with_tierkv=ours, **of)
    found["one slow"] = _crowd(model, load_steps=6)
    found["one priority"] = _crowd(model, load_steps=3, policy="priority")
    return found


def lost(model: str) -> Json:
    """Lose the leader of eight while it loads: by an abort, by a failed load."""
    found: Json = {}
    for how in ("abort", "fail"):
        rig = Rig(model, load_steps=4)
        prefix = tokens(1, PREFIX)
        rig.store(prefix)
        for at in range(8):
            rig.add(f"r{at}", [*prefix, *tokens(100 + at, 10)])
        rig.failing = {"r0"} if how == "fail" else set()
        rig.step()
        rig.step()
        before = [rig.is_loading(f"r{at}") for at in range(8)]
        if how == "abort":
            rig.abort("r0")
        else:
            while rig.is_loading("r0"):
                rig.step()
        rig.step()
        after = [rig.is_loading(f"r{at}") for at in range(8)]
        scheduled = len(rig.scheduler.running)
        found[how] = {**_end(rig), "before": before, "after": after, "scheduled": scheduled}
    return found


def preempted(model: str) -> Json:
    """Preempt the leader, once it runs and before a part of its followers does; then lose it as it loads again."""
    found: Json = {}
    for how in ("again", "lost"):
        rig = Rig(model, running=16, load_steps=3, step_tokens=16)
        prefix = tokens(1, PREFIX)
        rig.store(prefix)
        for at in range(4):
            rig.add(f"r{at}", [*prefix, *tokens(100 + at, 10)], answers=4)
        while not rig.order:  # a step has room for the ends of two of them
            rig.step()
        running = [request.request_id for request in rig.scheduler.running]
        rig.preempt_all()

        def loading(rig: Rig = rig) -> list[str]:
            return [name for name in (f"r{at}" for at in range(4)) if rig.is_loading(name)]

        steps = 0
        while not loading():
            rig.step()
            steps += 1
        before = loading()
        if how == "lost":
            rig.abort(before[0])
            rig.step()
        more = {"before": before, "after": loading(), "was_running": running, "until_led": steps}
        found[how] = {**_end(rig), **more}
    return found


def groups(model: str) -> Json:
    """Ask one prefix of models with windows or states eight times at once, beside vLLM alone."""
    found: Json = {}
    for beside in ("window", "state") if compat.hands_off_states() else ("window",):
        for who, ours in {"alone": False, "ours": True}.items():
            found[f"{beside} {who}"] = _crowd(model, with_tierkv=ours, beside=beside)
        found[f"{beside} slow"] = _crowd(model, beside=beside, load_steps=6)
        rig = Rig(model, load_steps=4, beside=beside)
        prefix = tokens(1, PREFIX)
        rig.store(prefix)
        for at in range(4):
            rig.add(f"r{at}", [*prefix, *tokens(100 + at, 10)])
        rig.step()
        rig.step()
        before = [rig.is_loading(f"r{at}") for at in range(4)]
        rig.abort("r0")
        rig.step()
        after = [rig.is_loading(f"r{at}") for at in range(4)]
        found[f"{beside} lost"] = {**_end(rig), "before": before, "after": after}
    return found


def stalls(model: str) -> Json:
    """Fill the cache with answers that grow, while copies of saved blocks are acknowledged late."""
    found: Json = {}
    always = property(lambda planner: bool(planner._in_flight))
    ours = SavePlanner.holds_blocks
    for late in (1, 2, 3):
        for name, holds in {"ours": ours, "always": always}.items():
            SavePlanner.holds_blocks = holds  # type: ignore[method-assign, assignment]
            rig = Rig(model, blocks=300, save_steps=late)
            for at in range(48):
                rig.add(f"r{at}", tokens(at + 1, 4 * BLOCK + at), answers=8 * BLOCK)
            found[f"{name} {late}"] = _end(rig)
    SavePlanner.holds_blocks = ours  # type: ignore[method-assign]
    return found


def one_slot(model: str) -> Json:
    """Ask a new prompt of 600 tokens, then six restorable ones of 1,000, with one running slot."""
    found: Json = {}
    for who, ours in {"alone": False, "ours": True}.items():
        rig = Rig(model, running=1, load_steps=3, with_tierkv=ours)
        rig.add("new", tokens(1, 600), answers=16)
        for at in range(6):
            prompt = tokens(at + 2, 1000)
            if ours:
                rig.store(prompt)
            rig.add(f"r{at}", prompt, answers=16)
        until_new = 0
        while "new" not in rig.first_tokens:
            rig.step()
            until_new += 1
        found[who] = {**_end(rig), "until_new": until_new}
    return found


def partly(model: str) -> Json:
    """Ask a short common beginning behind a long load, and a prompt that has nothing in common with it."""
    rig = Rig(model, load_steps=8)
    long, other = tokens(1, 60 * BLOCK), tokens(2, 10 * BLOCK)
    short = [*long[: 2 * BLOCK], *tokens(3, 18 * BLOCK)]
    for prompt in (long, other, short):
        rig.store(prompt)
    rig.add("long", [*long, 1])
    rig.add("other", [*other, 1])
    rig.add("short", [*short, 1])
    rig.step()
    loading = {name: rig.is_loading(name) for name in ("long", "other", "short")}
    return {"loads": {**_end(rig), "loading": loading}}


def late(model: str) -> Json:
    """Never report the leader's load; its followers' patience is over at once."""
    rig = Rig(model, load_steps=50)
    prefix = tokens(1, PREFIX)
    rig.store(prefix)
    for at in range(3):
        rig.add(f"r{at}", [*prefix, *tokens(100 + at, 10)])
    rig.step()
    waiting = [rig.is_loading(f"r{at}") for at in range(3)]
    for leader in rig.shim._leaders.by_id.values():
        leader.until_s = 0.0
    rig.step()
    alone = [rig.is_loading(f"r{at}") for at in range(3)]
    return {"late": {**_end(rig), "waiting": waiting, "alone": alone}}


def turns(model: str) -> Json:
    """Ask restorable prompts and a new one with one or two running slots; the look-up of the new one comes late."""
    found: Json = {}
    for name, (place, running, policy) in {
        "first": (0, 1, "fcfs"),
        "middle": (3, 1, "fcfs"),
        "two slots": (1, 2, "fcfs"),
        "priority": (5, 1, "priority"),
    }.items():
        rig = Rig(model, running=running, policy=policy, load_steps=2)
        names = [f"r{at}" for at in range(6)]
        names[place] = "new"
        for at, each in enumerate(names):
            prompt = tokens(at + 1, 8 * BLOCK)
            if each != "new":
                rig.store(prompt)
            more = {"priority": -1 if each == "new" else 0} if policy == "priority" else {}
            rig.add(each, [*prompt, 1], **more)
        found[name] = _end(rig)
    return found


def prefetched(model: str) -> Json:
    """Hold restorable prompts back while the only slot is taken: their look-ups are answered before their turn."""
    rig = Rig(model, running=1, load_steps=3)
    for at in range(4):
        prompt = tokens(at + 1, 8 * BLOCK)
        rig.store(prompt)
        rig.add(f"r{at}", [*prompt, 1])
    rig.step()
    book = rig.shim._book
    placed = sum(plan.is_done and plan.arena >= 0 for plan in book._plans.values())
    loading = len(rig.shim._loads)
    return {"held": {**_end(rig), "placed": placed, "loading": loading}}


def saved(model: str) -> Json:
    """Compute one new prompt for eight requests at once, and for one that comes when its first blocks are saved."""
    rig = Rig(model, running=16, step_tokens=5 * BLOCK)
    prompt = tokens(1, PREFIX)
    for at in range(8):
        rig.add(f"r{at}", [*prompt, *tokens(100 + at, 3)])
    rig.run()
    rig.add("late", [*prompt, *tokens(200, 3)])
    at_once = len(rig.saved)
    return {"saved": {**_end(rig), "at_once": at_once, "blocks": len(set(rig.saved))}}


def malformed(model: str) -> Json:
    """Send what a client may put into a request; a good one behind it is restored as ever."""
    found: Json = {}
    requests: dict[str, Json] = {
        "params": {"extra": {"kv_transfer_params": ["no", "map"]}},
        "text": {"extra": {"kv_transfer_params": "no map"}},
        "salt": {"cache_salt": "\ud800"},
        "trace": {"trace_headers": {"traceparent": "\ud800" * 10}},
        "key": {"extra": {"kv_transfer_params": {"tierkv": {"\ud800": 1}}}},
        "id": {},
        "surrogate id": {},
    }
    for name, more in requests.items():
        rig = Rig(model)
        good = tokens(1, PREFIX)
        rig.store(good)
        req_id = {"id": "i" * 70_000, "surrogate id": "i\ud800"}.get(name, "bad")
        rig.add(req_id, tokens(2, PREFIX), **more)
        rig.step()
        rig.add("good", [*good, 1])
        up = rig.shim._channel.is_up
        found[name] = {**_end(rig), "up": up}
    return found


SCENES: dict[str, Callable[[str], Any]] = {
    scene.__name__: scene
    for scene in (
        *(crowds, lost, preempted, groups, stalls, one_slot),
        *(partly, late, turns, prefetched, saved, malformed),
    )
}

if __name__ == "__main__":
    limits.NAMING_START_WAIT_S = 60.0  # type: ignore[misc]
    limits.FOLLOW_LEAST_S = 600.0  # type: ignore[misc]  # a slow machine changes no answer
    main(SCENES, sys.argv[1], sys.argv[2:])
