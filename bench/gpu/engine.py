"""Owns the GPU kit's part with a real engine: first tokens of long prompts, computed, its own cache's, restored.

Starts a vault and a sidecar (`--tierkv`), and one vLLM with random weights of a published model's sizes. Answers of
restored prompts are compared with the engine's own. `--plain`: the same engine without tierKV.
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
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "python-shim")]

Json = dict[str, Any]
GIB = 1 << 30
ANSWER = 16
RESTORED_MIN = 0.95
SAVED_S = 60.0
QUIET_S = 2.0
START_S = 30.0
#: As published, but for the vocabulary of the small one, which tries the script without a GPU.
MODELS: dict[str, Json] = {
    "llama-3.1-8b": {
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128_256,
        "rope_theta": 500_000.0,
        "max_position_embeddings": 131_072,
    },
    "small": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": 512,
        "rope_theta": 10_000.0,
        "max_position_embeddings": 32_768,
    },
}


def write_model(name: str, folder: Path) -> Path:
    """Write a configuration; vLLM draws the weights."""
    fixed = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**fixed, **MODELS[name]}))
    return folder


class Services:
    """A vault and a sidecar, each a process of its own; `close` ends both."""

    def __init__(self, command: list[str], folder: Path, options: argparse.Namespace) -> None:
        self._command, self._folder = command, folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self.socket = str(folder / "sidecar.sock")
        # In the clear: both are on this machine.
        clear = "insecure_lan = true\n"
        listen = f'listen = "127.0.0.1:0"\nmax_bytes = {options.vault_gib * GIB}\n{clear}'
        vault = f'[cluster]\nrole = "cold"\n\n[vault]\n{listen}'
        address = self._serve("vault", vault)["address"]
        where = f'kv_cold = "{address}"\nssm_cold = "{address}"\n{clear}'
        own = f'socket = "{self.socket}"\narena_bytes = {options.arena_gib * GIB}\n'
        sidecar = f'[cluster]\nrole = "inference"\n{where}\n[sidecar]\n{own}\n[codec]\nkv = "{options.codec}"\n'
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
        """Give the end of a log."""
        return (self._folder / f"{name}.log").read_text()[-3000:]

    def close(self) -> None:
        """End both."""
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


class Engine:
    """One vLLM, in the way `vllm serve` runs it: its core in a process of its own."""

    def __init__(self, model: Path, socket: str | None, options: argparse.Namespace) -> None:
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
            kv_transfer_config=transfer if socket is not None else None,
            **given,
        )
        self._params = SamplingParams(
            temperature=0, max_tokens=ANSWER, ignore_eos=True, detokenize=False
        )
        self._asked = 0

    def facts(self) -> Json:
        """Say what vLLM made of its settings."""
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
        """Give the seconds to the first token and to the last, the answer, and the tokens that were not computed."""
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
        """End it."""
        self._llm.llm_engine.engine_core.shutdown()


def settled(socket: str) -> Json:
    """Wait until nothing has been saved for QUIET_S; give the counters, and how long it took until then."""
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
    return {"counters": status["counters"], "saved": saved, "seconds": round(changed - began, 2)}


def measure(engine: Engine, socket: str | None, options: argparse.Namespace) -> list[Json]:
    """Ask for every length: computed, from the engine's cache, restored."""
    draw = random.Random(options.seed)
    vocab = MODELS[options.model]["vocab_size"]

    def prompt(tokens: int) -> list[int]:
        return draw.choices(range(3, vocab), k=tokens)

    for _ in range(2):
        engine.ask(prompt(max(options.lengths)))
    warm = prompt(2048)
    engine.ask(warm)
    if socket is not None:
        settled(socket)
        engine.forget()
        engine.ask(warm)
    cells = []
    for tokens in options.lengths:
        rounds = []
        for _ in range(options.rounds):
            asked = prompt(tokens)
            before = settled(socket)["saved"] if socket is not None else 0
            cold = engine.ask(asked)
            saved = settled(socket) if socket is not None else None
            if saved is not None:
                saved["blocks"] = saved["saved"] - before
            own = engine.ask(asked)
            engine.forget()
            restored = engine.ask(asked) if socket is not None else None
            rounds.append({"cold": cold, "own": own, "restored": restored, "saved": saved})
            sys.stderr.write(f"{tokens}: {said_of(rounds[-1])}\n")
        cells.append(cell_of(tokens, rounds))
    return cells


def said_of(one: Json) -> str:
    """Give a round in a line: milliseconds to the first token, and tokens that were not computed."""
    asked = {name: one[name] for name in ("cold", "own", "restored") if one[name] is not None}
    return ", ".join(
        f"{name} {each['first'] * 1e3:.1f} ms ({each['cached']})" for name, each in asked.items()
    )


def cell_of(tokens: int, rounds: list[Json]) -> Json:
    """Give the medians of a length, and whether any answer differed."""

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
    return cell


def run(options: argparse.Namespace) -> Json:
    """Give everything that was found."""
    import torch  # noqa: PLC0415 - seconds, and not for `--help`
    import vllm  # noqa: PLC0415 - the same

    report: Json = {"model": options.model, "codec": None if options.plain else options.codec}
    is_gpu = torch.cuda.is_available()
    report["device"] = torch.cuda.get_device_name() if is_gpu else "processor"
    report |= {"torch": torch.__version__, "vllm": vllm.__version__}
    with tempfile.TemporaryDirectory(prefix="tierkv-kit-") as folder:
        model = write_model(options.model, Path(folder, "model"))
        services = None
        if not options.plain:
            services = Services(shlex.split(options.tierkv), Path(folder), options)
        socket = services.socket if services is not None else None
        try:
            began = time.monotonic()
            engine = Engine(model, socket, options)
            report |= {"start, s": round(time.monotonic() - began, 1), **engine.facts()}
            report["cells"] = measure(engine, socket, options)
            if socket is not None:
                counters = settled(socket)["counters"]
                report["counters"] = {name: count for name, count in counters.items() if count}
            engine.close()
        except BaseException:
            if services is not None:
                sys.stderr.write(services.tail("sidecar") + services.tail("vault"))
            raise
        finally:
            if services is not None:
                services.close()
    return report


def main() -> int:
    """Write the report; 1 where a restored answer was not the engine's own, or nothing was restored."""
    parser = argparse.ArgumentParser(prog="bench/gpu/engine.py", description=__doc__)
    parser.add_argument("--tierkv", default="tierkv", help="the command, with its first arguments")
    parser.add_argument("--model", choices=MODELS, default="llama-3.1-8b")
    parser.add_argument("--lengths", type=lambda text: [int(n) for n in text.split(",")])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--codec", default="raw")
    parser.add_argument("--when", default="always", help="[restore] when")
    parser.add_argument("--arena-gib", type=int, default=20)
    parser.add_argument("--vault-gib", type=int, default=40)
    parser.add_argument("--engine", default="{}", help="more arguments of vLLM's LLM, as JSON")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.set_defaults(lengths=[8_192, 32_768, 100_000])
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    report = run(options)
    text = json.dumps(report, indent=2) + "\n"
    if options.out is not None:
        options.out.write_text(text)
    sys.stdout.write(text)
    cells = [] if options.plain else report["cells"]
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
