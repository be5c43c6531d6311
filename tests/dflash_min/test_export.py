"""The exported folder: its names, shapes and values, and what is refused on the way back."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

from dflash_min import export
from dflash_min.config import ModelConfig
from dflash_min.errors import UsageError
from dflash_min.model import Drafter
from dflash_min.saving import checkpoint

from .failures import disk_that_fills_up

pytestmark = pytest.mark.usefixtures("one_torch_thread")

PER_LAYER = {
    "input_layernorm.weight": (32,),
    "post_attention_layernorm.weight": (32,),
    "self_attn.q_proj.weight": (32, 32),
    "self_attn.k_proj.weight": (16, 32),
    "self_attn.v_proj.weight": (16, 32),
    "self_attn.o_proj.weight": (32, 32),
    "self_attn.q_norm.weight": (8,),
    "self_attn.k_norm.weight": (8,),
    "mlp.gate_proj.weight": (48, 32),
    "mlp.up_proj.weight": (48, 32),
    "mlp.down_proj.weight": (32, 48),
}
SHAPES = {
    "fc.weight": (32, 64),
    "hidden_norm.weight": (32,),
    "norm.weight": (32,),
    **{f"layers.{n}.{name}": shape for n in range(2) for name, shape in PER_LAYER.items()},
}
"""What z-lab's published drafters have, at the sizes of `small_config`."""


@pytest.fixture
def drafter(small_config) -> Drafter:
    return Drafter(small_config, seed=3)


@pytest.fixture
def folder(drafter, tmp_path) -> Path:
    export.save(tmp_path / "out", drafter.config, drafter.state_dict(), dtype=None)
    return tmp_path / "out"


def write_checkpoint(out: Path, drafter: Drafter, step: int = 7) -> Path:
    record = checkpoint.Record(
        step=step, seed=3, target="", config=drafter.config, settings={}, digests={}
    )
    return checkpoint.write(out / checkpoint.FOLDER, record, drafter.state_dict(), {})


def test_the_file_has_the_published_names_shapes_and_the_trained_values(drafter, folder):
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == SHAPES
    for name, value in drafter.state_dict().items():
        assert tensors[name].dtype == torch.float32
        assert torch.equal(tensors[name], value), name


def test_the_config_is_a_qwen3_one_with_the_blocks_and_the_taps(folder):
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["DFlashDraftModel"]
    assert config["model_type"] == "qwen3"
    assert config["block_size"] == 4
    assert config["num_target_layers"] == 6
    assert config["dflash_config"] == {"mask_token_id": 63, "target_layer_ids": [1, 3]}
    assert (config["hidden_size"], config["intermediate_size"]) == (32, 48)
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (4, 2)
    assert (config["head_dim"], config["num_hidden_layers"], config["vocab_size"]) == (8, 2, 64)
    assert (config["rope_theta"], config["rms_norm_eps"]) == (1e6, 1e-6)
    assert config["dtype"] == "float32"
    assert not config["tie_word_embeddings"]


def test_transformers_reads_the_config_as_qwen3s(folder):
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder)
    assert config.model_type == "qwen3"
    assert config.rope_parameters["rope_theta"] == 1e6
    assert config.layer_types == ["full_attention"] * 2
    assert config.block_size == 4


def test_what_is_loaded_drafts_as_what_was_saved(drafter, folder):
    back = export.load(folder)
    assert back.config.taps == drafter.config.taps
    assert dataclasses.replace(back.config, target_layer_ids=()) == drafter.config
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(1, 9, 64, generator=generator)
    block = torch.randn(1, 4, 32, generator=generator)
    positions = torch.arange(13)[None]
    hidden = [
        model.draft(block, model.context_cache(features, positions[:, :9]), positions[:, 9:])
        for model in (drafter, back)
    ]
    assert torch.equal(*hidden)
    assert all(parameter.requires_grad for parameter in back.parameters())


def test_the_command_exports_the_newest_checkpoint_of_a_run(drafter, tmp_path, capsys):
    write_checkpoint(tmp_path / "run", Drafter(drafter.config, seed=9), step=3)
    write_checkpoint(tmp_path / "run", drafter)
    export.main([str(tmp_path / "run"), "--out", str(tmp_path / "a"), "--dtype", "bfloat16"])
    assert capsys.readouterr().out == f"exported step 7 to {tmp_path / 'a'}\n"
    back = export.load(tmp_path / "a")
    assert json.loads((tmp_path / "a" / "config.json").read_text())["dtype"] == "bfloat16"
    for name, value in drafter.state_dict().items():
        assert torch.equal(back.state_dict()[name], value.bfloat16())


def test_one_checkpoint_can_be_named_and_an_empty_folder_be_filled(drafter, tmp_path):
    (tmp_path / "a").mkdir()
    export.main([str(write_checkpoint(tmp_path, drafter)), "--out", str(tmp_path / "a")])
    assert {path.name for path in (tmp_path / "a").iterdir()} == {
        "config.json",
        "model.safetensors",
    }


