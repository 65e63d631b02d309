"""Owns the GPU kit's part with a real engine: first tokens of long prompts, computed, from its own cache, restored.

Starts one vLLM with random weights of a published model's sizes, first without a sidecar; then, for each codec,
with its own vault and sidecar (`--tierkv`). Answers of restored prompts are compared with the engine's.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "python-shim")]

from lab.checkpoint import Spec, config  # noqa: E402 - found in this tree
from lab.geometries import GEOMETRIES  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

Json = dict[str, Any]
GIB = 1 << 30
ANSWER = 16
RESTORED_MIN = 0.95
SAVED_S = 60.0
QUIET_S = 2.0
START_S = 30.0
MODELS = ("llama-3.1-8b", "qwen3.5-9b", "small")
#: Widths that the lab's geometries leave out, so that the model computes as much as the published one.
WIDTHS: dict[str, Json] = {
    "llama-3.1-8b": {"hidden": 4096, "intermediate": 14_336, "heads": 32, "vocab": 128_256},
    "qwen3.5-9b": {"hidden": 4096, "intermediate": 12_288, "heads": 16, "vocab": 248_320},
}
POSITIONS_MAX = 131_072
WARM = 2048


def spec_of(name: str) -> Spec:
    """Return a published model's sizes, or a small model's for trying this script without a GPU."""
    if name == "small":
        return Spec(hidden=64, vocab=512, max_position=32_768)
    return replace(GEOMETRIES[name], **WIDTHS[name], max_position=POSITIONS_MAX)


def write_model(name: str, folder: Path) -> Path:
    """Write a configuration; vLLM draws the weights."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config(spec_of(name))))
    return folder


class Services:
    """A vault and a sidecar, each a process; `close` ends both."""

    def __init__(
        self, command: list[str], folder: Path, socket: str, codec: str, options: argparse.Namespace
    ) -> None:
        self._command, self._folder = command, folder / codec
        self._folder.mkdir(mode=0o700)
        self._processes: list[subprocess.Popen[bytes]] = []
        # Plaintext, because both are on this machine.
        clear = "insecure_lan = true\n"
        listen = f'listen = "127.0.0.1:0"\nmax_bytes = {options.vault_gib * GIB}\n{clear}'
        vault = f'[cluster]\nrole = "cold"\n\n[vault]\n{listen}'
        address = self._serve("vault", vault)["address"]
        where = f'kv_cold = "{address}"\nssm_cold = "{address}"\n{clear}'
        own = f'socket = "{socket}"\narena_bytes = {options.arena_gib * GIB}\n'
        sidecar = (
            f'[cluster]\nrole = "inference"\n{where}\n[sidecar]\n{own}\n[codec]\nkv = "{codec}"\n'
        )
        when = f'[restore]\nwait_ms = 60000\nstall_ms = 30000\nwhen = "{options.when}"\n'
        self._serve("sidecar", sidecar + when)

    def _serve(self, name: str, config: str) -> Json:
        path = self._folder / f"{name}.toml"
        path.write_text(config)
        path.chmod(0o600)
        log = self._folder / f"{name}.log"
        argv = [*self._command, name, "--json", "--config", str(path)]
        with log.open("wb") as out:
            self._processes.append(subprocess.Popen(argv, stdout=out, stderr=out))
        until = time.monotonic() + START_S
        while time.monotonic() < until and self._processes[-1].poll() is None:
            for line in log.read_text().splitlines():
                if '"event":"ready"' in line:
                    ready: Json = json.loads(line)
                    return ready
            time.sleep(0.05)
        raise RuntimeError(f"{name} did not start:\n{log.read_text()[-2000:]}")

    def tail(self, name: str) -> str:
        """Return the end of a log."""
        return (self._folder / f"{name}.log").read_text()[-3000:]

    def close(self) -> None:
        """End both processes."""
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


