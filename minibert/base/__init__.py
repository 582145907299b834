"""What every part uses: checks of arguments, files, locks, warnings, progress, the machine. Imports NumPy at most."""

__all__: list[str] = []
