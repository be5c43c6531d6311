"""Which Hugging Face model is meant, and the word by which the user said so."""

from __future__ import annotations

from dataclasses import dataclass

from dflash_min.errors import UsageError


@dataclass(frozen=True)
class Named:
    """A Hugging Face model that a user has named."""

    name: str
    """A folder, or a name on the Hugging Face Hub, as transformers takes it."""
    word: str
    """The value of `--target`: the name itself, or `hf:` and the name."""

    def refused(self, reason: str) -> UsageError:
        """Return what says why it cannot be the target, for the caller to raise."""
        return UsageError(f"--target {self.word}: {reason}")

    def refused_drafter(self, what: str) -> UsageError:
        """Return what says that a drafter, or a folder of them, was named for its target."""
        return self.refused(
            f"{what}, not a target: give what `python -m dflash_min.pretrain` saved, "
            "or a Hugging Face model"
        )
