"""Tensors written to a file in the form of safetensors."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import safetensors
import safetensors.torch

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor


def write(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors, contiguous and by their names, to a file.

    Raises:
        OSError: if it cannot be written. safetensors raises an error of its own then, which has the
            number of the system's only in its text.
    """
    try:
        # transformers refuses a file that does not say which framework's tensors it holds.
        safetensors.torch.save_file(dict(tensors), path, metadata={"format": "pt"})
    except safetensors.SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), _words(str(error)), str(path)) from error


def _words(text: str) -> str:
    return re.sub(r"^.*I/O error: | \(os error \d+\)", "", text)
