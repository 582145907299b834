"""The two error classes of minibert. Errors about arguments are TypeError or ValueError."""

import re

__all__ = ["DownloadError", "ModelFormatError"]


class ModelFormatError(ValueError):
    """A model's file is missing, damaged or contradictory, or needs something that minibert does not implement.

    The message names the file, and the tensor or field in it. It says what was found and what was expected. Of a name
    longer than 500 characters, it has the beginning and the end.
    """

    def __init__(self, message: str) -> None:
        super().__init__(re.sub(r"(\S{300})\S{100,}(\S{100})", r"\1...\2", message))


class DownloadError(OSError):
    """A model or a file could not be fetched: no network, no such repository or file, no permission, a broken transfer.

    ``__cause__`` holds the exception of the hub's client or of the network.
    """
