"""The two errors of minibert's own; everything else is a TypeError or a ValueError at the boundary."""

__all__ = ["DownloadError", "ModelFormatError"]


class ModelFormatError(ValueError):
    """A model's file is missing, damaged, contradictory, or asks for something minibert does not implement.

    The message names the file, and the tensor or field in it; says what was found and what was expected.
    """


class DownloadError(OSError):
    """A model could not be fetched: no network, no such repository or revision, no permission, a broken transfer.

    The hub client's own exception is kept as ``__cause__``.
    """
