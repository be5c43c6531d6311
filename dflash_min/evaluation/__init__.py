"""Held-out figures in training, and the pictures and scalars made of them."""
