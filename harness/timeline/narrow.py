"""The events as a timeline reads them: all of a kept event, and of a step next to nothing.

Steps are most of a long run's lines, and only their number, thread and time are of use here.
"""

from typing import Any, Union

import msgspec

from harness.events import schema
from harness.events.values import Int


class StepSeen(msgspec.Struct, tag_field="point", tag="step", gc=False):
    """What a timeline takes from a ``step``."""

    t_ns: Int
    seq: Int
    pid: Int
    tid: Int


NARROW: Any = Union[
    (StepSeen, *(kind for kind in schema.Event.__args__ if kind is not schema.Step))
]
"""The kinds of events that a timeline reads."""
