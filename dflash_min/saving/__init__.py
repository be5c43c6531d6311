"""What a run leaves on the disk: checkpoints, metrics, and how a saved run goes on."""
