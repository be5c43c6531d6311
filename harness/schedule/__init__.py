"""Schedules: orders in which threads come to points, asked for, searched for and replayed."""
