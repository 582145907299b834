"""Parts that all folders use: argument checks, files, locks, warnings, progress, the machine. Imports NumPy at most."""

__all__: list[str] = []
