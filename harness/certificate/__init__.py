"""The proof of a warm-up: schedules run, points reached, calls covered, and what is missing."""
