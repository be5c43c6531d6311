"""Which target is meant, what its files settle, and what is wrong with them."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from dflash_min import export
from dflash_min.config import VOCAB_SIZE, SaveConfig, TrainConfig
from dflash_min.errors import UsageError
from dflash_min.resolve import resolve
from dflash_min.saving import checkpoint
from dflash_min.targets import choice as targets
from dflash_min.targets import folder as target_folder
from dflash_min.targets.builtin import Target
from tests.dflash_min.trainers import small_dense, state

pytestmark = pytest.mark.usefixtures("one_torch_thread")

FROM_THE_TARGET = ("hidden", "heads", "kv_heads", "head_dim", "mlp")


@pytest.fixture
def folder(small_config, tmp_path):
    path = tmp_path / "target"
    target_folder.save(Target(small_config, seed=3), path, {"steps": 7})
    return path


def rewrite(folder, **changes) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def test_a_saved_target_comes_back_bit_for_bit(folder, small_config) -> None:
    loaded = targets.open_target(str(folder), small_config, seed=0, device="cpu")
    assert state(loaded) == state(Target(small_config, seed=3))
    assert not loaded.training
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


def test_its_files_have_the_names_of_a_qwen3_model(folder, small_config) -> None:
    names = set(load_file(folder / "model.safetensors"))
    assert {"lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"} <= names
    assert "model.layers.5.self_attn.q_norm.weight" in names
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config["num_key_value_heads"] == small_config.kv_heads
    assert config["dflash_min"] == {"vocabulary": "bytes", "steps": 7}


def test_transformers_computes_the_same_logits_from_the_folder(small_config, tmp_path) -> None:
    import transformers

    target = Target(dataclasses.replace(small_config, vocab=VOCAB_SIZE))
    target_folder.save(target, tmp_path / "target", {})
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "target").eval()
    ids = torch.randint(0, 60, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        theirs, ours = model(ids).logits, target.lm_head(target(ids))
    torch.testing.assert_close(theirs, ours)


def test_its_sizes_are_the_runs_and_torch_is_not_imported_for_them(folder, small_config) -> None:
    resolved = resolve(TrainConfig(device="cpu", target=str(folder), layers=2, block_size=4), 0)
    for name in (*FROM_THE_TARGET, "target_layers", "vocab", "rope_theta", "rms_eps"):
        assert getattr(resolved.model, name) == getattr(small_config, name), name
    code = (
        "import sys\n"
        "from dflash_min.config import TrainConfig\n"
        "from dflash_min.resolve import resolve\n"
        f"resolve(TrainConfig(device='cpu', target={str(folder)!r}), 0)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", [*FROM_THE_TARGET, "target_layers"])
def test_a_size_that_contradicts_the_target_is_refused_by_both_values(
    folder, small_config, name
) -> None:
    its = getattr(small_config, name)
    same = TrainConfig(device="cpu", target=str(folder), **{name: its})
    assert getattr(resolve(same, 0).model, name) == its
    other = TrainConfig(device="cpu", target=str(folder), **{name: its + 4})
    flag = f"--{name.replace('_', '-')} {its + 4}"
    with pytest.raises(UsageError, match=f"^{flag}: the target {folder} has {its}$"):
        resolve(other, 0)


def test_a_run_keeps_the_targets_place_whatever_folder_it_is_read_from(folder, monkeypatch) -> None:
    monkeypatch.chdir(folder.parent)
    resolved = resolve(TrainConfig(device="cpu", target="target"), 0)
    assert resolved.target == str(folder)
    assert targets.absolute("hf:target") == f"hf:{folder}"
    assert targets.absolute("hf:Qwen/Qwen3-4B") == "hf:Qwen/Qwen3-4B"
    assert targets.absolute("") == ""


def test_a_trainer_reads_the_features_of_the_target_it_is_given(folder, small_config) -> None:
    sizes = dict.fromkeys(FROM_THE_TARGET)
    trainer = small_dense(**sizes, target=str(folder), threads=1, steps=1, data=None)
    assert state(trainer.targets[0]) == state(Target(small_config, seed=3))
    assert torch.equal(trainer.replicas[0]._lm_head_VD, trainer.targets[0].lm_head_VD)


def test_random_weights_are_those_of_the_seed(small_config) -> None:
    target = targets.open_target("", small_config, seed=5, device="cpu")
    assert state(target) == state(Target(small_config, seed=5))
    assert targets.sizes("") is None


def test_what_is_no_target_is_refused(tmp_path, folder) -> None:
    with pytest.raises(UsageError, match="nowhere: no such folder"):
        targets.sizes(str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    for word in (f"{tmp_path}/empty", f"hf:{tmp_path}/empty"):
        refused(word, r"no config\.json in it; a target is .*dflash_min\.pretrain.*Hugging Face")
    (tmp_path / "file").touch()
    for word in (f"{tmp_path}/file", f"hf:{tmp_path}/file"):
        refused(word, "a file, not a folder$")
    refused("hf:a/b/c", "no such folder, and no name that the Hub can have")
    with pytest.raises(UsageError, match="names no model"):
        targets.sizes("hf:")
    (folder / "config.json").write_text("{")
    with pytest.raises(UsageError, match=r"config\.json"):
        targets.sizes(str(folder))


def refused(target: str, reason: str) -> None:
    with pytest.raises(UsageError, match=f"^--target {target}: {reason}") as caught:
        targets.sizes(target)
    assert "\n" not in str(caught.value)


def test_a_drafter_is_no_target(tmp_path, monkeypatch) -> None:
    """Wherever it comes from, and whether or not transformers could read it."""
    run = tmp_path / "run"
    trainer = small_dense(save=SaveConfig(out=run), threads=1, steps=1)
    trainer.run(lambda report: None)
    saved = checkpoint.latest(run)
    export.main([str(run), "--out", str(tmp_path / "exported")])
    (tmp_path / "measured").mkdir()
    (run / "metrics.jsonl").rename(tmp_path / "measured" / "metrics.jsonl")
    monkeypatch.setattr(targets.importlib.util, "find_spec", lambda name: None)
    pretrain = r", not a target: give what `python -m dflash_min\.pretrain` saved"
    for folder, what in (
        (run, "a run of dflash_min.train, which trains a drafter"),
        (tmp_path / "measured", "a run of dflash_min.train, which trains a drafter"),
        (saved.parent, "a run of dflash_min.train, which trains a drafter"),
        (saved, "a checkpoint of dflash_min.train, which is a drafter"),
        (tmp_path / "exported", "a DFlash drafter"),
    ):
        for word in (str(folder), f"hf:{folder}"):
            refused(word, what + pretrain)


@pytest.mark.parametrize(
    "change", [{"hidden_size": None}, {"num_hidden_layers": 0}, {"vocab_size": "many"}]
)
def test_a_config_without_a_usable_size_is_refused(folder, change) -> None:
    rewrite(folder, **change)
    with pytest.raises(UsageError, match=next(iter(change))):
        targets.sizes(str(folder))


def test_a_hugging_face_model_without_transformers_names_the_extra(monkeypatch) -> None:
    monkeypatch.setattr(targets.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'compile-race-harness\[hf\]'"):
        targets.sizes("hf:Qwen/Qwen3-4B")


def test_damaged_and_foreign_weights_are_refused_with_the_file(folder, small_config) -> None:
    path = folder / "model.safetensors"

    def refused(message: str) -> None:
        with pytest.raises(UsageError, match=message) as caught:
            target_folder.load(folder, small_config, "cpu")
        assert str(path) in str(caught.value)

    # Copies: what is loaded lies in the file, which is written over here.
    whole, weights = path.read_bytes(), {k: v.clone() for k, v in load_file(path).items()}
    path.write_bytes(whole[: len(whole) // 2])
    refused("model.safetensors")
    save_file({**weights, "model.extra.weight": torch.ones(1)}, path)
    refused("extra.weight is no weight of this model")
    save_file({k: v for k, v in weights.items() if k != "lm_head.weight"}, path)
    refused("lm_head.weight is missing")
    save_file({**weights, "lm_head.weight": torch.ones(2, 3)}, path)
    refused(r"lm_head.weight has shape \(2, 3\), not \(64, 32\)")
    path.unlink()
    refused("model.safetensors")


def test_a_folder_that_is_there_is_not_written_over(folder, small_config) -> None:
    before = (folder / "model.safetensors").read_bytes()
    with pytest.raises(OSError, match="not empty"):
        target_folder.save(Target(small_config), folder, {})
    assert (folder / "model.safetensors").read_bytes() == before
    assert [path.name for path in folder.parent.iterdir()] == ["target"]


@pytest.mark.parametrize(
    ("config", "on_gpu"),
    [
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"torch_dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "float16"}, "float32"),
        ({}, "float32"),
        ({"dtype": "bfloat16", "dflash_min": {}}, "float32"),  # the built-in one
    ],
)
def test_a_target_generates_in_the_dtype_it_is_stored_in_on_a_gpu(tmp_path, config, on_gpu) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert targets.default_dtype(str(tmp_path), "cuda") == on_gpu
    assert targets.default_dtype(str(tmp_path), "cpu") == "float32"


def test_random_weights_generate_in_float32() -> None:
    assert targets.default_dtype("", "cuda") == "float32"
