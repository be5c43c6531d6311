"""The names that checkpoints are known by, for modules that do not import torch."""

from __future__ import annotations

from typing import Final

CHECKPOINTS: Final = "checkpoints"
"""Where a run folder has its checkpoints."""
RECORD: Final = "checkpoint.json"
"""What a checkpoint has beside its tensors."""
