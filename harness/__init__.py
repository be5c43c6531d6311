"""Watch, force and explain races of torch.compile called from several threads."""

__version__ = "0.1.0"
