import threading

import torch

torch._dynamo.config.recompile_limit = 64
f = torch.compile(lambda x: x.sin() + 1, backend="eager", dynamic=False, fullgraph=True)
f(torch.randn(2))


def loop():
    for n in range(3, 20):
        f(torch.randn(n))


t = threading.Thread(target=loop, name="many-shapes")
t.start()
t.join()
