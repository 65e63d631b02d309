"""Published models in a real engine: exact restores give the own cache's answers, INT8 lies within its bound."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

import pytest
from harness.processes import ROOT, wait_until
from harness.published import EVERY_CHANGE_S, NIGHTLY_S, folder_of, prompts
from harness.trained import alike, divergence
from tierkv.connectors.vllm.naming.files import ModelFiles

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.engine import Engines
    from harness.processes import Cluster

#: Prompts of whole blocks and a rest, few of them for every change; tokens of an answer.
PROMPTS, FEW, BLOCK, BLOCKS, TAIL, ANSWER = 24, 8, 32, 12, 7, 16
#: A request waits so long for the workers to read a gigabyte of weights after each reset, in milliseconds.
READING_MS = 60_000
#: Bound of docs/fidelity.md, nats a token in float32.
KLD_MAX = 1e-4
#: Tokens of which the judged models' likeliest may differ, as a share.
OTHERS_MAX = 0.005
CERTIFIED = ROOT / "src" / "sidecar" / "save" / "certified.ts"
EXACT, LOSSY = "raw", "int8-mean-had"
GEMMA = "gemma3-270m"


def _nightly(name: str, codec: str) -> Any:
    return pytest.param(name, NIGHTLY_S, PROMPTS, codec, marks=pytest.mark.nightly)


MODELS = (GEMMA, "qwen25-0.5b", "qwen25-1.5b")
CASES = [
    (GEMMA, EVERY_CHANGE_S, FEW, LOSSY),
    *(_nightly(name, codec) for codec in (EXACT, LOSSY) for name in MODELS),
]


@pytest.mark.parametrize(("name", "seconds", "count", "codec"), CASES)
def test_restored_answers_are_those_of_the_own_cache(
    name: str,
    seconds: float,
    count: int,
    codec: str,
    engines: Engines,
    new_cluster: Callable[..., Cluster],
    record_property: Callable[[str, Any], None],
) -> None:
    model = folder_of(name, seconds)
    cluster = new_cluster(kv=codec, vault_bytes="1GiB", wait_ms=READING_MS, stall_ms=READING_MS)
    # In float32 only the codec changes values; in bfloat16 one last bit of K changes as much (docs/fidelity.md).
    options = {"model": str(model), "dtype": "float32", "block_size": BLOCK}
    options |= {"max_model_len": 1_024, "num_gpu_blocks_override": 256}
    options["kv_transfer_config"] = cluster.transfer_config
    asked = prompts(model, count, BLOCKS * BLOCK + TAIL)
    own, restored = [], []
    with engines.start(vllm=options).wait_up() as engine:
        cluster.wait_restoring()  # hashing the files takes longer than a start waits on a busy machine
        # A prompt at a time, so that every answer is computed in the same shape as its reference.
        for number, prompt in enumerate(asked, 1):
            engine.call("weigh", prompts=[prompt], max_tokens=1)
            own += engine.call("weigh", prompts=[prompt], max_tokens=ANSWER)
            cluster.wait_saved(number * BLOCKS)
            cluster.wait_idle()
            engine.empty()
            restored += engine.call("weigh", prompts=[prompt], max_tokens=ANSWER)
            assert engine.call("reset")
    assert {each["cached"] for each in own} == {BLOCKS * BLOCK}
    assert {each["cached"] for each in restored} == {BLOCKS * BLOCK}
    divergences, same = [], []
    for ours, theirs in zip(own, restored, strict=True):
        length = alike(ours["tokens"], theirs["tokens"])
        same.append(length == ANSWER)
        steps = zip(ours["steps"][: length + 1], theirs["steps"], strict=False)
        divergences += [divergence(*pair) for pair in steps]
    found = {"kld": fmean(divergences), "kld_max": max(divergences), "same": fmean(same)}
    for key, value in found.items():
        record_property(key, value)
    print(name, codec, found)
    if codec == EXACT:
        assert [each["tokens"] for each in restored] == [each["tokens"] for each in own]
        assert found["kld_max"] == 0
    else:
        assert 0 < found["kld"] <= KLD_MAX
        others = sum(not is_same for is_same in same) / len(divergences)
        assert others <= OTHERS_MAX


@pytest.mark.nightly
@pytest.mark.parametrize("name", MODELS)
def test_the_certificate_that_tierkv_ships_is_of_the_files_that_are_written(
    name: str, tmp_path: Path
) -> None:
    place = folder_of(name, NIGHTLY_S)
    files = ModelFiles(lambda: [("model0", place)], tmp_path)
    files.when_known = lambda: None
    files.begin()
    wait_until(lambda: files.digest or files.refused, "the digest", READING_MS / 1000)
    assert f'"{files.digest}"' in CERTIFIED.read_text(), "run bench/fidelity/certify.py"
