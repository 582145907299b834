"""Download a file that the user names by its URL."""

from __future__ import annotations

import os
from http.client import HTTPException, HTTPResponse
from typing import BinaryIO

from minibert.base.checks import brief
from minibert.base.files import make_folder, write_whole
from minibert.errors import DownloadError

__all__ = ["http_get"]

_BLOCK = 2**20
_SECONDS = 60  # without any bytes


class _BrokenError(Exception):
    """The transfer ended too early; unlike an OSError it does not mean that the file cannot be written."""


def http_get(url: str, path: str | os.PathLike[str]) -> None:
    """Download a file; its name appears when it is complete. A file that was there before is replaced.

    Parameters
    ----------
    url : str
        Begins with "http://" or "https://". Redirections are followed, as far as they begin so too.
    path : str or path
        Its folder is made if it does not exist.

    Raises
    ------
    ValueError
        The URL does not begin with "http://" or "https://".
    DownloadError
        The server does not give the file, or the transfer broke.
    OSError
        The file cannot be written.
    """
    from urllib.request import Request, urlopen  # here, because it takes longer to import than the rest

    if not isinstance(url, str) or not url.lower().startswith(("http://", "https://")):
        raise ValueError(f"url={brief(url)}; expected a str that begins with 'https://' or 'http://'.")
    target = os.path.expanduser(os.fspath(path))
    if os.path.dirname(target):
        make_folder(os.path.dirname(target))
    try:
        response = urlopen(Request(url, headers={"User-Agent": "minibert"}), timeout=_SECONDS)
    except (OSError, HTTPException, ValueError) as error:  # ValueError for an address that cannot be sent
        raise DownloadError(f"{url} was not downloaded: {error}. Check the address and the network.") from error
    with response:
        try:
            write_whole(target, lambda file: _copy(response, file))
        except _BrokenError as error:
            raise DownloadError(f"{url} was not downloaded: {error}. Try again.") from error


def _copy(response: HTTPResponse, file: BinaryIO) -> None:
    length = response.headers.get("Content-Length", "")
    received = 0
    while True:
        try:
            block = response.read(_BLOCK)
        except (OSError, HTTPException) as error:
            raise _BrokenError(str(error) or type(error).__name__) from error
        if not block:
            break
        received += len(block)
        file.write(block)
    if length.isdecimal() and received < int(length):
        raise _BrokenError(f"{received:,} of {int(length):,} bytes arrived")
