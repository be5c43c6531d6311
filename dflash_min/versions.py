"""The versions of torch that were tried; asked before torch is imported."""

from __future__ import annotations

import re
from typing import Final

from dflash_min.errors import UsageError

TORCH_FROM: Final = (2, 11)
TORCH_BELOW: Final = (2, 16)
_SUPPORTED: Final = f"2.{TORCH_FROM[1]} to 2.{TORCH_BELOW[1] - 1}"


def check_torch_version(version: str, where: str = "this Python") -> None:
    """Refuse a torch that is missing or untried.

    Args:
        version: torch's version; empty where there is none.
        where: whose torch it is, for the message.

    Raises:
        UsageError: naming what was found and what is supported.
    """
    if not version:
        raise UsageError(f"{where} has no torch; {_SUPPORTED} is needed")
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None or not TORCH_FROM <= (int(match[1]), int(match[2])) < TORCH_BELOW:
        raise UsageError(f"torch {version} is not supported; {_SUPPORTED} is ({where})")
