"""From a recording to a report: coverage, chains of findings, the verdict and the headline."""
