"""Lets equal values of a recording be one object: contexts, stacks and inputs repeat all day."""

from collections.abc import Hashable
from typing import Any, TypeVar

import msgspec

from harness.events.values import Context

T = TypeVar("T", bound=Hashable)

MAX_TEXT = 1 << 14
"""Longer messages are kept without their middle: a thousand of a megabyte would fill the memory."""
_MAX = 1 << 14
_encode = msgspec.json.Encoder().encode


def cut(text: str, limit: int = MAX_TEXT) -> str:
    """The text, without its middle if it is long. Nothing in it is a diagnosis by its length."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} [... {len(text) - 2 * half:,} characters ...] {text[-half:]}"


class Shared:
    """The values met so far. When they are too many they are forgotten, which costs room only."""

    def __init__(self) -> None:
        self._values: dict[Any, Any] = {}

    def one(self, value: T) -> T:
        """The value that was met first and equals this one."""
        known: T = self._known(value, value)
        return known

    def context(self, context: Context | None) -> Context | None:
        """The same for a context, which cannot be hashed itself."""
        if context is None:
            return None
        known: Context = self._known(_encode(context), context)
        return known

    def _known(self, key: Hashable, value: object) -> Any:  # noqa: ANN401 - what value is
        if len(self._values) >= _MAX:
            self._values.clear()
        return self._values.setdefault(key, value)
