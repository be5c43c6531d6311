"""Reads what a program left behind as text: tracebacks, logs, traces, dumps of stacks.

Each recogniser turns lines into facts (``facts``); ``recording`` turns the facts into the events
that a watched program would have written, so that the same causes judge both.
"""
