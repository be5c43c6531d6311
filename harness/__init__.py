"""Watch, force and explain races of torch.compile called from several threads."""

__version__ = "0.1.0"

from harness import interrupts as _interrupts

if _interrupts.is_command():
    _interrupts.be_brief()
