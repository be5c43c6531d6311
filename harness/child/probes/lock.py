"""Waits for dynamo's compile lock, behind which all compiles of a process queue."""

import sys
from types import TracebackType
from typing import Any

from .. import context, unseen
from .. import torch_symbols as symbols
from ..recorder import Recorder
from ..settings import Settings

_NAME = f"{symbols.COMPILE_LOCK.module}.{symbols.COMPILE_LOCK.name}"
#: Where ``ThreadState.scratch`` keeps the context as it was when the lock was acquired.
CONTEXT = "context at the lock"
#: The watched lock's attribute that tells its owner's native id, None while nobody has it.
OWNER = "owner"


class WatchedLock:
    """Stands for a re-entrant lock and records the waits for it.

    The real lock does the locking, so code that got hold of it by value still excludes the others.
    """

    def __init__(self, lock: Any, recorder: Recorder) -> None:
        self._lock = lock
        self._recorder = recorder
        # Written by the owner only.
        self._owner: int | None = None
        self._depth = 0

    @property
    def owner(self) -> int | None:
        """Native id of the thread that has it."""
        return self._owner

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002
        """Acquire the lock as ``threading.RLock.acquire`` does."""
        tid = self._recorder.local.tid
        outermost = blocking and not self._lock._is_owned()  # noqa: SLF001
        if outermost:
            self._recorder.reach("lock_wait", "enter")
        acquired: bool = self._lock.acquire(blocking=False)
        if not acquired and blocking:
            acquired = self._wait(timeout)
        if acquired:
            self._depth += 1
            self._owner = tid
        if outermost:
            self._recorder.reach("lock_wait", "exit")
        return acquired

    def release(self) -> None:
        """Release the lock. Raises RuntimeError if the calling thread does not own it."""
        if self._owner == self._recorder.local.tid:
            self._depth -= 1
            if self._depth == 0:
                self._owner = None
        self._lock.release()

    def __enter__(self) -> bool:
        self._recorder.compile_wanted(sys._getframe(1))  # noqa: SLF001 - it says what for
        outermost = not self._lock._is_owned()  # noqa: SLF001 - threading.Condition asks it too
        acquired = False
        try:
            acquired = self.acquire()
            self._keep_context()
        except BaseException:
            # Ctrl-C, say: nobody else would release the lock. It may have come before anything but
            # the lock itself knew that it was acquired.
            if acquired or (outermost and self._lock._is_owned()):  # noqa: SLF001
                self.release()
            raise
        return acquired

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)

    def _wait(self, timeout: float) -> bool:
        data = {"lock": _NAME, "owner_tid": self._owner}
        schedule, tid = self._recorder.schedule, self._recorder.local.tid
        if schedule is not None:
            schedule.blocked[tid] = lambda: self._owner
        begun = self._recorder.emit("lock_wait", data, edge="enter", stack=True)
        try:
            acquired: bool = self._lock.acquire(timeout=timeout)
        finally:
            if schedule is not None:
                schedule.blocked.pop(tid, None)
            if begun:
                self._recorder.emit("lock_wait", data, edge="exit")
        return acquired

    def _keep_context(self) -> None:
        # Dynamo takes torch's dispatch modes off the stack right after it has the lock.
        try:
            self._recorder.local.scratch[CONTEXT] = context.describe()
        except Exception:  # noqa: BLE001 - the watch must never break the program it watches
            self._recorder.lost += 1


class LockProbe:
    """Puts an instrumented lock in the place of ``compile_lock``."""

    name = "lock"
    modules: tuple[str, ...] = (symbols.COMPILE_LOCK.module,)

    def install(self, recorder: Recorder, settings: Settings) -> None:  # noqa: ARG002
        """Replace the lock. Raises Unavailable if this torch has none."""
        symbols.COMPILE_LOCK.replace(WatchedLock(symbols.COMPILE_LOCK.get(), recorder))
        unseen.hide_own_frames()


PROBE = LockProbe()
