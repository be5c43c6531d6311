"""What the files of a Hugging Face model settle for its drafter: sizes, and the mask token.

Only JSON is read, so that a command line is checked without importing torch, which importing
transformers does.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dflash_min.bounds import check_mask_token
from dflash_min.huggingface import hub
from dflash_min.huggingface.form import CONFIG_FILE, DRAFTER_CONFIG, TARGET_KEYS
from dflash_min.targets.interface import TargetSizes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dflash_min.config import Dtype
    from dflash_min.huggingface.named import Named

_TOKENIZER_FILE: Final = "tokenizer.json"

_OLDER_KEYS: Final = {
    "hidden": "n_embd",
    "heads": "n_head",
    "target_layers": "n_layer",
    "vocab": "vocab_size",
}
"""Sizes that do not follow from others, by the keys of older models (GPT-2 and its kin)."""
# Only what stands in brackets: "mask" and "reserved" are words, too.
_MASK: Final = re.compile(r"[<\[]\W?mask\W?[>\]]", re.IGNORECASE)
_RESERVED: Final = re.compile(r"[<\[].*(reserved|unused).*[>\]]", re.IGNORECASE)


def sizes(model: Named) -> TargetSizes:
    """Return the sizes in a model's config.json.

    Args:
        model: the user's.

    Raises:
        UsageError: if there is no such model, or its config lacks a size.
    """
    config = text_config(model)
    needed = {field: _needed(config, field, model) for field in _OLDER_KEYS}
    hidden, heads = needed["hidden"], needed["heads"]
    said = {field: config[key] for field, key in TARGET_KEYS.items() if config.get(key)}
    try:
        found = {
            "kv_heads": heads,
            "head_dim": said.get("head_dim") or hidden // heads,
            "mlp": 4 * hidden,
            "rms_eps": 1e-6,
            **said,
            **needed,
        }
        by_key = {key: found[field] for field, key in TARGET_KEYS.items()}
        return msgspec.convert({**by_key, "rope_theta": _rope_theta(config)}, TargetSizes)
    except (msgspec.ValidationError, TypeError, ValueError, ZeroDivisionError) as error:
        raise model.refused(f"{CONFIG_FILE}: {error}") from error


def dtype(model: Named) -> Dtype:
    """Return bfloat16 if a model's config says that its weights are stored so, else float32.

    The key is `dtype` since transformers 5, `torch_dtype` before.

    Raises:
        UsageError: if there is no such model.
    """
    config = text_config(model)
    said = config.get("dtype") or config.get("torch_dtype")
    return "bfloat16" if said == "bfloat16" else "float32"


def text_config(model: Named) -> dict[str, Any]:
    """Return a model's config.json, of one with other inputs too the part about text.

    Raises:
        UsageError: if there is none, it is no JSON object, or it is a drafter's.
    """
    config = _read(model, CONFIG_FILE)
    if config is None:
        raise model.refused(f"no {CONFIG_FILE} {hub.places(model)}")
    if DRAFTER_CONFIG in config:
        raise model.refused_drafter("a DFlash drafter")
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, dict) else config


def mask_token_id(model: Named, vocab: int, wanted: int | None) -> int:
    """Choose the id that fills the slots of a block after its anchor.

    It has to be a row of the embedding that no text uses: padding and the end of a text are learned
    as themselves. In this order: the tokenizer's mask token, a token that is called mask, a token
    reserved for such uses (Llama, Gemma), the first row behind the tokenizer's tokens (Qwen: 151669
    of 151936 for Qwen3, as in its published drafters).

    Args:
        model: the user's.
        vocab: rows of its embedding.
        wanted: the id that the user gave, if any.

    Raises:
        UsageError: if the wanted one cannot be used, or there is none to choose.
    """
    ids = _token_ids(model)
    forbidden = _special_ids(model, ids)
    if wanted is not None:
        check_mask_token(wanted, vocab, forbidden)
        return wanted
    usable = {
        text: index
        for text, index in ids.items()
        if index < vocab and index not in forbidden.values()
    }
    named = _token_text(_read(model, "tokenizer_config.json") or {}, "mask_token")
    for chosen in (
        [index for text, index in usable.items() if text == named],
        [index for text, index in usable.items() if _MASK.fullmatch(text)],
        [index for text, index in usable.items() if _RESERVED.fullmatch(text)],
        [max(ids.values()) + 1] if ids and max(ids.values()) + 1 < vocab else [],
    ):
        if chosen:
            return min(chosen)
    raise model.refused(
        "no mask or reserved token, and no row of the embedding without a "
        "token; name one with --mask-token-id"
    )


def _special_ids(model: Named, ids: Mapping[str, int]) -> dict[str, int]:
    """Return the ids that pad, begin or end a text, by a name for each."""
    found: dict[str, int] = {}
    tokenizer = _read(model, "tokenizer_config.json") or {}
    for kind in ("pad", "bos", "eos"):
        text = _token_text(tokenizer, f"{kind}_token")
        if text is not None and text in ids:
            found[kind] = ids[text]
        for source in (text_config(model), _read(model, "generation_config.json") or {}):
            said = source.get(f"{kind}_token_id")
            for index in said if isinstance(said, list) else [said]:
                if isinstance(index, int) and index not in found.values():
                    found[kind if kind not in found else f"{kind} ({index})"] = index
    return found


def _token_text(config: dict[str, Any], key: str) -> str | None:
    value = config.get(key)
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _token_ids(model: Named) -> dict[str, int]:
    """Return every token of the tokenizer with its id; nothing where there is no tokenizer.json."""
    tokenizer = _read(model, _TOKENIZER_FILE)
    if tokenizer is None:
        return {}
    try:
        vocab = tokenizer["model"]["vocab"]
        # Unigram models have a list of (token, score) pairs, all others a mapping.
        rows = vocab.items() if isinstance(vocab, dict) else _numbered(vocab)
        added = [(token["content"], token["id"]) for token in tokenizer["added_tokens"]]
        return {str(text): int(index) for text, index in (*rows, *added)}
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise model.refused(f"{_TOKENIZER_FILE} is of an unknown form") from error


def _numbered(vocab: list[Any]) -> list[tuple[Any, int]]:
    return [(row[0], index) for index, row in enumerate(vocab)]


def _rope_theta(config: dict[str, Any]) -> float:
    """Find the base of the rotary angles: up to transformers 4 a key, since 5 in a table."""
    table = config.get("rope_parameters") or {}
    # Where kinds of layers differ there is a table for each, and the drafter's attention is full.
    table = table.get("full_attention", table)
    return float(table.get("rope_theta") or config.get("rope_theta") or 10_000.0)


def _needed(config: dict[str, Any], field: str, model: Named) -> int:
    for key in (TARGET_KEYS[field], _OLDER_KEYS[field]):
        if isinstance(config.get(key), int):
            return int(config[key])
    raise model.refused(f"{CONFIG_FILE} has no {TARGET_KEYS[field]}")


def _read(model: Named, file: str) -> dict[str, Any] | None:
    """Read a JSON file of the model, None if it has no such file."""
    path = hub.file(model, file)
    if path is None:
        return None
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise model.refused(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise model.refused(f"{path}: not a JSON object")
    return value
