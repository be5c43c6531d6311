"""torch._dynamo.reset() between two phases, when no thread calls anything."""

import threading

import torch

compiled = torch.compile(lambda x: x.sin().sum(), backend="aot_eager")


def call():
    for _ in range(4):
        compiled(torch.randn(6))


for _ in range(2):
    compiled(torch.randn(6))
    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch._dynamo.reset()
