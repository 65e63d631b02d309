#!/usr/bin/env bash
# Of language models that transformers saves apart from their pictures' part, mlx-lm loads two of seven (mlx-lm 0.32.2, transformers 5.24.0).
#
# transformers gives the language part of a model with pictures a type of its own, which ends in `_text`, and a class for causal
# language models, which config.json then names.
#
# Guess before the run: mlx-lm loads such a checkpoint of each family that it can load whole.
# Seen, with the configuration that transformers' own class writes:
# - gemma3_text, gemma4_text: loaded.
# - gemma3n_text, qwen3_5_text, qwen3_5_moe_text, minimax_m3_vl_text: "Model type ... not supported", though mlx-lm has the family
#   under the type without `_text`.
# - llama4_text: mlx-lm has this type, and asks for `rope_theta`, which transformers 5 writes into `rope_parameters`.
#
# Needs Python 3.11 or newer on Linux, and the network for pip. Exits with 1 if a type is answered otherwise.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install 'mlx[cpu]==0.32.4' mlx-lm==0.32.2 transformers==5.24.0
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import importlib.util
import json
import sys
from pathlib import Path

import mlx.core as mx
from mlx_lm.utils import load_model
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

seen = {}
for kind, architecture in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
    whole = kind.removesuffix("_text")
    if whole == kind or importlib.util.find_spec(f"mlx_lm.models.{whole}") is None:
        continue
    place = Path(sys.argv[1]) / kind
    place.mkdir()
    config = {**CONFIG_MAPPING[kind]().to_dict(), "architectures": [architecture]}
    (place / "config.json").write_text(json.dumps(config, default=str))
    # One tensor that no model has: what is missing stays as it was made, and nothing is computed.
    mx.save_safetensors(str(place / "model.safetensors"), {"unused": mx.zeros(1)})
    try:
        load_model(place, lazy=True, strict=False)
        seen[kind] = "loaded"
    except (TypeError, ValueError) as error:
        seen[kind] = str(error)
    print(f"{kind} ({architecture}): {seen[kind]}")

refused = ("gemma3n_text", "minimax_m3_vl_text", "qwen3_5_moe_text", "qwen3_5_text")
expected = {
    "gemma3_text": "loaded",
    "gemma4_text": "loaded",
    "llama4_text": "ModelArgs.__init__() missing 1 required positional argument: 'rope_theta'",
    **{kind: f"Model type {kind} not supported." for kind in refused},
}
sys.exit(0 if seen == expected else "mlx-lm answers otherwise than when this was written")
PYTHON
