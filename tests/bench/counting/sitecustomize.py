"""Counts a process's compiles for ``races.py``: at its end, from what dynamo itself keeps.

Nothing is patched and nothing imported: dynamo's own deque of compilation metrics is read when the
interpreter ends, the same way whether the process is watched or not.
"""

import atexit
import json
import os
import sys


def _write(path, pid):
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None or os.getpid() != pid:
        return
    compiles = recompiles = 0
    for metrics in list(utils.get_compilation_metrics()):
        if getattr(metrics, "is_forward", True) is False:
            continue
        # "0/1": the second variant of the first frame. "2/0_1": after a restart.
        frame, _, variant = str(metrics.compile_id).partition("/")
        if frame.isdigit():
            compiles += 1
            recompiles += not variant.startswith("0")
    with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123 - nothing more is imported
        json.dump({"compiles": compiles, "recompiles": recompiles}, file)


_path = os.environ.get("COMPILE_COUNTS", "")
# The trainer itself: neither what starts and watches it nor a helper that it starts.
if _path and sys.orig_argv[1:3] == ["-m", "dflash_min.train"]:
    atexit.register(_write, _path, os.getpid())
