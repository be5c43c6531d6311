"""The parsed, indexed events of one run. Nothing here imports torch."""
