"""fullgraph=True with a dimension marked dynamic, the same way in every thread."""

import threading

import torch

compiled = torch.compile(lambda x: (x * 2).mean(0), backend="aot_eager", fullgraph=True)


def call(sizes):
    for size in sizes:
        x = torch.randn(size, 4)
        torch._dynamo.mark_dynamic(x, 0)
        compiled(x)


call((8,))
threads = [threading.Thread(target=call, args=((5, 6, 7, 9 + n),)) for n in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
