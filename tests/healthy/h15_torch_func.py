"""vmap and grad of torch.func inside compiled functions, called from a pool after a warm-up."""

from concurrent.futures import ThreadPoolExecutor

import torch


def loss(w, x):
    return (w * x).sum().square()


gradients = torch.compile(
    torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0)), backend="aot_eager"
)
weight = torch.randn(5)
gradients(weight, torch.randn(3, 5))
with ThreadPoolExecutor(3) as pool:
    list(pool.map(lambda _: gradients(weight, torch.randn(3, 5)), range(9)))
