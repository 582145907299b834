"""Intermediate values by name: recorded, changed, saved. It wraps the ops of a model; needs bert/ and _utils/."""

__all__: list[str] = []
