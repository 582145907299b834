"""The paper: config, weights, the packed batch, the ops and their meaning, the forward pass. NumPy only."""

__all__: list[str] = []
