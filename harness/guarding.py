"""``harness.guarded()``: a compiled function that threads call as it was warmed up, or not at all.

A remedy for a program whose threads cannot all be given the warm-up's context: each call is made in
that context, whatever the calling thread's is, and one that would compile raises instead. Backward
runs outside of the call, so warm it up as well.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_AUTOCAST = ("cpu", "cuda", "xpu", "hpu", "mps", "mtia")


@dataclass(frozen=True)
class Context:
    """The calling thread's state that dynamo guards on, as far as a thread can be given it.

    Attributes:
        grad, inference: gradients are on; inference mode is on.
        autocast: for each device type, whether it is on, and its dtype.
        autocast_cache: casts of weights are kept.
        num_threads: threads of an operator on the processor.
        config: ``torch._dynamo.config`` values that differ from their defaults.
    """

    grad: bool
    inference: bool
    autocast: tuple[tuple[str, bool, Any], ...]
    autocast_cache: bool
    num_threads: int
    config: dict[str, Any]

    @classmethod
    def of_this_thread(cls) -> "Context":
        """The calling thread's."""
        import torch

        from harness.child import torch_symbols as symbols

        return cls(
            grad=torch.is_grad_enabled(),
            inference=torch.is_inference_mode_enabled(),
            autocast=tuple(_autocast(_AUTOCAST)),
            autocast_cache=torch.is_autocast_cache_enabled(),
            num_threads=torch.get_num_threads(),
            config=symbols.config_overrides(),
        )

    @contextlib.contextmanager
    def given(self) -> Iterator[None]:
        """Give it to the calling thread, for as long as the block lasts."""
        import torch
        from torch._dynamo import config

        num_threads = torch.get_num_threads()
        now = list(_autocast(device for device, _, _ in self.autocast))
        with contextlib.ExitStack() as stack:
            if torch.is_inference_mode_enabled() != self.inference:
                stack.enter_context(torch.inference_mode(self.inference))
            stack.enter_context(torch.set_grad_enabled(self.grad))
            for (device, on, dtype), here in zip(self.autocast, now, strict=True):
                if (device, on, dtype) != here:
                    stack.enter_context(
                        torch.autocast(
                            device, dtype=dtype, enabled=on, cache_enabled=self.autocast_cache
                        )
                    )
            if num_threads != self.num_threads:
                torch.set_num_threads(self.num_threads)
                stack.callback(torch.set_num_threads, num_threads)
            # ``torch.autocast`` gives it only where a device type's own state differs.
            cached = torch.is_autocast_cache_enabled()
            if cached != self.autocast_cache:
                torch.set_autocast_cache_enabled(self.autocast_cache)
                stack.callback(torch.set_autocast_cache_enabled, cached)
            changes = {**self.config, "error_on_recompile": True}
            stack.enter_context(config.patch(changes))
            yield


def _autocast(devices: Iterable[str]) -> Iterator[tuple[str, bool, Any]]:
    """The calling thread's autocast state for each device type that this build knows."""
    import torch

    for device in devices:
        with contextlib.suppress(RuntimeError):  # a device type that this build does not know
            on = torch.is_autocast_enabled(device)
            yield device, on, torch.get_autocast_dtype(device)


class Guarded(Generic[P, R]):
    """A compiled function behind its warm-up; see ``harness.guarded``."""

    def __init__(self, compiled: Callable[P, R]) -> None:
        if not callable(compiled):
            raise TypeError(f"guarded() takes a compiled function, got {compiled!r}")
        functools.update_wrapper(self, compiled, updated=())
        self._compiled = compiled
        self._lock = threading.RLock()
        self._context: Context | None = None
        self._warming: list[Context] = []

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call it.

        Raises:
            RuntimeError: it was not warmed up; or, of torch's ``RecompileError``, no entry of the
                warm-up fits the call.
        """
        warming = self._warming_here()
        if warming is not None:
            result = self._compiled(*args, **kwargs)
            # Not before: where there is no entry at all, ``error_on_recompile`` refuses nothing.
            self._context = warming
            return result
        context = self._context
        if context is None:
            name = getattr(self, "__name__", repr(self._compiled))
            raise RuntimeError(
                f"{name} is guarded and was not warmed up: with {name}: {name}(...) in one thread"
            )
        with context.given():
            return self._compiled(*args, **kwargs)

    def __enter__(self) -> Self:
        """Begin its warm-up in the calling thread, whose context the calls will be made in.

        Other threads' warm-ups wait: no two compile it at once. Their calls are refused until the
        first one of the first warm-up has returned.
        """
        context = Context.of_this_thread()
        self._lock.acquire()
        self._warming.append(context)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End its warm-up; after one that failed it is as good as not warmed up."""
        self._warming.pop()
        if error is not None:
            self._context = None
        self._lock.release()

    def _warming_here(self) -> Context | None:
        """The context of the warm-up that the calling thread is in; None if it is in none."""
        # Only the thread that warms it up gets the lock while it is warmed up.
        if not self._warming or not self._lock.acquire(blocking=False):
            return None
        try:
            return self._warming[-1] if self._warming else None
        finally:
            self._lock.release()
