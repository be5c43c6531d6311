"""What runs inside the watched process: standard library and torch only, relative imports only.

The parent puts this package into any environment by path, under a private name, so nothing here
may depend on where it was installed or on what else is there. torch is never imported first: the
probes wait for the program's own import.
"""
