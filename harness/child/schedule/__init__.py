"""Holds: the same points that are recorded are where a schedule can make a thread wait."""
