"""Ways to make a program smaller while it still shows the same: the built-in trainer's knobs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from dflash_min.config import TrainConfig

Spec = TypeVar("Spec")


class Reduction(Protocol[Spec]):
    """One knob."""

    @property
    def name(self) -> str:
        """What it turns, for people."""

    def smaller(self, spec: Spec) -> Iterator[Spec]:
        """Variants of ``spec`` that are smaller in this knob, the smallest first."""


@dataclass(frozen=True)
class Knob(Generic[Spec]):
    """A reduction made of a function."""

    name: str
    variants: Callable[[Spec], Iterator[Spec]]

    def smaller(self, spec: Spec) -> Iterator[Spec]:
        """See ``Reduction.smaller``."""
        return self.variants(spec)


def trainer_reductions(lengths: Sequence[int], backend: str) -> tuple[Knob[TrainConfig], ...]:
    """The trainer's reductions, in the order in which they are tried.

    Args:
        lengths: training lengths that a config with none set stands for.
        backend: the backend that a config with none set stands for.
    """
    return (
        Knob("threads", _threads),
        Knob("steps", lambda config: (replace(config, steps=n) for n in _below(config.steps))),
        Knob("layers", lambda config: (replace(config, layers=n) for n in _below(config.layers))),
        Knob("sequence lengths", lambda config: _lengths(config, tuple(lengths))),
        Knob("activation checkpointing", _checkpointing),
        Knob("backend", lambda config: _backends(config, backend)),
    )


def _threads(config: TrainConfig) -> Iterator[TrainConfig]:
    if config.layout is not None or config.drafters is not None:
        return  # which devices the user named is part of what is shown
    threads = 3 if config.threads is None else config.threads
    for fewer in _below(threads):
        yield replace(config, threads=fewer)


def _below(count: int) -> Iterator[int]:
    """1, 2, 4 ... below ``count``, and one less."""
    number = 1
    while number < count:
        yield number
        number *= 2
    if count > 2 and (count - 1) & (count - 2):
        yield count - 1


def _lengths(config: TrainConfig, default: tuple[int, ...]) -> Iterator[TrainConfig]:
    lengths = default if config.seq_lens is None else config.seq_lens
    for number in range(1, len(lengths)):
        yield replace(config, seq_lens=lengths[:number], bucket_lens=None)


def _checkpointing(config: TrainConfig) -> Iterator[TrainConfig]:
    if config.activation_checkpointing:
        yield replace(config, activation_checkpointing=False)


def _backends(config: TrainConfig, default: str) -> Iterator[TrainConfig]:
    order = ("eager", "aot_eager", "inductor")
    backend = config.backend or default
    if backend in order and config.compile_mode == "default":
        for simpler in order[: order.index(backend)]:
            yield replace(config, backend=simpler)
