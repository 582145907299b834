"""The requests of `BertClient` to a service, over HTTP."""

from __future__ import annotations

import http.client
import ipaddress
import json
import re
import secrets
import urllib.parse
from collections.abc import Mapping
from typing import Any

import numpy as np

from minibert._utils.reporting import warn_caller
from minibert._utils.validation import brief

__all__ = ["RemoteEncoder", "is_machine", "service_listens"]

_PROBE_SECONDS = 30.0  # for a timeout of "for ever", because a program that listens can be silent for ever


def is_machine(name: str) -> bool:
    """Return whether a text can be the name or the address of a machine, without a port."""
    if not re.fullmatch(r"[\w.:%-]+", name):
        return False
    try:
        if ":" in name:
            ipaddress.IPv6Address(name)
        else:
            name.encode("idna")  # what a connection does, which raises a UnicodeError
    except ValueError:
        return False
    return True


def service_listens(host: str, port: int, timeout: float | None) -> bool:
    """Return whether `minibert serve` listens on a port; False if nothing listens there.

    Its route /livez needs no key, is answered while the models are loaded, and repeats the id of the request: other
    programs that have this route do not.

    Parameters
    ----------
    timeout : float, optional
        Seconds to wait for the answer; default: 30.

    Raises
    ------
    ConnectionError
        Another program listens there, or one that does not answer in time.
    """
    seconds = _PROBE_SECONDS if timeout is None else timeout
    connection = http.client.HTTPConnection(host, port, timeout=seconds)
    request_id = secrets.token_hex(8)
    try:
        try:
            connection.connect()
        except TimeoutError:  # it listens, but is stopped
            raise
        except OSError:
            return False
        connection.request("GET", "/livez", headers={"x-request-id": request_id})
        answer = connection.getresponse()  # its body is not read, because it can be endless
        if answer.status in (200, 503) and answer.headers.get("x-request-id") == request_id:
            return True
        found = f"its answer to GET /livez is {answer.status}, and not that of `minibert serve`"
    except TimeoutError:
        found = f"it did not answer in {seconds:g} seconds"
    except (OSError, http.client.HTTPException) as error:
        found = str(error)
    finally:
        connection.close()
    raise ConnectionError(
        f"a program that listens on port {port} of this machine does not answer as a service over HTTP does: "
        f"{found}. Give model= to compute in this process, or the port of `minibert serve`."
    )


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
        The URL is not one of HTTP, or has a character that must be written with %.
    """

    def __init__(self, url: str, timeout: float | None) -> None:
        try:
            parts = urllib.parse.urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise ValueError(f"ip={brief(url)} is not a URL: {error}.") from error
        if parts.scheme not in ("http", "https") or not host or not is_machine(host):
            raise ValueError(f"ip={brief(url)}; expected a machine, or a URL such as 'http://localhost:8080'.")
        if not re.fullmatch("[!-~]*", parts.path):
            raise ValueError(f"ip={brief(url)} is not a URL: its path has a character that must be written with %.")
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
            if status == 401:
                raise ValueError(
                    f"{self._url} answers 401: it wants an API key, which BertClient cannot send. Ask a service "
                    "without keys, or send the request to /encode with another client."
                )
            if isinstance(message, str):
                message = re.sub("^layers=", "pooling_layer=", message)  # the name that the caller typed
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
