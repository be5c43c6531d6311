"""A thread's model is too large, which nobody can see from here; for a cap of 1 GiB.

Before that, a request fails that the program handles.
"""

import threading

import torch

compiled = torch.compile(torch.sin, backend="aot_eager")
compiled(torch.ones(3))


def work():
    try:
        torch.empty(3 << 30, dtype=torch.uint8)
    except RuntimeError:
        torch.empty(2 << 30, dtype=torch.uint8)


thread = threading.Thread(target=work, name="worker-0")
thread.start()
thread.join()
