import threading

import torch
from torch._dynamo.backends.common import aot_autograd


def resetting():
    torch._dynamo.reset()


def backward_compiler(gm, inputs):
    t = threading.Thread(target=resetting, name="resetter")
    t.start()
    t.join()
    return gm.forward


f = torch.compile(
    lambda x: (x.sin() * x).sum(),
    backend=aot_autograd(fw_compiler=lambda gm, i: gm.forward, bw_compiler=backward_compiler),
)
f(torch.randn(4, requires_grad=True)).backward()
