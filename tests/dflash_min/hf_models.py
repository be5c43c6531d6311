"""Tiny Hugging Face models made from a config, with a tokenizer of bytes: nothing is downloaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

from dflash_min.huggingface.named import Named

if TYPE_CHECKING:
    from pathlib import Path

SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 300,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,  # logits worth learning at this width; 0.02 is for thousands
    "bos_token_id": None,
}
# The end's token is Qwen's; the template has what templates have, and a thought as Qwen3's has.
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if loop.last and m.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

CHAT = [
    ("system", "be brief"),
    ("user", "2+2?"),
    ("assistant", "fóur"),
    ("user", "assistant, sure?"),
    ("assistant", "yes"),
]


def named(model: Path | str) -> Named:
    """Return a model as `--target hf:MODEL` names it."""
    return Named(str(model), word=f"hf:{model}")


def qwen3(**settings: Any) -> PretrainedConfig:
    return Qwen3Config(**{**SIZES, "head_dim": 8, **settings})


def llama(**settings: Any) -> PretrainedConfig:
    return LlamaConfig(**{**SIZES, "tie_word_embeddings": True, **settings})


def byte_tokenizer(
    special: tuple[str, ...] = ("<|im_start|>", "<|im_end|>", "<|pad|>"), **settings: Any
) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE without merges: 256 tokens and the special ones."""
    vocab = {text: index for index, text in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **{"eos_token": "<|im_end|>", "pad_token": "<|pad|>", **settings},
    )


def save(
    folder: Path, config: PretrainedConfig, tokenizer: PreTrainedTokenizerFast | None = None
) -> Path:
    """Write a model with random weights and its tokenizer as a folder, and return it."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    if tokenizer is None:
        tokenizer = byte_tokenizer()
        tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder
