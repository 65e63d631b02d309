"""Owns the packing of all that `engine.py` needs on a GPU machine without a network: vLLM, packages, Node, tierKV.

Needs pip, a Python of the machine's release, and a wheel of tierKV (`npm run release`). Writes pieces that
`unpack.sh` joins there. Torch, Triton and transformers are the machine's own, because vLLM's libraries of 0.28 and
newer use torch's stable ABI and load with an older torch than the wheel asks for (2.11 with 0.32, tried).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import lzma
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from fatbin import thin

#: Packages from vLLM's list that a model of plain attention imports beside torch. Packages of kernels are left out.
PACKAGES = [
    "anthropic",
    "blake3",
    "cachetools",
    "cbor2",
    "compressed-tensors",
    "depyf",
    "einops",
    "fastapi",
    "ijson",
    "jsonschema",
    "lark",
    "llguidance",
    "lm-format-enforcer",
    "mcp",
    "mistral_common",
    "model-hosting-container-standards",
    "msgspec",
    "openai",
    "opentelemetry-api",
    "opentelemetry-exporter-otlp",
    "opentelemetry-sdk",
    "opentelemetry-semantic-conventions-ai",
    "oss-harmony",
    "outlines_core",
    "partial-json-parser",
    "prometheus-fastapi-instrumentator",
    "pybase64",
    "pydantic",
    "python-json-logger",
    "pyzmq",
    "setproctitle",
    "starlette",
    "uvicorn",
    "watchfiles",
    "xgrammar",
]
LIBRARIES = ("vllm/_C_stable_libtorch.abi3.so", "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so")
#: Large files that are never read here.
LEFT_OUT = re.compile(
    r"__pycache__/|^vllm/vllm-rs$|^vllm/third_party/.*(?<!\.py)$|\.(?:so|jpg|png|cuh?|hp?p?)$"
    r"|mistral_common/data/|pycountry/locales/|(?:^|/)tests?/"
)
LEFT_OUT_OF_PACKAGES = re.compile(
    r"__pycache__/|mistral_common/data/|pycountry/locales/|(?:^|/)tests?/|^\.\./"
)


def download(vllm: str, folder: Path) -> Path:
    """Fetch vLLM's wheel."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    subprocess.run([*pip, f"vllm=={vllm}"], check=True)
    return next(folder.glob("vllm-*.whl"))


def take_vllm(wheel: Path, site: Path, architecture: int) -> None:
    """Unpack the needed files, with kernels of one architecture."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name in LIBRARIES:
                library = bytearray(archive.read(name))
                sys.stderr.write(f"{name}: {thin(library, architecture) / 1e6:.0f} MB of others\n")
                target = site / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(library)
            elif not LEFT_OUT.search(name):
                archive.extract(name, site)


def take_packages(site: Path, present: set[str]) -> None:
    """Copy packages that are installed beside this Python and absent there."""
    for found in importlib.metadata.distributions():
        name = plain(found.metadata["Name"])
        if name in present or name in ("pip", "setuptools") or name.startswith("nvidia-"):
            continue
        for file in found.files or ():
            source = Path(str(file.locate()))
            if LEFT_OUT_OF_PACKAGES.search(str(file)) or not source.is_file():
                continue
            target = site / str(file)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def plain(name: str) -> str:
    """Return a package's name in normalised form."""
    return re.sub(r"[-_.]+", "-", name).lower()


def write_pieces(site: Path, node: Path, out: Path, piece_bytes: int) -> None:
    """Pack Node and the packages, and cut the archive into pieces."""
    out.mkdir(parents=True, exist_ok=True)
    whole = out / "site.tar.xz"
    with tarfile.open(whole, "w:xz", preset=5) as archive:
        archive.add(site, ".")
    with whole.open("rb") as packed:
        number = 0
        while piece := packed.read(piece_bytes):
            (out / f"site.{number:02}").write_bytes(piece)
            number += 1
    whole.unlink()
    with node.open("rb") as plainly, lzma.open(out / "node.xz", "wb", preset=4) as packed_node:
        shutil.copyfileobj(plainly, packed_node)


def main() -> None:
    """Pack."""
    parser = argparse.ArgumentParser(prog="bench/gpu/pack.py", description=__doc__)
    parser.add_argument("--vllm", default="0.32.0")
    parser.add_argument("--architecture", type=int, default=90, help="90: Hopper")
    parser.add_argument(
        "--present", type=Path, required=True, help="packages there: names, by commas or lines"
    )
    parser.add_argument("--wheel", type=Path, required=True, help="of tierKV, for Linux on x86-64")
    parser.add_argument("--node", type=Path, default=Path(shutil.which("node") or "node"))
    parser.add_argument("--piece-mb", type=int, default=22)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    present = {plain(name) for name in re.split(r"[,\s]+", given.present.read_text()) if name}
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    with tempfile.TemporaryDirectory() as scratch:
        site = Path(scratch, "site")
        site.mkdir()
        take_vllm(download(given.vllm, Path(scratch)), site, given.architecture)
        take_packages(site, present)
        with zipfile.ZipFile(given.wheel) as archive:
            archive.extractall(site)
        write_pieces(site, given.node, given.out, given.piece_mb << 20)


if __name__ == "__main__":
    main()
