"""The model of the BERT paper: config, weights, packed batch, ops and their meaning, forward pass. NumPy only."""

__all__: list[str] = []
