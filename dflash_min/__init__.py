"""A minimal but complete DFlash drafter trainer that runs its targets and drafters as threads."""
