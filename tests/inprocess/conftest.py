"""Compiled functions of the test's own process, each with a code object of its own."""

import itertools
import linecache
import threading
from collections.abc import Callable
from typing import Any

import pytest

_numbers = itertools.count()


@pytest.fixture(autouse=True, scope="session")
def dynamo_is_imported() -> None:
    """What torch itself puts in place at its first compile is no watch's doing."""
    import torch

    torch.compile(lambda x: x.sin(), backend="eager")(torch.ones(1))


@pytest.fixture(autouse=True)
def threads_begin_as_main_is() -> None:
    """New threads get the number that any thread has set last, and other tests' threads have."""
    import torch

    torch.set_num_threads(torch.get_num_threads())


@pytest.fixture
def make() -> Callable[..., Any]:
    """A new compiled function of a tensor, of a code object that nothing was compiled for."""
    import torch

    def compiled(body: str = "(x * 2).sin()", backend: str = "eager", **options: Any) -> Any:
        name = f"made_{next(_numbers)}"
        space: dict[str, Any] = {"torch": torch}
        # A function without a source is compiled inside one of torch's own up to torch 2.11, whose
        # entries from before a watch do not tell whose they are. A notebook's cells have theirs
        # here too.
        source, file = f"def {name}(x): return {body}", f"/program/{name}.py"
        linecache.cache[file] = (len(source), None, [source], file)
        exec(compile(source, file, "exec"), space)
        return torch.compile(space[name], backend=backend, **options)

    return compiled


@pytest.fixture
def in_threads() -> Callable[..., None]:
    """Call a function with an argument in each of so many threads, all at once."""

    def run(function: Callable[[Any], Any], argument: Any, threads: int = 2) -> None:
        barrier = threading.Barrier(threads)

        def call() -> None:
            barrier.wait()
            function(argument)

        started = [threading.Thread(target=call, name=f"caller-{n}") for n in range(threads)]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()

    return run
