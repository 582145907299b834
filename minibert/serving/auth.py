"""The keys that clients of the service must give."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from minibert._utils.files import os_reason, printable

_MOST_BYTES = 2**20  # of the file


class ApiKeys:
    """Keys from the command line and from a file; a request must have one of them.

    Parameters
    ----------
    keys : sequence of str
    path : str, optional
        A file with a key per line. Blank lines, and lines that begin with "#", are not keys.

    Raises
    ------
    TypeError
        `keys` is a str, or bytes.
    ValueError
        A key is empty, or has a space or a control character; there is no key; or the file is not text.
    OSError
        The file cannot be read.
    """

    def __init__(self, keys: Sequence[str] = (), path: str | None = None) -> None:
        if isinstance(keys, str | bytes):  # each of its letters would open the service
            raise TypeError(f"keys is a {type(keys).__name__}; expected a sequence of str, such as [key].")
        self._given, self._path = [_digest(key, "a key") for key in keys], path
        self.reload()

    def __len__(self) -> int:
        return len(self._digests)

    def reload(self) -> None:
        """Read the file again. If that fails, the keys stay as they were, and the error is raised."""
        digests = self._given + ([] if self._path is None else _read(self._path))
        if not digests:
            raise ValueError(f"{printable(self._path)} has no key; write a key per line." if self._path else "no keys.")
        self._digests = digests

    def accept(self, authorization: bytes) -> bool:
        """Return whether the header Authorization has a valid key, as ``Bearer KEY`` or as the key alone.

        All keys are compared, by their digests and in constant time, so that the time tells nothing about them.
        """
        scheme, _, rest = authorization.strip().partition(b" ")
        given = hashlib.sha256(rest.strip() if scheme.lower() == b"bearer" else authorization.strip()).digest()
        return sum(hmac.compare_digest(given, digest) for digest in self._digests) > 0


def _digest(key: str, where: str) -> bytes:
    """Return the digest of a key that a header can hold. The message of the error does not show the key."""
    if not key or not all("!" <= character <= "~" for character in key):
        raise ValueError(f"{where} is empty, or has a space or another character that a key cannot have.")
    return hashlib.sha256(key.encode()).digest()


def _read(path: str) -> list[bytes]:
    try:
        with open(path, "rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise OSError(f"the file of keys, {printable(path)}, cannot be read: {os_reason(error)}.") from error
    if len(content) > _MOST_BYTES:
        raise ValueError(f"{printable(path)} has more than {_MOST_BYTES} bytes; expected a key per line.")
    try:
        lines = [line.strip() for line in content.decode("utf-8-sig").splitlines()]
    except UnicodeDecodeError:
        raise ValueError(f"{printable(path)} is not UTF-8; expected a key per line.") from None
    return [
        _digest(line, f"line {number} of {printable(path)}")
        for number, line in enumerate(lines, 1)
        if line and not line.startswith("#")
    ]
