"""Every field of an engine's configuration is a part of the name, or is listed with a reason; on each release."""

import dataclasses
import enum
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tierkv.connectors.vllm.api import compat
from tierkv.connectors.vllm.api.canonical import Canonical, UnnameableError
from tierkv.connectors.vllm.api.exempt import CONFIG, ENVIRONMENT, ENVIRONMENT_PREFIXES
from tierkv.connectors.vllm.api.resolved import Resolved, agreed, numeric_environment, resolve

from .support.length import IS_LONG

ROOT = Path(__file__).parents[2]
PROBE_S = 900
PLAIN = Canonical({})


def pythons() -> dict[str, str]:
    """The interpreters that have a release: ours, and in a nightly run those set up beside it."""
    others = sorted(ROOT.glob(".venv-0.*/bin/python")) if IS_LONG else []
    return {"main": sys.executable, **{path.parts[-3]: str(path) for path in others}}


@pytest.fixture(scope="module")
def probes() -> dict[str, Any]:
    """What `support/resolved_probe.py` found on each release."""
    paths = os.pathsep.join([str(ROOT / "python-shim")])
    environment = {**os.environ, "PYTHONPATH": paths, "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    running = {
        name: subprocess.Popen(
            [python, "-m", "tests.support.resolved_probe"],
            cwd=ROOT / "python-shim",
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name, python in pythons().items()
    }
    found = {}
    for name, process in running.items():
        out, errors = process.communicate(timeout=PROBE_S)
        assert process.returncode == 0, f"{name}: {errors[-3000:]}"
        found[name] = json.loads(out.splitlines()[-1])
    return found


def test_f25_every_field_changed_alone_gives_another_name_or_is_listed(probes: Any) -> None:
    for release, probe in probes.items():
        assert [place for place in probe["unseen"] if place not in CONFIG] == [], release
        assert len(probe["places"]) > 500, release


@pytest.mark.nightly  # Over all releases.
def test_no_entry_of_the_list_is_without_a_field_or_without_effect(probes: Any) -> None:
    places = {place for probe in probes.values() for place in probe["places"]}
    unseen = {place for probe in probes.values() for place in probe["unseen"]}
    # Of an entry with a key there is the field; the key comes with a value.
    fields = {entry: ".".join(entry.split(".")[:2]) for entry in CONFIG}
    assert [entry for entry, field in fields.items() if field not in places] == []
    assert [entry for entry in CONFIG if entry in places - unseen] == []


@pytest.mark.nightly  # Over all releases.
def test_each_variable_of_vllm_counts_or_is_listed(probes: Any) -> None:
    known = {name for probe in probes.values() for name in probe["variables"]}
    counted = {name for probe in probes.values() for name in probe["counted"]}
    internal = {"VLLM_DIST_IDENT"}  # not of vLLM's own table: its processes set it for each other
    listed = {name for name in ENVIRONMENT if name.startswith("VLLM_")}
    assert known - counted == listed - internal
    assert len(counted) > 100
    assert all(name.startswith(ENVIRONMENT_PREFIXES) for name in ENVIRONMENT)


def test_two_engines_of_one_model_at_two_places_agree(probes: Any) -> None:
    for release, probe in probes.items():
        assert (probe["refused"], probe["differ"]) == ("", []), release
        assert {"model_config", "cache_config", "parallel_config", "load_config"} < {
            *probe["parts"]
        }


def test_a_reason_is_given_for_everything_that_is_left_out() -> None:
    assert all(len(reason) > 15 for reason in (*CONFIG.values(), *ENVIRONMENT.values()))


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Options:
    first: Any = 1
    second: Any = None


VALUES: list[Any] = [
    None,
    True,
    1,
    1.0,
    "1",
    b"1",
    "None",
    [1],
    [1, 1],
    ["1"],
    {1},
    {1: 1},
    {"1": 1},
    {"1": "1"},
    [],
    {},
    Colour.RED,
    Colour.BLUE,
    torch.float32,
    torch.float16,
    torch.device("cpu"),
    Path("1"),
    Options,
    Options(),
    Options(2),
    Options(Options()),
    float("nan"),
    0.0,
    -0.0,
]


def test_values_that_differ_have_different_forms() -> None:
    assert len({PLAIN.text(value, "x") for value in VALUES}) == len(VALUES)


def test_order_and_number_of_a_device_do_not_count() -> None:
    same: list[tuple[Any, Any]] = [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"x", "y", "z"}, {"z", "y", "x"}),
        ((1, 2), [1, 2]),
        (torch.device("cuda:0"), torch.device("cuda:1")),
    ]
    for one, other in same:
        assert PLAIN.text(one, "x") == PLAIN.text(other, "x")


def test_what_has_no_form_is_refused_with_its_place() -> None:
    circle: list[Any] = []
    circle.append(circle)
    for value in (object(), lambda: 1, SimpleNamespace(a=1), circle):
        with pytest.raises(UnnameableError, match=r"^Options\.second"):
            PLAIN.text(Options(second=value), "config")


def test_an_exempt_field_or_key_is_left_out() -> None:
    canonical = Canonical({"Options.first": "a", "Options.second.key": "b"})
    texts = {
        canonical.text(Options(first, {"key": key, "other": 1}), "x")
        for first in (1, 2)
        for key in (object(), 2)
    }
    assert len(texts) == 1
    assert canonical.text(Options(1, {"other": 2}), "x") not in texts


def config(**changes: Any) -> Any:
    """As much of a configuration as has to be there."""
    load = Options("auto")
    parts = {"load_config": load, "model_config": Options(), **changes}

    made = dataclasses.make_dataclass("VllmConfig", list(parts))(**parts)
    made.load_config.load_format = made.load_config.first
    made.model_config.seed = 7
    return made


def test_the_seed_is_a_part_where_it_makes_the_weights() -> None:
    assert "seed" not in resolve(config(), {}).parts
    assert resolve(config(load_config=Options("dummy")), {}).parts["seed"] == "7"


def test_the_environment_and_the_software_are_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    one = resolve(config(), {"VLLM_USE_X": "1", "HOME": "/a"}).parts
    assert one == resolve(config(), {"VLLM_USE_X": "1", "VLLM_LOGGING_LEVEL": "INFO"}).parts
    assert one != resolve(config(), {"VLLM_USE_X": "0"}).parts
    assert numeric_environment({"NVIDIA_TF32_OVERRIDE": "1"}) != {}
    monkeypatch.setattr(compat, "software", lambda: "vllm 9")
    assert one != resolve(config(), {"VLLM_USE_X": "1"}).parts


def test_what_cannot_be_named_is_a_refusal_and_no_exception() -> None:
    named = resolve(config(additional_config=object()), {})
    assert named.parts == {}
    assert "VllmConfig.additional_config" in named.refused
    assert "cannot be read" in resolve(Options(), {}).refused


def test_ranks_have_one_name_only_when_all_say_the_same() -> None:
    one, other = Resolved({"a": "1", "b": "2"}), Resolved({"a": "1", "b": "3"})
    assert agreed({0: one, 1: one}, 2) == one
    assert agreed({0: one, 1: other}, 2).refused == "ranks 0 and 1 run with different b"
    assert agreed({0: one, 1: Resolved(refused="why")}, 2).refused == "rank 1: why"
    assert agreed({0: one}, 2).refused == "rank 1: said nothing"
