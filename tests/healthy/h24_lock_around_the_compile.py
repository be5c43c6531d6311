"""Cold threads, but a lock of the program's own lets one compile before the others call."""

import threading

import torch

compiled = torch.compile(lambda x: x.exp().sum(), backend="aot_eager")
lock, warm = threading.Lock(), threading.Event()


def call():
    with lock:
        if not warm.is_set():
            compiled(torch.randn(8))
            warm.set()
    for _ in range(5):
        compiled(torch.randn(8))


threads = [threading.Thread(target=call) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
