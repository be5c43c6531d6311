"""The frozen models that a drafter is trained for, and the built-in one of them."""
