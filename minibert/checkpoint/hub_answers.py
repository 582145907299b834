"""Checks of the names in a hub's answer, before huggingface_hub makes paths of them.

The client uses the tag of an answer (ETag) as the name of a file in its cache, and a commit or a hash as the name of a
folder or a file. It does not check them (version 2.4), so a hostile mirror, or an attacker in the network, could make
it write any file that the user may write. A check before the download would not be enough, because the client asks the
hub again. Therefore the check is made where the client reads the answer.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import re
from collections.abc import Iterator
from typing import Any

from minibert.checkpoint.time_limit import expect_bytes

__all__ = ["UnsafeAnswerError", "checked_answers"]

# The hub sends a SHA-1 or a SHA-256 in hex; mirrors send other tags. Windows takes the name "x." for "x".
_TAG = re.compile(r"[0-9a-zA-Z]([0-9a-zA-Z._-]{0,126}[0-9a-zA-Z])?")
_COMMIT = re.compile("[0-9a-f]{40}")
_HASH = re.compile("[0-9a-f]{64}")

# Only minibert's downloads are checked. For other users of the client in this process nothing changes.
_checking: contextvars.ContextVar[bool] = contextvars.ContextVar("checking", default=False)


class UnsafeAnswerError(Exception):
    """An answer of the hub holds a name that could lead out of the cache."""


@contextlib.contextmanager
def checked_answers() -> Iterator[None]:
    """Make huggingface_hub raise `UnsafeAnswerError`, within the block, for a name that could lead out of its cache."""
    _install()
    token = _checking.set(True)
    try:
        yield
    finally:
        _checking.reset(token)


@functools.cache
def _install() -> None:
    """Wrap the client's function that reads answers in the check; its downloads call it by its global name."""
    from huggingface_hub import file_download
    from huggingface_hub.constants import HUGGINGFACE_HEADER_X_REPO_COMMIT
    from huggingface_hub.errors import RemoteEntryNotFoundError

    read = file_download.get_hf_file_metadata

    @functools.wraps(read)
    def read_and_check(*arguments: Any, **options: Any) -> Any:
        try:
            metadata = read(*arguments, **options)
        except RemoteEntryNotFoundError as error:  # the client notes the absence under the commit
            _check("X-Repo-Commit", error.response.headers.get(HUGGINGFACE_HEADER_X_REPO_COMMIT), _COMMIT)
            raise
        _check("ETag", metadata.etag, _TAG)
        _check("X-Repo-Commit", metadata.commit_hash, _COMMIT)
        _check("X-Xet-Hash", getattr(metadata.xet_file_data, "file_hash", None), _HASH)
        expect_bytes(metadata.size)
        return metadata

    file_download.get_hf_file_metadata = read_and_check

    # Version 2.4 also takes tags from a list of files that an earlier `hf download` left in the cache.
    from_list = getattr(file_download, "_xet_file_metadata_from_tree_cache", None)
    if from_list is None:
        return

    @functools.wraps(from_list)
    def list_and_check(*arguments: Any, **options: Any) -> Any:
        found = from_list(*arguments, **options)
        if found is not None:
            _, tag, commit, *_ = found
            _check("ETag", tag, _TAG)
            _check("X-Repo-Commit", commit, _COMMIT)
        return found

    file_download._xet_file_metadata_from_tree_cache = list_and_check


def _check(header: str, value: str | None, expected: re.Pattern[str]) -> None:
    if _checking.get() and value is not None and not expected.fullmatch(value):
        shown = value if len(value) <= 80 else value[:77] + "..."
        raise UnsafeAnswerError(f"{header} {shown!a}")