class Engine:
    """One vLLM as `vllm serve` runs it, with its core in a process of its own."""

    def __init__(self, model: Path, socket: str, options: argparse.Namespace) -> None:
        from vllm import LLM, SamplingParams  # noqa: PLC0415 - seconds, and not for `--help`

        transfer = {
            "kv_connector": "TierKVConnector",
            "kv_connector_module_path": "tierkv.connectors.vllm.connector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"socket": socket, "autostart": False},
        }
        given = json.loads(options.engine)
        longest = max(options.lengths)
        self._llm = LLM(
            model=str(model),
            load_format="dummy",
            dtype="bfloat16",
            max_model_len=longest + 256,
            skip_tokenizer_init=True,
            kv_transfer_config=transfer,
            **given,
        )
        self._params = SamplingParams(
            temperature=0, max_tokens=ANSWER, ignore_eos=True, detokenize=False
        )
        self._asked = 0

    def facts(self) -> Json:
        """Return the settings that vLLM resolved."""
        config = self._llm.llm_engine.vllm_config
        return {
            "block_size": config.cache_config.block_size,
            "cache_dtype": str(config.cache_config.cache_dtype),
            "chunk": config.scheduler_config.max_num_batched_tokens,
            "async_scheduling": config.scheduler_config.async_scheduling,
            "cudagraph_mode": str(config.compilation_config.cudagraph_mode),
            "compilation_mode": str(config.compilation_config.mode),
        }

    def ask(self, prompt: list[int]) -> Json:
        """Return the seconds to the first and last token, the answer, and the tokens that were not computed."""
        engine = self._llm.llm_engine
        self._asked += 1
        began = time.perf_counter()
        engine.add_request(str(self._asked), {"prompt_token_ids": prompt}, self._params)
        first = 0.0
        last: Any = None
        while engine.has_unfinished_requests():
            for output in engine.step():
                first = first or time.perf_counter() - began
                last = output
        return {
            "first": first,
            "last": time.perf_counter() - began,
            "answer": list(last.outputs[0].token_ids),
            "cached": last.num_cached_tokens or 0,
        }

    def forget(self) -> None:
        """Empty the engine's own cache."""
        until = time.monotonic() + SAVED_S
        while not self._llm.reset_prefix_cache():
            if time.monotonic() > until:
                raise RuntimeError("the engine does not let go of its cache")
            time.sleep(0.02)

    def close(self) -> None:
        """End the engine."""
        self._llm.llm_engine.engine_core.shutdown()


def settled(socket: str) -> Json:
    """Wait until nothing has been saved for QUIET_S; return the blocks saved and the seconds until the last one."""
    from never_slower import status_of  # noqa: PLC0415 - beside the other benches

    began = changed = time.monotonic()
    before = -1
    while time.monotonic() - began < SAVED_S:
        status = status_of(socket)
        saved = int(status["counters"]["blocks_saved"])
        if saved != before or status["saves"]["queuedBlocks"]:
            changed = time.monotonic()
        if time.monotonic() - changed > QUIET_S:
            break
        before = saved
        time.sleep(0.1)
    return {"saved": saved, "seconds": round(changed - began, 2)}


def measure(engine: Engine, socket: str | None, options: argparse.Namespace) -> list[Json]:
    """Ask for every length: computed, from the engine's cache, restored."""
    draw = random.Random(options.seed)
    vocab = spec_of(options.model).vocab

    def prompt(tokens: int) -> list[int]:
        return draw.choices(range(3, vocab), k=tokens)

    if socket is None:  # kernels are chosen and compiled
        engine.ask(prompt(max(options.lengths)))
    warm = prompt(WARM)
    engine.ask(warm)
    if socket is not None:
        connected(engine, socket, prompt)
        engine.forget()
        engine.ask(warm)
    cells = []
    for tokens in options.lengths:
        rounds = []
        for _ in range(options.rounds):
            asked = prompt(tokens)
            before = counters_of(socket) if socket is not None else {}
            cold = engine.ask(asked)
            saved = settled(socket) if socket is not None else None
            if saved is not None:
                saved["blocks"] = saved["saved"] - before["blocks_saved"]
            own = engine.ask(asked)
            engine.forget()
            restored = engine.ask(asked) if socket is not None else None
            if saved is not None:
                saved["counters"] = changes(before, counters_of(socket))
            rounds.append({"cold": cold, "own": own, "restored": restored, "saved": saved})
            sys.stderr.write(f"{tokens}: {said_of(rounds[-1])}\n")
            engine.forget()
        cells.append(cell_of(tokens, rounds))
    return cells


def connected(engine: Engine, socket: str, prompt: Callable[[int], list[int]]) -> None:
    """Ask until something is saved, because the arena is mapped and pinned then."""
    until = time.monotonic() + SAVED_S
    while not settled(socket)["saved"]:
        if time.monotonic() > until:
            raise RuntimeError("nothing is saved")
        engine.ask(prompt(WARM))


def counters_of(socket: str) -> Json:
    """Return the sidecar's counters."""
    from never_slower import status_of  # noqa: PLC0415 - beside the other benches

    counters: Json = status_of(socket)["counters"]
    return counters


def changes(before: Json, after: Json) -> Json:
    """Return the counters that moved, and by how much."""
    moved = {name: after[name] - before.get(name, 0) for name in after}
    return {name: count for name, count in moved.items() if count}


