"""Switches the watch of this process off and on again.

Two processes differ by five percent whatever runs in them, so what the watch costs is measured in
one: everything that it has put in the place of something of torch's is taken out and put back. What
stays in either case is a ``threading.local`` of torch's that was replaced, which costs a call
nothing once its thread has called.
"""

import gc
import logging
import sys
from types import FunctionType

import usage

usage.under_the_watch(__doc__, "python tests/bench/price.py")

from _compile_race_child import following
from _compile_race_child import torch_symbols as symbols

OURS = "_compile_race_child"
QUESTION = "is_fx_symbolic_tracing"


def original_of(found):
    """What the watch has wrapped; None for what is torch's own."""
    if type(found).__module__.startswith(OURS):
        return getattr(found, "_lock", None)
    code = getattr(found, "__code__", None)
    home = sys.modules[OURS].__path__[0]
    if code is not None and code.co_filename.startswith(home):
        return getattr(found, "__wrapped__", None)
    return None


class Switch:
    """The watch of this process. It is on when this is made, once all modules are imported."""

    def __init__(self):
        self.places = []
        for name, symbol in vars(symbols).items():
            found = symbol.find() if isinstance(symbol, symbols.Symbol) else None
            original = original_of(found)
            if original is not None:
                self.places.append((name, symbol, found, original))
        self.cells = []
        (self.tap,) = (found._tap for found in following._followers.values())
        self.logger = logging.getLogger(symbols.TRACE_LOGGER)
        self.listeners = self.logger.handlers
        self.compiles = _cell(symbols.COMPILE.get(), "compiles").cell_contents
        self.detail = self.compiles._detail
        observe = sys.modules.get("dflash_min.observe")
        self.observer = observe and observe._observer
        missing = {"FX_TRACING", "COMPILE", "MATH_ATTENTION"} - {place[0] for place in self.places}
        if self.tap is None or missing:
            raise SystemExit(f"the watch is not live: guard hook {self.tap}, without {missing}")

    def learn(self):
        """Find the compiled functions that exist by now: each keeps torch's question for itself."""
        self.cells = []
        for thing in gc.get_objects():
            # By its type: some of torch's objects warn when they are asked for their class.
            if type(thing) is FunctionType and thing.__code__.co_name == "compile_wrapper":
                cell = _cell(thing, QUESTION)
                if cell is not None:
                    watched = symbols.FX_TRACING.get()
                    self.cells.append((cell, watched, watched.__wrapped__))

    def on(self, *, detail=True):
        """Watch; ``detail``: torch's trace log is listened to as well."""
        self.off()
        for _, symbol, ours, _ in self.places:
            symbol.replace(ours)
        for cell, ours, _ in self.cells:
            cell.cell_contents = ours
        # The hook is in its place only while somebody must know of guards.
        (self.tap.open if self.tap.is_open else self.tap.shut)()
        self.compiles._detail = self.detail if detail else None
        if detail:
            self.logger.handlers = self.listeners
        self._observe(self.observer)

    def off(self):
        """Leave torch as it would be without us."""
        for _, symbol, _, torchs in self.places:
            symbol.replace(torchs)
        for cell, _, torchs in self.cells:
            cell.cell_contents = torchs
        symbols.SET_GUARD_HOOK.get()(None)
        self.logger.handlers = []
        self._observe(None)

    def _observe(self, observer):
        observe = sys.modules.get("dflash_min.observe")
        if observe is not None:
            observe.set_observer(observer)


def _cell(function, name):
    names = function.__code__.co_freevars
    return function.__closure__[names.index(name)] if name in names else None
