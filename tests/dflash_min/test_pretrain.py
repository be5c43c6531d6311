"""Pretraining of the built-in target, by its command."""

from __future__ import annotations

import json
import re
import signal
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file

from dflash_min import pretrain, stopping
from dflash_min.config import ModelConfig
from dflash_min.data import Text
from dflash_min.targets import choice as targets
from dflash_min.targets import folder as target_folder
from dflash_min.targets import pretraining
from dflash_min.targets.pretraining import Pretraining, Recipe
from tests.dflash_min.trainers import state

if TYPE_CHECKING:
    from dflash_min.targets.builtin import Target

pytestmark = pytest.mark.usefixtures("one_torch_thread")

SMALL = (
    *("--device", "cpu", "--hidden", "16", "--heads", "2", "--kv-heads", "1", "--head-dim", "8"),
    *("--mlp", "24", "--target-layers", "4", "--seq-len", "32", "--batch-size", "4"),
    *("--eval-batches", "2", "--threads", "2"),
)
CONFIG = ModelConfig(
    hidden=16, heads=2, kv_heads=1, head_dim=8, mlp=24, layers=1, target_layers=4, block_size=2
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_text("".join(f"line {n % 7} of the text\n" for n in range(400)))
    return path


def run(data, out, *words) -> None:
    pretrain.main([*SMALL, "--data", str(data), "--out", str(out), *words])


def recipe(**changes) -> Recipe:
    settings = {
        "steps": 3, "seconds": None, "seq_len": 32, "batch_size": 4, "lr": 3e-3, "lr_warmup": 0.1,
        "weight_decay": 0.1, "eval_batches": 2, "evaluations": 1, "threads": 2, "seed": 0,
    }  # fmt: skip
    return Recipe(**{**settings, **changes})


def trained(data, **changes) -> Target:
    used = recipe(**changes)
    work = Pretraining(CONFIG, Text.load([data], used.seed, 33), used, "cpu")
    work.run(lambda progress: None, lambda: False)
    return work.target


def test_it_learns_and_saves_a_target_that_the_trainer_can_draft_for(
    data, tmp_path, capsys
) -> None:
    out = tmp_path / "new" / "target"
    run(data, out, "--steps", "60", "--lr", "1e-2")
    said = capsys.readouterr()
    about = json.loads((out / "config.json").read_text())["dflash_min"]
    bits = [point["bits_per_byte"] for point in about["curve"]]
    assert len(bits) == 10
    assert bits[-1] < 3 < 5 < bits[0]
    assert about["held_out_bits_per_byte"] == bits[-1]
    assert (about["steps"], about["tokens"], about["seed"]) == (60, 60 * 4 * 32, 0)
    last = f"{bits[-1]:.3f} bits per byte held out"
    assert re.fullmatch(rf"60 steps in \d+ s, {last}; saved {re.escape(str(out))}\n", said.out)
    assert len(said.err.splitlines()) == 10
    assert targets.sizes(str(out)).hidden == 16
    loaded = target_folder.load(out, CONFIG, "cpu")
    text = Text.load([data], 0, 33)
    again = Pretraining(CONFIG, text, recipe(), "cpu")
    again.target.load_state_dict(loaded.state_dict())
    assert again.bits_per_byte() == pytest.approx(bits[-1], rel=1e-6)


def test_equal_seeds_give_equal_bits_whatever_the_global_random_state(data) -> None:
    torch.manual_seed(1)
    first = trained(data)
    torch.manual_seed(2)
    assert state(trained(data)) == state(first)
    assert state(trained(data, seed=1)) != state(first)


def test_shares_of_threads_make_up_one_batch(data) -> None:
    one, three = trained(data, threads=1), trained(data, threads=3)
    for name, tensor in one.state_dict().items():
        torch.testing.assert_close(three.state_dict()[name], tensor, rtol=1e-3, atol=1e-5)


def test_the_target_is_frozen_again_afterwards(data) -> None:
    target = trained(data)
    assert not target.training
    assert not any(parameter.requires_grad for parameter in target.parameters())


def test_a_length_in_minutes_ends_by_the_clock(data, tmp_path, monkeypatch) -> None:
    clock = iter(range(0, 10_000, 5))
    watch = SimpleNamespace(monotonic=lambda: float(next(clock)))
    monkeypatch.setattr(pretraining, "time", watch)
    run(data, tmp_path / "target", "--minutes", "1")
    about = json.loads((tmp_path / "target" / "config.json").read_text())["dflash_min"]
    assert about["steps"] == 7  # two looks at the clock a step, 5 s each
    assert about["held_out_bits_per_byte"] == about["curve"][-1]["bits_per_byte"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_after_the_step_saved_and_by_that_signal(
    data, tmp_path, monkeypatch, capsys, number
) -> None:
    ended = []
    monkeypatch.setattr(stopping, "end_by", ended.append)
    step = Pretraining._step

    def interrupted(self, workers, index, done):
        loss = step(self, workers, index, done)
        if index == 4:
            signal.raise_signal(number)
        return loss

    monkeypatch.setattr(Pretraining, "_step", interrupted)
    before = {each: signal.getsignal(each) for each in stopping.SIGNALS}
    try:
        run(data, tmp_path / "target", "--steps", "50")
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert ended == [number]
    said = capsys.readouterr()
    assert f"dflash_min.pretrain: stopped by {number.name}; 5 steps in" in said.err
    assert said.out == ""
    about = json.loads((tmp_path / "target" / "config.json").read_text())["dflash_min"]
    assert about["steps"] == 5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--steps", "0"], "--steps must be at least 1, got 0"),
        (["--minutes", "0"], "--minutes must be above 0 and at most a year, got 0.0"),
        (["--minutes", "nan"], "--minutes must be above 0 and at most a year, got nan"),
        (["--minutes", "1", "--steps", "1"], "--minutes and --steps both say how long to train"),
        (["--heads", "3", "--kv-heads", "2"], "--heads 3 is no multiple of --kv-heads 2"),
        (["--head-dim", "7"], "--head-dim must be even for rotary positions, got 7"),
        (["--lr-warmup", "1"], "--lr-warmup is a share from 0 to below 1, got 1.0"),
        (["--seq-len", "9000"], "tokens of text, but a sequence takes 9001"),
    ],
)
def test_what_cannot_be_run_is_one_line_and_leaves_nothing(
    data, tmp_path, capsys, words, message
) -> None:
    with pytest.raises(SystemExit) as caught:
        run(data, tmp_path / "target", *words)
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_use_is_refused_before_any_training(data, tmp_path, capsys) -> None:
    run(data, tmp_path / "target", "--steps", "1")
    before = load_file(tmp_path / "target" / "model.safetensors")["lm_head.weight"].clone()
    with pytest.raises(SystemExit):
        run(data, tmp_path / "target", "--steps", "2")
    assert f"--out {tmp_path / 'target'} is there already" in capsys.readouterr().err
    after = load_file(tmp_path / "target" / "model.safetensors")["lm_head.weight"]
    assert torch.equal(after, before)


@pytest.mark.parametrize(
    ("steps", "message"),
    [("3", "step 2: the norm of the gradients is nan"), ("1", "after step 1: nan bits per byte")],
)
def test_a_training_that_diverges_is_one_line_and_nothing_saved(
    data, tmp_path, capsys, monkeypatch, steps, message
) -> None:
    monkeypatch.setattr(pretrain, "_EVALUATIONS", 1)  # after the last step
    with pytest.raises(SystemExit) as caught:
        run(data, tmp_path / "target", "--steps", steps, "--lr", "1e30")
    assert caught.value.code == 1
    said = capsys.readouterr()
    assert said.err == f"dflash_min.pretrain: error: {message}; nothing is saved\n"
    assert said.out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_is_one_line_and_nothing_half_written(
    data, tmp_path, capsys, monkeypatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(target_folder.safetensors.torch, "save_file", full)
    with pytest.raises(SystemExit) as caught:
        run(data, tmp_path / "target", "--steps", "1")
    assert caught.value.code == 1
    assert capsys.readouterr().err.endswith(
        f"error: --out {tmp_path / 'target'}: No space left on device\n"
    )
    assert list(tmp_path.iterdir()) == []
