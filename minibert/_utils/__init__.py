"""Parts that all folders use: checks, files, tensors of torch, foreign names, warnings, the machine; NumPy at most."""

__all__: list[str] = []
