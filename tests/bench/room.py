"""Keeps the ends of Python's stack out of a measurement.

CPython (3.11 and newer) has its frames in chunks of 16 KiB. It asks the system for the next one
when a call does not fit, and gives it back when that call returns (``push_chunk`` and
``_PyThreadState_PopFrame`` in ``Python/pystate.c``). So a loop that calls where a chunk ends makes
two system calls and some page faults each time: 11,000 or 16,000 times in one cold compile (strace,
two depths), an eighth of whose time that is (689 ms with room against 788). Where the ends lie is a
matter of how deep the caller stands, and three frames more move them all, to the better or the
worse.
"""

from types import FunctionType


def _call(work):
    return work()


# A frame that does not fit gets a chunk of twice the size until it does. This one, of 8 * 66,000
# bytes, gets a mebibyte, of which nearly half is left for the frames above it.
roomy = FunctionType(_call.__code__.replace(co_stacksize=66_000), globals(), "roomy")
"""Call ``work`` where half a mebibyte of frames fit before Python asks the system for more."""