def said_of(one: Json) -> str:
    """Return a round as a line: milliseconds to the first token, and tokens that were not computed."""
    asked = {name: one[name] for name in ("cold", "own", "restored") if one[name] is not None}
    return ", ".join(
        f"{name} {each['first'] * 1e3:.1f} ms ({each['cached']})" for name, each in asked.items()
    )


def cell_of(tokens: int, rounds: list[Json]) -> Json:
    """Return the medians of a length, and the number of equal answers."""

    def ms(name: str) -> Json | None:
        if rounds[0][name] is None:
            return None
        firsts = [each[name]["first"] for each in rounds]
        return {
            "first token, ms": round(statistics.median(firsts) * 1e3, 2),
            "a later one, ms": round(
                statistics.median(
                    (each[name]["last"] - each[name]["first"]) / (ANSWER - 1) for each in rounds
                )
                * 1e3,
                3,
            ),
            "not computed": [each[name]["cached"] for each in rounds],
        }

    cell: Json = {"tokens": tokens, **{name: ms(name) for name in ("cold", "own", "restored")}}
    if rounds[0]["restored"] is not None:
        for of in ("own", "cold"):
            cell[f"answers as {of}"] = sum(
                each["restored"]["answer"] == each[of]["answer"] for each in rounds
            )
        cell["answers own as cold"] = sum(
            each["own"]["answer"] == each["cold"]["answer"] for each in rounds
        )
        cell["of"] = len(rounds)
        cell["saved after, s"] = [each["saved"]["seconds"] for each in rounds]
        cell["blocks saved"] = [each["saved"]["blocks"] for each in rounds]
        cell["counters"] = rounds[-1]["saved"]["counters"]
    return cell


def run(options: argparse.Namespace) -> Json:
    """Return the report of all measurements."""
    import torch  # noqa: PLC0415 - seconds, and not for `--help`
    import vllm  # noqa: PLC0415 - the same

    report: Json = {"model": options.model, "engine": json.loads(options.engine)}
    is_gpu = torch.cuda.is_available()
    report["device"] = torch.cuda.get_device_name() if is_gpu else "processor"
    report |= {"torch": torch.__version__, "vllm": vllm.__version__}
    with tempfile.TemporaryDirectory(prefix="tierkv-kit-") as name:
        folder = Path(name)
        socket = str(folder / "sidecar.sock")
        began = time.monotonic()
        engine = Engine(write_model(options.model, folder / "model"), socket, options)
        report |= {"start, s": round(time.monotonic() - began, 1), **engine.facts()}
        save(report, options.out)
        report["no sidecar"] = measure(engine, None, options)
        for codec in options.codecs:
            save(report, options.out)
            services = Services(shlex.split(options.tierkv), folder, socket, codec, options)
            try:
                report[codec] = measure(engine, socket, options)
            except BaseException:
                sys.stderr.write(services.tail("sidecar") + services.tail("vault"))
                raise
            finally:
                services.close()
        save(report, options.out)
        engine.close()
    return report


def save(report: Json, out: Path | None) -> None:
    """Write the report so far."""
    if out is not None:
        out.write_text(json.dumps(report, indent=2) + "\n")


def main() -> int:
    """Write the report; return 1 where a restored answer differed from the engine's own, or nothing was restored."""
    parser = argparse.ArgumentParser(prog="bench/gpu/engine.py", description=__doc__)
    parser.add_argument("--tierkv", default="tierkv", help="the command, with its first arguments")
    parser.add_argument("--model", choices=MODELS, default="llama-3.1-8b")
    parser.add_argument("--lengths", type=lambda text: [int(n) for n in text.split(",")])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--codecs", type=lambda text: text.split(","), default=["raw"])
    parser.add_argument("--when", default="always", help="[restore] when")
    parser.add_argument("--arena-gib", type=int, default=20)
    parser.add_argument("--vault-gib", type=int, default=40)
    parser.add_argument("--engine", default="{}", help="more arguments of vLLM's LLM, as JSON")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.set_defaults(lengths=[8_192, 32_768, 100_000])
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    report = run(options)
    sys.stdout.write(json.dumps(report, indent=2) + "\n")
    cells = [cell for codec in options.codecs for cell in report[codec]]
    is_restored = all(
        restored >= own * RESTORED_MIN
        for each in cells
        for restored, own in zip(
            each["restored"]["not computed"], each["own"]["not computed"], strict=True
        )
    )
    return int(not is_restored or any(each["answers as own"] < each["of"] for each in cells))


if __name__ == "__main__":
    sys.exit(main())
