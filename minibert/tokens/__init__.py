"""The vectors of tokens and words, from any layers."""

__all__: list[str] = []
