"""Which torch a text is of: where it says so, or by the lines of torch's files in tracebacks."""

from harness.child.torch_files import HOP_WRAPPER, INTERNAL_FOLDERS, TRANSFORMS
from harness.logs.facts import Fact, Function, Traceback, Version
from harness.logs.keeping import Process

_COMPILE_WRAPPER = {
    795: "2.9", 798: "2.9", 916: "2.10", 919: "2.10", 985: "2.11", 989: "2.11", 990: "2.11",
    1007: "2.12", 1012: "2.12", 1116: "2.13", 1120: "2.13", 1121: "2.13", 1205: "2.14",
    1210: "2.14", 1209: "2.15", 1214: "2.15",
}  # fmt: skip
"""Lines of ``torch/_dynamo/eval_frame.py`` at which ``compile_wrapper`` raises the FX error, in the
released wheels."""


def torch_of(process: Process) -> str:
    """The version; of one that was only inferred the major and the minor number. May be empty."""
    for fact in process.facts:
        if isinstance(fact, Version):
            return fact.torch
    return next((said for fact in process.facts if (said := _by_line(fact))), "")


def _by_line(fact: Fact) -> str:
    if not isinstance(fact, Traceback):
        return ""
    for raised in fact.chain:
        last = raised.frames[-1:]
        if (
            last
            and last[0].function == "compile_wrapper"
            and "FX to symbolically" in raised.message
        ):
            return _COMPILE_WRAPPER.get(last[0].line, "")
    return ""


def is_internal(function: Function) -> bool:
    """Whether torch compiles a function for its own use; ``flex_attention`` itself is not one."""
    if function.name == HOP_WRAPPER:
        return True
    file = function.file.replace("\\", "/")
    if any(file.endswith(f"/torch/{place}") for place in TRANSFORMS):
        return False
    folders = (f"/torch/{folder}" for folder in INTERNAL_FOLDERS)
    return "-packages/torch/" in file and any(folder in file for folder in folders)
