"""What each warm-up mode compiles, and that it touches nothing else."""

from __future__ import annotations

import random
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch._dynamo import config as dynamo_config

from dflash_min import observe, warmup
from dflash_min.config import TrainConfig
from dflash_min.resolve import resolve
from dflash_min.warmup import warm_up, warmup_batch

from ..bench.stepping.compile_counts import compiles
from .trainers import ignore, small, small_dense, state


@pytest.mark.usefixtures("compiled_graphs")
@pytest.mark.parametrize(
    ("settings", "in_main", "in_threads"),
    [
        ({"warmup": "none"}, 0, 1),
        ({"warmup": "no_grad"}, 1, 1),
        pytest.param({"warmup": "inference_mode"}, 1, 1, marks=pytest.mark.slow),
        ({"warmup": "grad_forward"}, 1, 0),
        ({"warmup": "grad"}, 1, 0),
        # One length says nothing of others where sizes turn symbolic only on a change.
        ({"warmup": "grad", "dynamic": "auto", "warmup_lens": (64,)}, 1, 1),
        pytest.param(
            {"warmup": "grad", "dynamic": "false", "shapes": "fixed", "warmup_lens": (128,)},
            *(1, 0),
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda value: " ".join(map(str, value.values())) if isinstance(value, dict) else None,
)
def test_what_is_compiled_in_the_warm_up_and_what_is_left_to_the_threads(
    settings, in_main, in_threads
):
    # One drafter: with several, how many compile is a matter of timing.
    trainer = small(threads=1, steps=2, **settings)
    with compiles() as counts:
        trainer.run(ignore)
    main = threading.current_thread().name
    assert counts == +type(counts)({main: in_main, "drafter-0": in_threads})


@pytest.mark.usefixtures("compiled_graphs")
def test_after_a_full_warm_up_no_thread_compiles():
    trainer = small(threads=3, steps=3, seq_lens=(96, 128, 200))
    with compiles() as counts:
        trainer.run(ignore)
    assert counts == {threading.current_thread().name: 1}


@pytest.mark.parametrize("mode", ["none", "no_grad", "inference_mode", "grad_forward", "grad"])
def test_nothing_else_is_touched(mode):
    trainer = small_dense(threads=2)
    resolved = type(trainer.resolved)(**{**vars(trainer.resolved), "warmup": mode})
    weights = [state(replica.drafter) for replica in trainer.replicas]
    rng, python_rng, threads = torch.get_rng_state(), random.getstate(), torch.get_num_threads()
    warm_up(resolved, trainer.targets[0], trainer.replicas)
    assert [state(replica.drafter) for replica in trainer.replicas] == weights
    assert all(p.grad is None for replica in trainer.replicas for p in replica.parameters)
    assert torch.get_rng_state().equal(rng)
    assert random.getstate() == python_rng
    assert torch.get_num_threads() == threads
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


@pytest.mark.parametrize(
    ("mode", "grad", "inference", "backward"),
    [
        ("no_grad", False, False, False),
        ("inference_mode", False, True, False),
        ("grad_forward", True, False, False),
        ("grad", True, False, True),
    ],
)
def test_the_drafters_own_step_runs_once_for_each_device_and_length(
    mode, grad, inference, backward, monkeypatch
):
    trainer = small_dense(threads=3, warmup_lens=(64, 80), anchors="vary")
    resolved = type(trainer.resolved)(**{**vars(trainer.resolved), "warmup": mode})
    seen, phases, backwards = [], [], []

    def watched(rank, inner):
        def forward(batch):
            modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
            seen.append((rank, *batch.input_ids_BS.shape, batch.anchors_BN.shape[1], *modes))
            return inner(batch)

        return forward

    class Recorder:
        def phase(self, name):
            phases.append(name)
            return nullcontext()

    for rank, replica in enumerate(trainer.replicas):
        replica.forward = watched(rank, replica.forward)
    inner_backward = torch.Tensor.backward
    monkeypatch.setattr(
        torch.Tensor, "backward", lambda loss: backwards.append(loss) or inner_backward(loss)
    )
    observe.set_observer(Recorder())
    try:
        warm_up(resolved, trainer.targets[0], trainer.replicas)
    finally:
        observe.set_observer(None)
    assert phases == ["warmup"]
    # All three drafters are on one device, which the first stands for.
    assert seen == [(0, 1, 64, 16, grad, inference), (0, 1, 80, 20, grad, inference)]
    assert len(backwards) == (2 if backward else 0)


def test_a_warm_up_batch_has_its_anchors_in_order_and_in_reach():
    trainer = small_dense(threads=1, batch_size=2, anchors=40)
    for length in (64, 30):
        batch = warmup_batch(trainer.resolved, trainer.targets[0], torch.device("cpu"), length)
        assert batch.input_ids_BS.shape == (2, length)
        assert batch.anchors_BN.shape == batch.keep_BN.shape == (2, 40)
        assert batch.features_BSF.shape == (2, length, 2 * 16)
        row = batch.anchors_BN[0]
        assert row.equal(row.sort().values)
        assert (int(row[0]), int(row[-1]) < length - 1) == (0, True)
        assert batch.keep_BN.all()


def test_nested_fx_fallback_is_set_in_every_thread_and_in_the_warm_up_only():
    trainer = small_dense(threads=2, nested_fx="fallback", steps=1)
    resolved = type(trainer.resolved)(**{**vars(trainer.resolved), "warmup": "no_grad"})
    seen = {}
    for replica in trainer.replicas:

        def forward(batch, inner=replica.forward):
            seen[threading.current_thread().name] = dynamo_config.error_on_nested_fx_trace
            return inner(batch)

        replica.forward = forward
    assert dynamo_config.error_on_nested_fx_trace is True
    try:
        warm_up(resolved, trainer.targets[0], trainer.replicas)
        assert dynamo_config.error_on_nested_fx_trace is True
        trainer.run(ignore)
    finally:
        # Up to torch 2.11 it is one setting for the process.
        dynamo_config.error_on_nested_fx_trace = True
    main = threading.current_thread().name
    assert seen == {main: False, "drafter-0": False, "drafter-1": False}


def test_only_the_first_drafters_device_can_be_warmed(monkeypatch):
    # Two devices cannot be had everywhere; what is warmed is decided by the replicas' devices.
    called = []
    monkeypatch.setattr(warmup, "_call", lambda replica, batch, mode: called.append(replica.device))
    monkeypatch.setattr(warmup, "warmup_batch", lambda *args: None)
    monkeypatch.setattr(warmup, "_as_a_thread_of_the_trainer", lambda *args: nullcontext())
    replicas = [SimpleNamespace(device=torch.device("cuda", index)) for index in (0, 0, 1)]
    for choice, devices in (("all", [0, 1]), ("first", [0])):
        resolved = resolve(TrainConfig(warmup_devices=choice, warmup_lens=(64,)), gpus=0)
        warmup.warm_up(resolved, None, replicas)
        assert sorted(device.index for device in called) == devices
        called.clear()
