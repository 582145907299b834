"""Texts -> vectors: the options of a call, its plan for a model, and the run of the plan over texts."""
