"""The optimiser against torch's, with masters and without, and its state."""

from __future__ import annotations

import io
import math

import pytest
import torch
from torch.nn import Parameter

from dflash_min.config import TrainConfig
from dflash_min.errors import NotFiniteError
from dflash_min.lr import lr_share
from dflash_min.optim import Optimizer
from dflash_min.resolve import resolve

from .failures import with_kernels

pytestmark = pytest.mark.usefixtures("one_torch_thread")

STEPS, SHAPES = 6, [(8, 6), (5,)]


def settings(dtype: str):
    config = TrainConfig(
        device="cpu", steps=STEPS, lr=0.05, weight_decay=0.1, max_grad_norm=0.5, dtype=dtype
    )
    return resolve(config, gpus=0)


def parameters(dtype: str) -> list[Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [
        Parameter(torch.randn(shape, generator=generator).to(getattr(torch, dtype)))
        for shape in SHAPES
    ]


def give_gradients(mine: list[Parameter], step: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1 + step)
    for p in mine:
        # Every other step's are so small that they are not clipped.
        p.grad = (torch.randn(p.shape, generator=generator) * 0.05 ** (step % 2)).to(p.dtype)
    return [p.grad.clone() for p in mine]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_steps_are_those_of_torchs_adamw_in_float32_to_the_bit(dtype) -> None:
    mine = parameters(dtype)
    masters = [Parameter(p.detach().float()) for p in mine]
    optimizer = Optimizer(mine, settings(dtype))
    adamw = torch.optim.AdamW(masters, weight_decay=0.1)
    weight = 3.0 if optimizer.divides else 1.0
    for step in range(STEPS):
        for master, gradient in zip(masters, give_gradients(mine, step), strict=True):
            master.grad = gradient.float() / weight
        adamw.param_groups[0]["lr"] = 0.05 * lr_share(step, STEPS, 0.04)
        torch.nn.utils.clip_grad_norm_(masters, 0.5)
        adamw.step()
        optimizer.step(step, weight)
        for p, master in zip(mine, masters, strict=True):
            assert torch.equal(p, master.to(p.dtype))
            assert p.grad is None


def test_updates_too_small_for_bfloat16_add_up_in_the_masters() -> None:
    weight = Parameter(torch.ones(4, dtype=torch.bfloat16))
    config = TrainConfig(device="cpu", steps=1000, lr=1e-4, lr_warmup=0.0, dtype="bfloat16")
    optimizer = Optimizer([weight], resolve(config, gpus=0))
    for _ in range(100):
        weight.grad = torch.ones_like(weight)
        optimizer.step(0)
    assert weight[0].item() == pytest.approx(0.99, abs=2**-8)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_saved_state_goes_on_with_the_same_bits(dtype) -> None:
    whole, resumed = parameters(dtype), parameters(dtype)
    first = Optimizer(whole, settings(dtype))
    for step in range(3):
        give_gradients(whole, step)
        first.step(step)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    for p, saved in zip(resumed, whole, strict=True):
        p.data.copy_(saved.data)
    second = Optimizer(resumed, settings(dtype))
    second.load_state_dict(torch.load(file, weights_only=True))
    for step in range(3, STEPS):
        for mine, optimizer in ((whole, first), (resumed, second)):
            give_gradients(mine, step)
            optimizer.step(step)
        assert all(map(torch.equal, whole, resumed))


def test_a_state_of_other_weights_or_another_dtype_is_refused() -> None:
    narrow = Optimizer(parameters("bfloat16"), settings("bfloat16"))
    wide = Optimizer(parameters("float32"), settings("float32"))
    other = Optimizer([Parameter(torch.ones(3).bfloat16())] * 1, settings("bfloat16"))
    for optimizer, state in ((narrow, wide), (wide, narrow), (narrow, other)):
        with pytest.raises(ValueError, match="state"):
            optimizer.load_state_dict(state.state_dict())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(dtype, bad) -> None:
    mine = parameters(dtype)
    optimizer = Optimizer(mine, settings(dtype))
    before = [p.detach().clone() for p in mine]
    give_gradients(mine, 0)
    mine[1].grad[2] = bad
    with pytest.raises(NotFiniteError, match=r"step 4: the norm of the gradients is (nan|inf)"):
        optimizer.step(3)
    assert all(map(torch.equal, mine, before))


def spoil(mine: list[Parameter]) -> None:
    give_gradients(mine, 0)
    mine[1].grad[2] = math.inf


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_kernels_refuse_is_told_once_it_is_known_and_is_no_step(dtype) -> None:
    mine = parameters(dtype)
    optimizer = Optimizer(mine, settings(dtype))
    kernels = with_kernels(optimizer)
    give_gradients(mine, 0)
    optimizer.step(0)
    before = [p.detach().clone() for p in mine]
    spoil(mine)
    optimizer.step(1)
    for _ in range(2):  # whoever asks is told
        with pytest.raises(NotFiniteError, match="step 2: the norm of the gradients is inf"):
            optimizer.settle()
    assert all(map(torch.equal, mine, before))
    give_gradients(mine, 2)
    optimizer.step(2)
    optimizer.settle()
    assert kernels.taken == [1, 2]
    assert not any(map(torch.equal, mine, before))


def test_a_step_is_not_taken_after_one_that_turns_out_to_be_refused() -> None:
    mine = parameters("float32")
    optimizer = Optimizer(mine, settings("float32"))
    kernels = with_kernels(optimizer)
    spoil(mine)
    optimizer.step(4)
    give_gradients(mine, 0)
    with pytest.raises(NotFiniteError, match="step 5"):
        optimizer.step(5)
    assert kernels.taken == []


def test_a_state_counts_the_steps_that_were_taken() -> None:
    mine = parameters("float32")
    optimizer = Optimizer(mine, settings("float32"))
    with_kernels(optimizer)
    for step, give in enumerate((give_gradients, give_gradients, lambda mine, _: spoil(mine))):
        give(mine, step)
        optimizer.step(step)
    counts = {state["step"].item() for state in optimizer.state_dict()["adamw"]["state"].values()}
    assert counts == {2.0}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_is_given_a_step_without_being_waited_for() -> None:
    matrix = torch.randn(8192, 8192, device="cuda")
    mine = [Parameter(torch.ones(16, 16, device="cuda", dtype=torch.bfloat16))]
    config = TrainConfig(preset="fast", device="cuda", steps=STEPS, lr=0.5, lr_warmup=0.0)
    optimizer = Optimizer(mine, resolve(config, gpus=1))
    matrix @ matrix
    mine[0].grad = torch.ones_like(mine[0])
    optimizer.step(0)  # compiles the kernels
    for step in (1, 2):
        torch.cuda.synchronize()
        for _ in range(100):
            matrix @ matrix
        mine[0].grad = torch.ones_like(mine[0])
        optimizer.step(step)
        assert not torch.cuda.current_stream().query()
    optimizer.settle()
    assert (mine[0] < 0.5).all()
