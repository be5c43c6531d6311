"""Probes: the only code that touches torch's internals.

One probe a module. A probe names the torch modules that it waits for; when the program imports
one, its ``install`` patches what it needs and the event log says that the probe is live.
"""

from typing import Protocol

from ..recorder import Recorder
from ..settings import Settings


class Unavailable(Exception):  # noqa: N818 - it states a fact, it is not an error of the program
    """A probe cannot be installed in this torch; the text says which symbol is missing."""

    state = "missing"


class Probe(Protocol):
    """A probe: patches one part of a program and records what happens there.

    Attributes:
        name: as shown in reports and taken by ``--no-probe``.
        modules: module names; ``install`` runs once all of them were imported. Empty: at once.
    """

    name: str
    modules: tuple[str, ...]

    def install(self, recorder: Recorder, settings: Settings) -> None:
        """Patch. Raises Unavailable if this torch lacks a symbol; nothing is patched then."""
        ...
