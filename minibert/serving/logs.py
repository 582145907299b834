"""The log of the service: lines without texts, written by a thread, so that a full pipe or disk delays nobody."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import sys
import threading
import time
from typing import Any

__all__ = ["LOG", "REQUESTS", "log_requests"]

LOG = logging.getLogger("minibert.serving")
REQUESTS = LOG.getChild("requests")
"""A record per request if its level is DEBUG; otherwise only of requests whose texts were cut."""

_MOST_LINES = 10_000  # that wait to be written; further ones are counted and dropped


def log_requests(*, as_json: bool) -> None:
    """Write the log of the service to the standard error.

    Parameters
    ----------
    as_json : bool
        True: a JSON object per request, without its texts. False: errors, and once per minute that texts were cut.
    """
    handler = _Writer()
    handler.setFormatter(_Lines(as_json))
    if not as_json:
        handler.addFilter(_OncePerMinute())
    LOG.handlers[:] = [handler]
    LOG.setLevel(logging.INFO)
    REQUESTS.setLevel(logging.DEBUG if as_json else logging.INFO)
    LOG.propagate = False


class _Lines(logging.Formatter):
    """A line per record: JSON, or a sentence."""

    def __init__(self, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = getattr(record, "request", {}) or {"message": super().format(record)}
        if self._as_json:
            return json.dumps({"time": round(record.created, 3), "level": record.levelname.lower(), **line})
        if "message" in line:
            return f"minibert: {line['message']}"
        return (
            f"minibert: {line['truncated']} of {line['texts']} texts of a request were cut (request "
            f"{line['request_id']}); further requests of this minute are not shown"
        )


class _OncePerMinute(logging.Filter):
    """Lets sentences pass, and of requests one per minute whose texts were cut."""

    def __init__(self) -> None:
        super().__init__()
        self._next = -1.0  # in seconds of a clock that nobody sets

    def filter(self, record: logging.LogRecord) -> bool:
        request = getattr(record, "request", None)
        if request is None:
            return True
        now = time.monotonic()
        if "truncated" not in request or now < self._next:
            return False
        self._next = now + 60
        return True


class _Writer(logging.Handler):
    """Writes lines to the standard error in a thread. A line that cannot be written is lost, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: queue.Queue[str] = queue.Queue(_MOST_LINES)
        self._dropped = 0
        threading.Thread(target=self._run, name="minibert-log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            self._dropped += 1

    def flush(self) -> None:
        """Wait until all lines are written, for a second at most."""
        end = time.monotonic() + 1
        while self._lines.unfinished_tasks and time.monotonic() < end:
            time.sleep(0.005)

    def _run(self) -> None:
        while True:
            line = self._lines.get()
            with contextlib.suppress(OSError, ValueError):
                if self._dropped:
                    dropped, self._dropped = self._dropped, 0
                    line += f"\nminibert: {dropped} lines of the log were dropped"
                _write(f"{line}\n")
            self._lines.task_done()


def _write(text: str) -> None:
    """Write to the standard error without its lock, which a thread that a full pipe stops would keep at the end."""
    try:
        number = sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):  # it is not a file
        sys.stderr.write(text)
        return
    rest = text.encode(errors="backslashreplace")
    while rest:
        rest = rest[os.write(number, rest) :]
