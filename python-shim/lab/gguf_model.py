"""Owns the conversion of a GGUF file into a model's folder in bfloat16, by transformers' own loader.

transformers marks a model that it loads from GGUF as quantised and refuses to save it, so the tensors are taken
from its reader and put into a model made from the configuration.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import gguf  # type: ignore[import-not-found]  # beside the converter only
import torch
from tokenizers import Tokenizer, processors
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

BOS = "<bos>"


def convert(work: str, *, puts_bos: bool) -> None:
    """Convert `work`/model.gguf into the folder `work`/model; `puts_bos`: each text begins with `<bos>`."""
    # transformers reads the file anew for configuration, tokenizer and tensors, a minute each with a large vocabulary.
    reader: Any = functools.cache(gguf.GGUFReader)
    gguf.GGUFReader = reader
    folder, file = Path(work), "model.gguf"
    out = folder / "model"
    config = AutoConfig.from_pretrained(folder, gguf_file=file)
    with torch.device("meta"):
        names = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    read = load_gguf_checkpoint(
        str(folder / file), return_tensors=True, model_to_load=names, torch_dtype=torch.bfloat16
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    absent = model.load_state_dict(read["tensors"], strict=False)
    model.tie_weights()
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    if set(absent.missing_keys) - tied or absent.unexpected_keys:
        raise ValueError(f"the file's tensors are not those of the model: {absent}")
    model.generation_config = GenerationConfig.from_model_config(config)
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(folder, gguf_file=file).save_pretrained(out)
    if puts_bos:
        _put_bos(out / "tokenizer.json")


def _put_bos(path: Path) -> None:
    """Let the tokenizer begin each text with `<bos>`, without which Gemma repeats itself; GGUF does not carry it."""
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A",
        pair=f"{BOS} $A {BOS} $B",
        special_tokens=[(BOS, tokenizer.token_to_id(BOS))],
    )
    tokenizer.save(str(path))
