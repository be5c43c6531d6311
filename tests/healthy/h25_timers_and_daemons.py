"""Timers that call a warmed function, and a daemon thread alive when the program ends."""

import threading

import torch

compiled = torch.compile(lambda x: x * 2 + 1, backend="aot_eager")
compiled(torch.ones(4))
never = threading.Event()
threading.Thread(target=never.wait, daemon=True).start()
timers = [threading.Timer(0.01, compiled, [torch.ones(4)]) for _ in range(3)]
for timer in timers:
    timer.start()
for timer in timers:
    timer.join()
