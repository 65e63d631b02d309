"""Fixtures of the engine tests: one import of vLLM, clusters of real processes, nothing left behind."""

from __future__ import annotations

import itertools
import json
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness import reaper
from harness.engine import Engines
from harness.models import Models
from harness.processes import Cluster, leftovers, wait_until
from harness.releases import IS_V2, MAIN, releases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NUMBERS = itertools.count(1)
os.environ[reaper.MARK] = uuid.uuid4().hex
#: Kept alive as long as this process, because the reaper waits for its end.
_REAPER = reaper.start(os.environ[reaper.MARK])


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the run's folder; pytest keeps the last three, with all logs."""
    made = tmp_path_factory.mktemp("e", numbered=False)
    # Set here, because the user's state holds leftovers of earlier runs, such as flushes of a vault at the same port.
    os.environ["XDG_STATE_HOME"] = str(made / "state")
    return made


@pytest.fixture(scope="session")
def models(folder: Path) -> Models:
    return Models(folder)


@pytest.fixture(scope="session")
def all_engines(folder: Path) -> Iterator[Engines]:
    engines = Engines(folder, MAIN)
    yield engines
    engines.close()


@pytest.fixture(scope="module", autouse=True)
def nothing_left_behind(folder: Path, all_engines: Engines) -> Iterator[None]:
    """After each module, expects no process, shared memory or socket of ours except the zygote's."""
    yield
    all_engines.end_all()

    def left() -> list[str]:
        found = leftovers(folder, but={all_engines.pid} if all_engines.is_running else set())
        return [what for what in found if what != all_engines.path]

    wait_until(lambda: not left(), f"all is tidy; left behind: {left()}", 10.0)


@pytest.fixture(scope="module")
def new_cluster(folder: Path) -> Iterator[Callable[..., Cluster]]:
    """Starts clusters that end with the module."""
    made: list[Cluster] = []

    def start(**options: object) -> Cluster:
        place = folder / f"c{next(_NUMBERS)}"
        place.mkdir()
        made.append(Cluster(place, **options))  # type: ignore[arg-type]
        made[-1].start()
        return made[-1]

    yield start
    for cluster in made:
        cluster.end()


@pytest.fixture(scope="module")
def engines(all_engines: Engines) -> Iterator[Engines]:
    """Starts engines that end with the module."""
    yield all_engines
    all_engines.end_all()


@pytest.fixture(scope="module", params=releases())
def release_engines(
    request: pytest.FixtureRequest, folder: Path, all_engines: Engines
) -> Iterator[Engines]:
    """Starts engines of one vLLM release after the other; the main release uses the run's own zygote."""
    if request.param == MAIN:
        yield all_engines
        all_engines.end_all()
        return
    engines = Engines(folder, request.param)
    yield engines
    engines.close()


_OUTCOMES: dict[str, str] = {}
_RUN = f"{MAIN} V2" if IS_V2 else MAIN
#: Beginning of a file's name -> the engine that it runs in place of vLLM.
_WITHOUT_VLLM = {"test_mlx": "mlx-lm", "test_exo": "mlx-lm", "test_sglang": "sglang"}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Notes each test's outcome; a test that failed once stays failed."""
    name = report.nodeid.rpartition("/")[2]
    if report.when == "call" or report.outcome != "passed":
        before = _OUTCOMES.get(name, "passed")
        _OUTCOMES[name] = report.outcome if before == "passed" else before
    if report.when == "teardown":
        _record(name)


def _record(name: str) -> None:
    """In a nightly run, adds the outcomes to the file that docs/compatibility.md is made from."""
    record = os.environ.get("TIERKV_TEST_RECORD")
    if record is None:
        return
    path = Path(record)
    known = json.loads(path.read_text()) if path.exists() else {}
    engine = next((one for start, one in _WITHOUT_VLLM.items() if name.startswith(start)), _RUN)
    outcomes = known.setdefault(engine, {})
    # The short form skips tests that the long form ran.
    if _OUTCOMES[name] != "skipped" or name not in outcomes:
        outcomes[name] = _OUTCOMES[name]
    path.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")
