"""The recording's format: what the child writes and everything else reads."""
