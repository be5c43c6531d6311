"""num_threads differs in a thread: a cause that is not looked for."""

import threading

import torch

torch.set_num_threads(2)


@torch.compile(backend="eager", dynamic=False)
def f(x):
    return torch.tanh(x).sum()


f(torch.randn(8))


def work():
    torch.set_num_threads(1)
    f(torch.randn(8))


thread = threading.Thread(target=work)
thread.start()
thread.join()