def test_the_command_refuses_in_one_line_and_leaves_nothing(drafter, tmp_path, capsys):
    run = write_checkpoint(tmp_path / "run", drafter).parents[1]
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "file").touch()
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.rglob("*"))
    for argv, message in (
        ([str(run), "--out", str(taken)], f"--out {taken} is there already"),
        ([str(run), "--out", str(taken / "file")], "is there already"),
        ([str(run), "--out", str(taken / "file" / "x")], "File exists"),
        ([str(tmp_path / "empty"), "--out", str(tmp_path / "a")], "neither a checkpoint nor"),
        ([str(tmp_path / "none"), "--out", str(tmp_path / "a")], "neither a checkpoint nor"),
    ):
        with pytest.raises(SystemExit) as stop:
            export.main(argv)
        out, err = capsys.readouterr()
        assert (stop.value.code, out) == (2, "")
        assert err.startswith("dflash_min.export: error: ")
        assert message in err
        assert err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_a_disk_that_is_full_is_one_line_and_leaves_nothing(drafter, tmp_path, capsys):
    run = write_checkpoint(tmp_path / "run", drafter).parents[1]
    before = sorted(tmp_path.rglob("*"))
    with disk_that_fills_up() as fill:
        fill(4096)
        with pytest.raises(SystemExit) as stop:
            export.main([str(run), "--out", str(tmp_path / "out")])
    assert stop.value.code == 1
    said = f"dflash_min.export: error: --out {tmp_path / 'out'}: File too large\n"
    assert capsys.readouterr().err == said
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_can_be_named_by_its_folder_of_checkpoints(drafter, tmp_path, monkeypatch):
    newest = write_checkpoint(tmp_path / "run", drafter)
    assert checkpoint.read(newest.parent).path == newest
    monkeypatch.chdir(newest.parent)
    assert checkpoint.read(Path()).path == newest


def test_a_failed_write_leaves_nothing(drafter, tmp_path, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(OSError, match="No space left"):
        export.save(tmp_path / "out", drafter.config, drafter.state_dict(), dtype=None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"norm.weight": None}, "a tensor is missing: norm.weight"),
        ({"lm_head.weight": (64, 32)}, "a tensor is unknown: lm_head.weight"),
        ({"norm.weight": None, "fc.weight": None}, "2 tensors are missing: fc.weight"),
        ({"fc.weight": (64, 32)}, r"fc.weight is \(64, 32\), not \(32, 64\)"),
    ],
)
def test_tensors_that_are_not_a_drafters_are_refused(folder, change, message):
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    for name, shape in change.items():
        tensors.pop(name, None)
        if shape is not None:
            tensors[name] = torch.zeros(shape)
    safetensors.torch.save_file(tensors, path)
    with pytest.raises(UsageError, match=message) as caught:
        export.load(folder)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_weights_that_are_not_a_drafters_are_not_exported(drafter, tmp_path):
    weights = drafter.state_dict()
    del weights["norm.weight"]
    with pytest.raises(UsageError, match=r"the checkpoint: a tensor is missing: norm\.weight"):
        export.save(tmp_path / "out", drafter.config, weights, dtype=None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("block_size", None, "no block_size"),
        ("dflash_config", {"mask_token_id": 1}, "no target_layer_ids"),
        ("hidden_size", "wide", "config.json: "),
        ("attention_bias", True, "attention_bias True is more than this drafter does"),
        ("rope_scaling", {"factor": 2}, "rope_scaling"),
    ],
)
def test_a_config_that_does_not_fit_is_one_line(folder, key, value, message):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config[key] = value
    if value is None:
        del config[key]
    path.write_text(json.dumps(config))
    with pytest.raises(UsageError, match=message) as caught:
        export.load(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("content", [None, b"", b"{"])
def test_a_file_that_is_missing_or_cut_is_named(folder, name, content):
    path = folder / name
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        export.load(folder)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_published_config_of_today_is_read(tmp_path):
    """The keys of the released Qwen3-8B drafter that matter, with its values."""
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["DFlashDraftModel"],
                "attention_bias": False,
                "block_size": 16,
                "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
                "head_dim": 128,
                "hidden_size": 4096,
                "intermediate_size": 12288,
                "num_attention_heads": 32,
                "num_hidden_layers": 5,
                "num_key_value_heads": 8,
                "num_target_layers": 36,
                "rms_norm_eps": 1e-06,
                "rope_scaling": None,
                "rope_theta": 1000000,
                "vocab_size": 151936,
            }
        )
    )
    assert export.read_config(tmp_path) == ModelConfig(
        hidden=4096,
        heads=32,
        kv_heads=8,
        head_dim=128,
        mlp=12288,
        layers=5,
        target_layers=36,
        block_size=16,
        vocab=151936,
        mask_token_id=151669,
        target_layer_ids=(1, 9, 17, 25, 33),
    )
