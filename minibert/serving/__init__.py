"""The service: an engine that computes for many clients at once, and the protocols in front of it."""

__all__: list[str] = []
