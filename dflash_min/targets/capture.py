"""Outputs of a module's layers, caught while it runs, each by the thread that asked.

Hooks stay on the layers, and what they catch belongs to the calling thread: threads may share a
model, and adding or removing hooks while another thread runs the layer is no option.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch import nn

_captured: ContextVar[dict[int, Tensor] | None] = ContextVar("captured", default=None)


def tap(layers: Sequence[nn.Module] | nn.ModuleList, taps: Iterable[int]) -> None:
    """Hook the layers with these ids, once and for good; a copy of the module keeps the hooks."""
    for index in set(taps):
        layers[index].register_forward_hook(_hook(index))


@contextlib.contextmanager
def capturing() -> Iterator[dict[int, Tensor]]:
    """Fill a mapping from id to output while the calling thread runs hooked layers."""
    captured: dict[int, Tensor] = {}
    token = _captured.set(captured)
    try:
        yield captured
    finally:
        _captured.reset(token)


def _hook(index: int) -> Callable[[nn.Module, tuple[object, ...], object], None]:
    def hook(layer: nn.Module, args: tuple[object, ...], output: object) -> None:
        del layer, args
        captured = _captured.get()
        if captured is None:
            return
        # Layers of transformers return the hidden states, in some versions first in a tuple.
        hidden = output[0] if isinstance(output, tuple) else output
        if not isinstance(hidden, Tensor):
            raise TypeError(f"layer {index} returned a {type(hidden).__name__}, no tensor")
        captured[index] = hidden

    return hook
