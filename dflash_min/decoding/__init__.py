"""Text by speculative decoding, and the n-gram drafters to compare it with."""
