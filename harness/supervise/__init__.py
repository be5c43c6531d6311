"""Starts the watched program in a process of its own, waits for its end and reports on it."""
