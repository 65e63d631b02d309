"""Owns a model of the hub on this machine, by the hub's own library: `python -m lab.hub_model OWNER/NAME`.

It prints the folder in the hub's cache. A hub that does not answer within seconds is given up at once.
"""

from __future__ import annotations

import sys
from typing import Final

from huggingface_hub import HfApi, snapshot_download

#: Seconds for the hub's first answer.
ANSWER_S: Final = 3
FILES: Final = ("*.json", "*.safetensors", "*.txt", "*.jinja")


def main() -> None:
    """Print the folder, or end with 1 and the reason."""
    (name,) = sys.argv[1:]
    try:
        revision = HfApi().model_info(name, timeout=ANSWER_S).sha
        sys.stdout.write(f"downloading revision {revision}\n")
        sys.stdout.flush()
        folder = snapshot_download(name, revision=revision, allow_patterns=list(FILES))
    except Exception as error:  # any failure means: take another source
        raise SystemExit(f"the hub gave no {name}: {type(error).__name__}") from error
    sys.stdout.write(f"{folder}\n")


if __name__ == "__main__":
    main()
