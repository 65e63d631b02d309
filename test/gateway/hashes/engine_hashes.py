"""Hashes blocks by the engine's own functions: of golden cases (`--golden`), or of one JSON line each on stdin."""

from __future__ import annotations

import json
import os
import random
import sys
from types import SimpleNamespace
from typing import Any

import vllm
from vllm.lora.request import LoRARequest
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils

ALGORITHMS = ("sha256_cbor", "sha256")
SEEDS = (None, "0", "a longer seed, of 0.32 and 0.28")
Case = dict[str, Any]


def begin(algorithm: str, seed: str | None) -> bytes | None:
    """Set the root as an engine does that is started with this PYTHONHASHSEED; None where it is drawn."""
    os.environ.pop("PYTHONHASHSEED", None)
    if seed is not None:
        os.environ["PYTHONHASHSEED"] = seed
    roots = []
    for _ in range(2):
        kv_cache_utils.init_none_hash(get_hash_fn_by_name(algorithm))
        roots.append(bytes(kv_cache_utils.NONE_HASH))
    return roots[0] if roots[0] == roots[1] else None


def chain(case: Case) -> list[str]:
    """Give the hash of each full block."""
    hash_fn = get_hash_fn_by_name(case["algorithm"])
    tokens, size, lora = case["tokens"], case["block"], case.get("lora")
    request: Any = SimpleNamespace(
        lora_request=None if lora is None else LoRARequest(lora[0], 1, lora[1]),
        cache_salt=case.get("salt"),
        mm_features=[],
        prompt_embeds=None,
        prompt_embeds_hashes=None,
    )
    parent: Any = None
    found = []
    for start in range(0, len(tokens) - size + 1, size):
        extra, _ = kv_cache_utils.generate_block_hash_extra_keys(request, start, start + size, 0)
        block = tokens[start : start + size]
        parent = kv_cache_utils.hash_block_tokens(hash_fn, parent, block, extra)
        found.append(bytes(parent).hex())
    return found


def golden() -> Case:
    """Give cases with their hashes: small and large ids and blocks, with and without adapter and salt."""
    rng = random.Random(132)
    cases: list[Case] = []
    for algorithm in ALGORITHMS:
        root = begin(algorithm, "0")
        for size, count in ((1, 2), (2, 3), (3, 2), (16, 3), (32, 2), (128, 2)):
            ids = (20, 250, 70_000, 2**31)
            tokens = [rng.randrange(rng.choice(ids)) for _ in range(size * count + 1)]
            for salt, lora in ((None, None), ("tenant-ä", None), (None, ["ad", "/a/path"])):
                case = {"algorithm": algorithm, "block": size, "tokens": tokens}
                cases.append({**case, "salt": salt, "lora": lora})
        both = {"salt": "s" * 300, "lora": ["ad", "/p"], "tokens": list(range(64)), "block": 32}
        cases.append({"algorithm": algorithm, **both})
        for case in cases:
            if case["algorithm"] == algorithm:
                case |= {"root": root and root.hex(), "hashes": chain(case)}
    roots = {
        f"{algorithm} {seed}": (root := begin(algorithm, seed)) and root.hex()
        for algorithm in ALGORITHMS
        for seed in SEEDS
    }
    return {"release": vllm.__version__, "roots": roots, "cases": cases}


def main() -> None:
    """Answer what is asked for."""
    if "--golden" in sys.argv:
        json.dump(golden(), sys.stdout)
        return
    for line in sys.stdin:
        case = json.loads(line)
        begin(case["algorithm"], "0")
        print(json.dumps(chain(case)), flush=True)


main()
