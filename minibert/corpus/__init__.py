"""Files of texts -> files of vectors, in bounded memory, resumable."""

__all__: list[str] = []
