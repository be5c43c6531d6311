"""Runs a program several times in one process: ``in_turn.py PROGRAM MODE [MODE ...]``.

A mode may be several words. Each time the program is a new ``__main__``, compiled anew, so that
its functions, and what is compiled for them, are new. What it does to the process stays.
"""

import sys
from pathlib import Path
from types import ModuleType

import torch

# On a CUDA build without a GPU, torch 2.10 and 2.11 crash in the next compile where a thread made
# the first one of the process and ended (CR320), as threads of one mode do before the next begins.
torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))

PROGRAM, *MODES = sys.argv[1:]
for mode in MODES:
    sys.argv = [PROGRAM, *mode.split()]
    main = ModuleType("__main__")
    main.__file__ = PROGRAM
    sys.modules["__main__"] = main  # where dynamo looks for what functions read
    # What dynamo compiles belongs to a code object, of which each mode needs its own.
    exec(compile(Path(PROGRAM).read_text(encoding="utf-8"), PROGRAM, "exec"), main.__dict__)
