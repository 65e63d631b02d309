"""Owns the certificates that tierKV ships: `tierkv fidelity` on published models, and its rows in certified.ts.

`.venv/bin/python bench/fidelity/certify.py MODELS --chats DIR [NAME ...]` writes the texts of texts.py into one file,
lets vLLM answer pieces of it in float32 on this machine's CPU, and puts each certificate into
src/sidecar/save/certified.ts in place of the model's earlier one. Prints the seconds of each model.
MODELS: folder of the converted models.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from texts import texts

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "src" / "sidecar" / "save" / "certified.ts"
NAMES = ("gemma3-270m", "qwen25-0.5b", "qwen25-1.5b")
#: Order of a row's fields.
FIELDS = (
    "model",
    "weights",
    "order",
    "dtype",
    "codec",
    "version",
    "prompts",
    "tokens",
    "kldMean",
    "kldWorst",
    "floor",
    "date",
    "command",
)


def measured(model: Path, text: Path, folder: Path) -> dict[str, Any]:
    """Run the command on a model's folder, and return what it prints; its progress goes to stderr."""
    config = folder / "tierkv.toml"
    config.write_text(f'[codec]\ncertificates = "{folder / "certificates"}"\n')
    line = ["node", "bin/tierkv.js", "fidelity", "--model", str(model), "--text", str(text)]
    began = time.monotonic()
    ran = subprocess.run(
        [*line, "--json", "--config", str(config)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    took = time.monotonic() - began
    if not ran.stdout:
        raise SystemExit(f"{model.name}: the command ended with {ran.returncode} and no result")
    found: dict[str, Any] = json.loads(ran.stdout)
    print(
        f"{model.name}: {took:.0f} s, {found['verdict']}, {found['restored']} prompts restored, "
        f"KLD {found['tierkv']['kldMean']:.1e}, floor {found['ownCache']['kldMean']:.1e}"
    )
    return found


def row(certificate: dict[str, Any]) -> str:
    """Return a certificate as TypeScript, numbers with four digits."""
    lines = []
    for name in FIELDS:
        value = certificate[name]
        text = json.dumps(value)
        if isinstance(value, float):
            text = repr(float(f"{value:.3e}")).replace("e-0", "e-")
        lines.append(f"    {name}: {text},\n")
    return "  {\n" + "".join(lines) + "  },\n"


def put(certificate: dict[str, Any], table: str) -> str:
    """Return the table with this certificate in place of the model's earlier one, or at the end."""
    known = re.compile(
        r'  \{\n    model: "' + re.escape(certificate["model"]) + r'",\n.*?  \},\n', re.DOTALL
    )
    new = row(certificate)
    if known.search(table):
        return known.sub(lambda _: new, table)
    return table.replace("\n];", "\n" + new + "];")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path, help="folder of the converted models")
    parser.add_argument(
        "--chats", type=Path, required=True, help="folder with the wheel of dialogues"
    )
    parser.add_argument("names", nargs="*", default=NAMES)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        text = folder / "text.txt"
        text.write_text("\n\n".join("\n".join(one.turns) for one in texts(options.chats)))
        for name in options.names:
            certificate = measured(options.models / name, text, folder)["certificate"]
            if certificate is None:
                print(f"{name}: no certificate; the table keeps what it has")
            else:
                TABLE.write_text(put(certificate, TABLE.read_text()))


if __name__ == "__main__":
    main()
