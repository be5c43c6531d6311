"""The gate: a suite of scenarios and specs, run and compared with a committed baseline."""
