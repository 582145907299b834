"""Helpers for all folders: checks, files, torch tensors, foreign names, warnings, the machine; only NumPy is needed."""
