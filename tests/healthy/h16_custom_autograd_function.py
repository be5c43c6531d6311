"""A custom autograd function under compile, trained in two threads after a whole warm-up step."""

import threading

import torch


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 3

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 3 + 0 * x


compiled = torch.compile(lambda x: Scale.apply(x.sin()).sum(), backend="aot_eager")


def train():
    for _ in range(4):
        compiled(torch.randn(6, requires_grad=True)).backward()


train()
threads = [threading.Thread(target=train) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
