"""The requests of `BertClient` to a service, over HTTP."""

from __future__ import annotations

import http.client
import json
import urllib.parse
from collections.abc import Mapping
from typing import Any

import numpy as np

from minibert.base.checks import brief
from minibert.base.warn import warn_caller

__all__ = ["RemoteEncoder", "service_listens"]

_PROBE_SECONDS = 5.0


def service_listens(host: str, port: int) -> bool:
    """Say if a service over HTTP listens on a port; False if nothing listens there.

    Raises
    ------
    ConnectionError
        A program listens there that does not answer to HTTP.
    """
    connection = http.client.HTTPConnection(host, port, timeout=_PROBE_SECONDS)
    try:
        try:
            connection.connect()
        except TimeoutError:  # it listens, but is stopped
            raise
        except OSError:
            return False
        connection.request("GET", "/livez")
        connection.getresponse().read()
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionError(
            f"a program that listens on port {port} of this machine does not answer as a service over HTTP does: "
            f"{error}. Give model= to compute in this process, or the port of `minibert serve`."
        ) from error
    finally:
        connection.close()
    return True


class RemoteEncoder:
    """A connection to the route /encode of a service, which is opened by the first request.

    Parameters
    ----------
    url : str
        Such as "http://localhost:8080". A path is put before the route.
    timeout : float, optional
        Seconds to wait for the service; default: for ever.

    Raises
    ------
    ValueError
        The URL is not one of HTTP.
    """

    def __init__(self, url: str, timeout: float | None) -> None:
        try:
            parts = urllib.parse.urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise ValueError(f"ip={brief(url)} is not a URL: {error}.") from error
        if parts.scheme not in ("http", "https") or not host:
            raise ValueError(f"ip={brief(url)}; expected a machine, or a URL such as 'http://localhost:8080'.")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._url, self._path = url, parts.path.rstrip("/") + "/encode"
        self._connection = kind(host, port, timeout=timeout)

    def encode(self, request: Mapping[str, Any]) -> tuple[Any, Any]:
        """Send a request; return the float32 vectors (B, width), and the tokens of each text if it asks for them.

        Raises
        ------
        ConnectionError, TimeoutError
            The service does not answer.
        ValueError
            It refuses the request; the message is its own.
        RuntimeError
            It cannot answer now.
        """
        body = json.dumps(request).encode()
        try:
            status, headers, content = self._post(body)
        except TimeoutError as error:
            self.close()
            raise TimeoutError(f"{self._url} did not answer in time; give a longer timeout, or fewer texts.") from error
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise ConnectionError(
                f"{self._url} does not answer: {error}. Is `minibert serve` running there?"
            ) from error
        try:
            answer = json.loads(content)
            if status == 200:
                vectors = np.array(answer["result"], dtype=np.float32)
        except (ValueError, KeyError, TypeError) as error:
            raise ConnectionError(f"{self._url} is not a service of bert-as-service's protocol.") from error
        if status != 200:
            message = answer.get("error") if isinstance(answer, dict) else None
            kind = RuntimeError if status == 429 or status >= 500 else ValueError
            raise kind(f"{self._url} answers {status}: {message or brief(answer)}")
        if (cut := headers.get("x-minibert-truncated")) is not None:
            which = "The text is" if len(vectors) == 1 else f"{cut} of {len(vectors)} texts are"
            warn_caller(f"{which} longer than the limit of the service's model and cut.")
        return vectors, answer.get("tokens")

    def _post(self, body: bytes) -> tuple[int, http.client.HTTPMessage, bytes]:
        headers = {"content-type": "application/json"}
        for last in (False, True):  # the service may have closed an idle connection
            fresh = self._connection.sock is None
            try:
                self._connection.request("POST", self._path, body, headers)
                response = self._connection.getresponse()
                return response.status, response.headers, response.read()
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                self.close()
                if last or fresh:
                    raise
        raise AssertionError

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
