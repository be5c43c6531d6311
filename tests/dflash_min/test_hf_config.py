"""The files of a Hugging Face model: its sizes, and the mask token that they leave."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from dflash_min.errors import UsageError
from dflash_min.huggingface import config as hf_config
from dflash_min.huggingface import hub
from dflash_min.targets import choice as targets

from .hf_models import byte_tokenizer, named

if TYPE_CHECKING:
    from pathlib import Path

    from dflash_min.huggingface.named import Named


def write_model(folder: Path, config: dict[str, object], *special: str, **settings) -> Named:
    """Write a folder that has the files that are read, and no weights."""
    folder.mkdir(exist_ok=True)
    byte_tokenizer(("<|im_end|>", "<|pad|>", *special), **settings).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    return named(folder)


SIZES_OF_FILES = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 6,
    "vocab_size": 300,
}


@pytest.mark.parametrize(
    ("special", "settings", "chosen"),
    [
        ((), {}, 258),  # the first row behind the tokens, as Qwen3's 151669
        (("<|reserved_special_token_0|>", "<|reserved_special_token_1|>"), {}, 258),
        (("<unused0>", "<mask>"), {}, 259),
        (("[MASK]", "<other>"), {"mask_token": "<other>"}, 259),
        (("<|reserved_0|>", "<|reserved_1|>"), {"pad_token": "<|reserved_0|>"}, 259),
    ],
)
def test_the_mask_is_a_row_that_no_text_uses(tmp_path, special, settings, chosen):
    model = write_model(tmp_path, SIZES_OF_FILES, *special, **settings)
    assert hf_config.mask_token_id(model, 300, None) == chosen


def test_a_mask_that_has_a_meaning_or_no_row_is_refused(tmp_path):
    model = write_model(tmp_path, {**SIZES_OF_FILES, "eos_token_id": [256, 7]})
    for wanted, message in (
        (300, "must be below the target's 300 ids, got 300"),
        (-1, "must be at least 0, got -1"),
        (256, "256 is the target's eos token"),
        (257, "257 is the target's pad token"),
        (7, r"7 is the target's eos \(7\) token"),
    ):
        with pytest.raises(UsageError, match=message):
            hf_config.mask_token_id(model, 300, wanted)
    assert hf_config.mask_token_id(model, 300, 8) == 8


def test_where_every_row_is_a_token_the_user_has_to_choose(tmp_path):
    # The one that is made for it has no row.
    model = write_model(tmp_path, SIZES_OF_FILES, "<mask>")
    with pytest.raises(UsageError, match="name one with --mask-token-id") as caught:
        hf_config.mask_token_id(model, 258, None)
    assert "\n" not in str(caught.value)


def test_older_configs_and_those_of_several_inputs_are_read(tmp_path):
    older = write_model(
        tmp_path / "older", {"n_embd": 64, "n_head": 4, "n_layer": 6, "vocab_size": 300}
    )
    sizes = hf_config.sizes(older)
    assert (sizes.heads, sizes.kv_heads, sizes.head_dim, sizes.mlp) == (4, 4, 16, 256)
    assert (sizes.rope_theta, sizes.rms_eps) == (10_000.0, 1e-6)
    rope = {"sliding_attention": {"rope_theta": 1e4}, "full_attention": {"rope_theta": 1e6}}
    inner = {"text_config": {**SIZES_OF_FILES, "rope_parameters": rope}, "vocab_size": 9}
    sizes = hf_config.sizes(write_model(tmp_path / "several", inner))
    assert (sizes.vocab, sizes.rope_theta) == (300, 1e6)
    flat = hf_config.sizes(write_model(tmp_path / "flat", {**SIZES_OF_FILES, "rope_theta": 5e5}))
    assert flat.rope_theta == 5e5


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{}", "config.json has no hidden_size"),
        ("[]", "not a JSON object"),
        ("{", "config.json: "),
        (json.dumps({**SIZES_OF_FILES, "num_attention_heads": 0}), "config.json: "),
        (json.dumps({**SIZES_OF_FILES, "head_dim": "wide"}), "config.json: "),
        (json.dumps({**SIZES_OF_FILES, "rope_theta": "far"}), "config.json: "),
    ],
)
def test_a_config_that_cannot_be_used_is_one_line(tmp_path, config, message):
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(UsageError, match=message) as caught:
        hf_config.sizes(named(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("word", ["./model", "hf:model"])
def test_messages_about_the_files_have_the_target_as_it_was_given(tmp_path, monkeypatch, word):
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "model", {})
    with pytest.raises(UsageError) as caught:
        targets.sizes(word)
    assert str(caught.value) == f"--target {word}: config.json has no hidden_size"


def test_a_name_that_is_no_folder_comes_from_the_hub(tmp_path, monkeypatch):
    import huggingface_hub

    write_model(tmp_path, SIZES_OF_FILES)

    def download(name: str, file: str, *, local_files_only: bool) -> str:
        assert (name, local_files_only) == ("someone/model", False)
        if file == "generation_config.json":
            raise huggingface_hub.errors.LocalEntryNotFoundError("not in the cache")
        return str(tmp_path / file)

    monkeypatch.setattr(hub, "unreachable", lambda _: None)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert hf_config.sizes(named("someone/model")).hidden == 64
    assert hf_config.mask_token_id(named("someone/model"), 300, None) == 258


def test_a_name_that_the_hub_does_not_have_is_one_line(monkeypatch):
    import huggingface_hub

    def download(name: str, file: str, *, local_files_only: bool) -> str:
        raise huggingface_hub.errors.HFValidationError("Repo id must be\nof another form")

    monkeypatch.setattr(hub, "unreachable", lambda _: None)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with pytest.raises(UsageError, match="no such folder, and Repo id must be") as caught:
        hf_config.sizes(named("some where"))
    assert "\n" not in str(caught.value)


def test_a_drafter_on_the_hub_is_no_target(tmp_path, monkeypatch):
    import huggingface_hub

    (tmp_path / "config.json").write_text(json.dumps({**SIZES_OF_FILES, "dflash_config": {}}))
    monkeypatch.setattr(hub, "unreachable", lambda _: None)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda _, file, **__: tmp_path / file)
    with pytest.raises(UsageError, match=r"^--target .*model: a DFlash drafter, not a target"):
        hf_config.sizes(named("someone/model"))


def test_a_model_is_refused_before_torch_is_imported(tmp_path):
    """Sizes, mask and contradictions are read from the files alone."""
    model = write_model(tmp_path / "model", SIZES_OF_FILES)
    code = (
        "import sys\n"
        "from dflash_min.config import TrainConfig\n"
        "from dflash_min.resolve import resolve\n"
        f"resolve(TrainConfig(target={model.word!r}, device='cpu'), 0)\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
