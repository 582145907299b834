"""Intermediate values by name: recorded, changed, saved. Traces wrap a model's ops; they need bert/ and _utils/."""
