"""The model of the BERT paper: config, weights, packed batch, ops with their definitions, forward pass. NumPy only."""
