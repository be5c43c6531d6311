import torch


@torch.compile(backend="eager")
def f(x):
    x = x.sin()
    print("inside")
    return x.cos()


f(torch.randn(4))
