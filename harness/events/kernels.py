"""What the events of kernels say that triton tunes when they are first called."""

from typing import Literal

import msgspec

from harness.events.values import Int


class AutotuneData(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a kernel under ``@triton.autotune`` that had to be tuned, from enter to exit.

    Attributes:
        kernel: number of the kernel's autotuner, from 1, in order of first appearance.
        name: the kernel's name.
        met_tids: threads that tuned the kernel at the same time, as far as is known by then; of
            the exit, also those whose call of it returned or failed meanwhile, which clears the
            arguments that the autotuner holds.
        error: of the exit: what the call raised.
        arguments: of the exit of a call that failed: whether the autotuner still held the call's
            ``own`` arguments, ``others``, or none (``gone``).
    """

    kernel: Int
    name: str = ""
    met_tids: tuple[Int, ...] = ()
    error: str = ""
    arguments: Literal["", "own", "others", "gone"] = ""
    count: Int = 1
