"""Calls back right after a module was imported, before the importing statement returns.

Nothing is imported earlier than the program imports it. The module's own loader object stays in
place: only its ``exec_module`` is replaced, on the instance, for the one call.
"""

import contextlib
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Callback = Callable[[], None]


class ImportHooks:
    """A finder, first on ``sys.meta_path``, that looks on for the modules waited for."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Callback]] = {}
        # Re-entrant: a callback may import, or wait for, other modules.
        self._lock = threading.RLock()

    def install(self) -> None:
        """Put the finder in front of the others."""
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Take the finder out; what is waited for stays unseen."""
        # Without the lock: in a forked process the thread that held it may be gone.
        self._waiting.clear()
        with contextlib.suppress(ValueError):  # the program has cleared the list
            sys.meta_path.remove(self)

    def when_all_imported(self, names: Sequence[str], callback: Callback) -> None:
        """Call ``callback`` once, as soon as all modules in ``names`` were imported.

        Modules that another thread is just importing are waited for. The callback runs in the
        thread that imported the last of them, at once if all were imported before.
        """
        left = set(names)

        def arrived(name: str) -> None:
            with self._lock:
                if name not in left:
                    return
                left.discard(name)
                if left:
                    return
            callback()

        if not left:
            callback()
        for name in names:
            self._when_imported(name, lambda name=name: arrived(name))  # type: ignore[misc]

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module that is waited for as the other finders would, and mark its loader."""
        if name not in self._waiting:
            return None
        for finder in list(sys.meta_path):
            if finder is self:
                continue
            find = getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                self._mark(spec)
                return spec  # type: ignore[no-any-return]
        return None

    def _when_imported(self, name: str, callback: Callback) -> None:
        with self._lock:
            module = sys.modules.get(name)
            if module is None:
                self._waiting.setdefault(name, []).append(callback)
                return
        if getattr(getattr(module, "__spec__", None), "_initializing", False):
            __import__(name)  # waits for the thread that imports it
        callback()

    def _mark(self, spec: ModuleSpec) -> None:
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            # Another thread's import of the same module may have been first.
            with contextlib.suppress(AttributeError):
                del loader.exec_module
            execute(module)
            if module.__name__ == spec.name:  # a finder can share one loader between modules
                self._imported(spec.name)

        try:
            loader.exec_module = exec_module
        except (AttributeError, TypeError):  # a loader that takes no attributes: go unseen
            return

    def _imported(self, name: str) -> None:
        with self._lock:
            callbacks = self._waiting.pop(name, [])
        for callback in callbacks:
            callback()
