"""Stacks as lists of ``[file, line, function, user]``, cheap and without source text.

``user`` is false for frames that are nobody's bug to look at first: torch, triton, the standard
library, frozen modules and code that FX or inductor generated. The harness's own frames are left
out altogether.
"""

import os
import sys
from collections.abc import Iterator
from types import CodeType, FrameType, TracebackType

Frame = list[str | int | bool]

_LIBRARIES = ("torch", "triton", "functorch")
_TYPED_IN = ("<string>", "<stdin>", "<ipython-input")
# A run of library frames is cut to where it is now and to the call that the user made.
_RUN_HEAD, _RUN_TAIL = 6, 2
_OUTER, _INNER = 20, 40
# Inductor writes a file for each compile, so a program can have ever new ones.
_MAX_KNOWN = 4096

_own = os.path.dirname(os.path.abspath(__file__)) + os.sep  # noqa: PTH100, PTH120
_stdlib = os.path.dirname(os.path.abspath(os.__file__)) + os.sep  # noqa: PTH100, PTH120
_packages = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_known: dict[str, bool] = {}
_library_folders: dict[str, str] = {}


def user_stack(skip: int = 0, limit: int = 24) -> list[Frame]:
    """Return the calling thread's stack, innermost call first.

    Of a run of library frames the innermost six and the outermost two are kept, so that a user's
    frame below a deep stack of module calls is still reached.

    Args:
        skip: innermost frames to leave out (besides the harness's own).
        limit: frames to keep at most.
    """
    try:
        frame: FrameType | None = sys._getframe(1 + skip)  # noqa: SLF001 - no other way is cheap
    except ValueError:  # the stack is not that deep
        return []
    return _cut(_walk(frame), limit)


def frames_of(traceback: TracebackType | None) -> list[Frame]:
    """Return a traceback's frames, outermost call first; the middle of a very deep one is cut.

    The outermost 20 and the innermost 40 frames are kept.
    """
    frames: list[Frame] = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not code.co_filename.startswith(_own):
            frames.append(_entry(code, traceback.tb_lineno))
            if len(frames) > _OUTER + _INNER:
                del frames[_OUTER]
        traceback = traceback.tb_next
    return frames


def is_user_file(path: str) -> bool:
    """Whether a file is the program's or one of its libraries', not torch's or Python's own."""
    if path.startswith("<"):  # generated code has a new name each time: not worth remembering
        return path.startswith(_TYPED_IN)
    known = _known.get(path)
    if known is None:
        if len(_known) >= _MAX_KNOWN:
            _known.clear()
        known = _known[path] = _is_user_file(path)
    return known


def _is_user_file(path: str) -> bool:
    absolute = os.path.abspath(path)  # noqa: PTH100 - pathlib is an import the child can do without
    if absolute.startswith(_own) or any(absolute.startswith(f) for f in _folders()):
        return False
    if absolute.startswith(_stdlib):
        return any(part in absolute for part in _packages)
    return not _is_generated(absolute)


def _folders() -> Iterator[str]:
    for name in _LIBRARIES:
        folder = _library_folders.get(name)
        if folder is None:
            # A frame of torch exists only once torch is in sys.modules, if only half imported.
            path = getattr(sys.modules.get(name), "__path__", None)
            if not path:
                continue
            folder = _library_folders[name] = os.path.abspath(next(iter(path))) + os.sep  # noqa: PTH100
        yield folder


def _is_generated(path: str) -> bool:
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if cache and path.startswith(os.path.abspath(cache) + os.sep):  # noqa: PTH100
        return True
    return f"{os.sep}torchinductor_" in path


def _walk(frame: FrameType | None) -> Iterator[Frame]:
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_own):
            # f_lineno is None while a frame has no line, such as right at its start.
            yield _entry(code, frame.f_lineno or code.co_firstlineno)
        frame = frame.f_back


def _entry(code: CodeType, line: int | None) -> Frame:
    path = code.co_filename
    # The plain name, not the qualified one: it is what tracebacks and stack dumps print.
    return [path, line or code.co_firstlineno, code.co_name, is_user_file(path)]


def _cut(frames: Iterator[Frame], limit: int) -> list[Frame]:
    kept: list[Frame] = []
    run = 0
    for entry in frames:
        run = 0 if entry[3] else run + 1
        if run > _RUN_HEAD + _RUN_TAIL:
            del kept[-_RUN_TAIL]
        elif len(kept) >= limit:
            break
        kept.append(entry)
    return kept
