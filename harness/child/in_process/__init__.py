"""A watch that begins in a program that runs already, and what it leaves behind."""
