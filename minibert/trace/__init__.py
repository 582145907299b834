"""Intermediate values by name: recorded, changed, saved. It wraps the ops of a model; needs bert/ and base/."""

__all__: list[str] = []
