"""Answers with the likeliest tokens of each step, for the comparison of two ways to an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm import SamplingParams

if TYPE_CHECKING:
    from harness.engine_main import Host

#: The number that vLLM returns by default.
LIKELIEST = 20


def weigh(host: Host, prompts: list[list[int]], max_tokens: int) -> list[dict[str, Any]]:
    """Returns greedy answers, each step with the log-probabilities of its likeliest tokens."""
    params = SamplingParams(
        temperature=0,
        max_tokens=max_tokens,
        logprobs=LIKELIEST,
        detokenize=False,
        ignore_eos=True,
    )
    inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
    outputs = host.llm.generate(inputs, params, use_tqdm=False)
    return [
        {
            "tokens": list(output.outputs[0].token_ids),
            "cached": output.num_cached_tokens,
            "steps": [
                {str(token): found.logprob for token, found in step.items()}
                for step in output.outputs[0].logprobs
            ],
        }
        for output in outputs
    ]
