"""A thread attends outside compiled code over a length whose scores do not fit; for a cap of 1 GiB.

With ``fixed`` it calls the compiled function, and the same length fits.
"""

import sys
import threading

import torch
from torch.nn.attention.flex_attention import flex_attention

compiled = torch.compile(flex_attention)
query, key, value = (torch.randn(1, 4, 4096, 32) for _ in range(3))


def attend(call):
    with torch.no_grad():
        call(query, key, value)


attend(compiled)
call = compiled if sys.argv[1:] == ["fixed"] else flex_attention
thread = threading.Thread(target=attend, args=(call,), name="worker-0")
thread.start()
thread.join()
