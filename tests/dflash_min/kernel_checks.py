"""The Triton kernels against torch, in a process of its own: Triton's interpreter is chosen when
triton is imported. ``python kernel_checks.py DEVICE`` fails or prints what was checked.

The interpreter cuts floats off when it makes them bfloat16; a GPU rounds to the nearest.
"""

import sys

import torch

from dflash_min.fused.adamw import FusedAdamW
from dflash_min.fused.loss import _score_on_gpu

DEVICE = sys.argv[1]
CUT = 2**-7 if DEVICE == "cpu" else 2**-8
"""Error of one rounding to bfloat16, relative."""


def draw(generator, *shape):
    return torch.randn(shape, generator=generator).to(DEVICE)


def check_adamw():
    generator = torch.Generator().manual_seed(0)
    # Parameters of one tile, of several, of a part of one, and one that ends in the midst of one.
    shapes = [(16, 128), (96, 64), (16,), (100, 33 * 16)]
    parameters = [draw(generator, *shape).bfloat16() for shape in shapes]
    masters = [p.float() for p in parameters]
    means, squares = ([torch.zeros_like(p) for p in masters] for _ in range(2))
    fused = FusedAdamW(parameters, masters, means, squares)
    assert all(torch.equal(p.float(), m) for p, m in zip(parameters, masters, strict=True))
    reference = [torch.nn.Parameter(p.float()) for p in parameters]
    adamw = torch.optim.AdamW(reference, lr=1e-2, weight_decay=0.1)
    # The second step's gradients are below the norm that they are clipped to.
    for t, size in ((1, 50.0), (2, 1e-4), (3, 1.0)):
        gradients = [(draw(generator, *shape) * size).bfloat16() for shape in shapes]
        before = [g.clone() for g in gradients]
        norm = fused.clip(gradients, weight=3.0, max_norm=1.0)
        fused.update(t=t, lr=1e-2, weight_decay=0.1, betas=(0.9, 0.999), eps=1e-8)
        for p, gradient in zip(reference, gradients, strict=True):
            p.grad = gradient.float() / 3.0
        exact_norm = torch.nn.utils.clip_grad_norm_(reference, 1.0)
        # Sums of 10**5 squares in another order.
        torch.testing.assert_close(norm, exact_norm, rtol=1e-5, atol=0)
        adamw.step()
        assert all(map(torch.equal, gradients, before))
        for p, master, exact in zip(parameters, masters, reference, strict=True):
            torch.testing.assert_close(master, exact.detach(), rtol=2e-6, atol=2e-6)
            torch.testing.assert_close(p.float(), master, rtol=CUT, atol=0)
    for p, mean, square in zip(reference, means, squares, strict=True):
        state = adamw.state[p]
        torch.testing.assert_close(mean, state["exp_avg"], rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(square, state["exp_avg_sq"], rtol=1e-5, atol=1e-9)


def check_gradients_that_are_not_finite():
    for value in (float("inf"), float("nan")):
        tensors = [torch.ones(64, device=DEVICE, dtype=torch.bfloat16)]
        tensors += [torch.ones(64, device=DEVICE) for _ in range(3)]
        fused = FusedAdamW(*([tensor] for tensor in tensors))
        gradient = torch.zeros(64, device=DEVICE, dtype=torch.bfloat16)
        gradient[7] = value
        assert not fused.clip([gradient], weight=1.0, max_norm=1.0).isfinite()
        # As it is launched before the host knows of the norm.
        fused.update(t=1, lr=0.1, weight_decay=0.1, betas=(0.9, 0.999), eps=1e-8)
        assert all(tensor.eq(1).all() for tensor in tensors)


def check_cross_entropy():
    generator = torch.Generator().manual_seed(1)
    # Vocabularies of one block of columns, and of one and a bit.
    for dtype, vocab in ((torch.bfloat16, 264), (torch.bfloat16, 8200), (torch.float32, 8200)):
        logits = (draw(generator, 24, vocab) * 3).to(dtype)
        labels = torch.randint(vocab, (24,), generator=generator).to(DEVICE)
        labels[::2] = logits.float().argmax(-1)[::2]
        # Of two largest logits the first counts, on either side of the label.
        logits[0, labels[0] - 1] = logits[0, labels[0]]
        logits[2, labels[2] - vocab + 1] = logits[2, labels[2]]
        weights = torch.rand(24, generator=generator).to(DEVICE)
        weights[5] = 0
        scored = weights > 0
        wide = logits.float().requires_grad_()
        exact = torch.nn.functional.cross_entropy(wide, labels, reduction="none")
        (exact * weights).sum().backward()
        kept = logits.clone()
        losses, correct = _score_on_gpu(kept, labels, weights, with_gradient=False)
        assert torch.equal(kept, logits)
        torch.testing.assert_close(losses[scored], exact.detach()[scored], rtol=1e-5, atol=1e-5)
        assert torch.equal(correct[scored], (logits.float().argmax(-1) == labels)[scored])
        assert 0 < correct.sum() < 24
        losses, _ = _score_on_gpu(kept, labels, weights, with_gradient=True)
        assert losses[5] == 0
        rounding = CUT if dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(kept.float(), wide.grad, rtol=rounding, atol=1e-7)


for name, check in list(globals().items()):
    if name.startswith("check_"):
        check()
        print(name)
