"""A program with an excepthook, a trace function and a logging configuration of its own."""

import logging.config
import sys
import threading

import torch

logging.config.dictConfig(
    {"version": 1, "disable_existing_loggers": False, "root": {"level": "INFO"}}
)
sys.excepthook = lambda *error: print("mine", error)
threading.excepthook = lambda arguments: print("mine", arguments)
sys.settrace(lambda frame, event, argument: None)
compiled = torch.compile(lambda x: x.abs().sum(), backend="aot_eager")
compiled(torch.randn(4))
threads = [threading.Thread(target=compiled, args=(torch.randn(4),)) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
