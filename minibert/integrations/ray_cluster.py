"""A Ray cluster: its address, the connection to it, and how many actors have room on its machines."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

from minibert._utils.files import os_reason
from minibert._utils.system import available_cores
from minibert._utils.validation import brief, counted

__all__ = ["check_address", "connect", "first_lines", "plan"]

_THREADS = 4  # most threads of an actor if the caller does not say

_STARTS = 3  # of Ray on this machine; on a busy one, its processes may not start in the time that it gives them
_ANSWER_SECONDS = 10.0  # until an address is taken to be wrong
# What a client of HTTP/2 sends first, and the frame (type 4) that both sides send next: RFC 9113, section 3.4.
_HTTP2_PREFACE, _HTTP2_SETTINGS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


def check_address(address: str | None) -> str | None:
    """Return an address as `connect` takes it, without one that of RAY_ADDRESS.

    Raises
    ------
    TypeError, ValueError
        It is not an address.
    """
    source = "address" if address else "RAY_ADDRESS"
    address = address or os.environ.get("RAY_ADDRESS") or None
    if address in (None, "local", "auto"):
        return None if address == "auto" else address
    if not isinstance(address, str):
        raise TypeError(f"{source}={brief(address)}; expected 'host:port', 'local' or None.")
    if "://" in address:
        raise ValueError(
            f"{source}={brief(address)} is that of Ray Client, which this does not use. Give 'host:port' of the "
            "cluster's head on a machine of the cluster, or start this program there with ray job submit."
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ValueError(f"{source}={brief(address)}; expected 'host:port' such as '10.0.0.1:6379', or 'local'.")
    return address


def connect(ray: Any, address: str | None, report: Callable[[str], object]) -> None:
    """Connect to a cluster, or start one on this machine. Further starts after one that failed are reported.

    Raises
    ------
    OSError
        The address does not answer.
    """
    if address is not None and address != "local":
        host, _, port = address.rpartition(":")
        try:
            _check_head((host.strip("[]"), int(port)))
        except OSError as error:
            raise OSError(
                f"No Ray cluster answers at {address}: {os_reason(error)}. Expected the address of its head, which "
                "ray status shows there."
            ) from error
    if address is None:
        try:
            ray.init(address="auto", log_to_driver=False, logging_level="error")
            return
        except ConnectionError:
            report("No Ray cluster runs on this machine, so Ray is started here for this run.")
            address = "local"
        except (Exception, SystemExit) as error:
            raise OSError(f"The Ray cluster of this machine cannot be used: {first_lines(error)}") from error
    local = {"num_cpus": available_cores(), "include_dashboard": False} if address == "local" else {}
    where = "this machine" if address == "local" else address
    for starts_left in reversed(range(_STARTS if address == "local" else 1)):
        try:
            ray.init(address=address, log_to_driver=False, logging_level="error", **local)
            return
        except (Exception, SystemExit) as error:  # Ray raises Exception itself, and ends the process in some cases
            if not starts_left:
                raise OSError(f"Ray cannot be used at {where}: {first_lines(error)}") from error
            report(f"Ray has not started on this machine, so it is started again. Ray says: {first_lines(error)}")
            ray.shutdown()


def _check_head(place: tuple[str, int]) -> None:
    """Raise an OSError if no HTTP/2 server answers, because Ray itself waits for minutes; its head is one (gRPC)."""
    with socket.create_connection(place, timeout=_ANSWER_SECONDS) as connection:
        if os.environ.get("RAY_USE_TLS", "0") != "0":
            return
        connection.settimeout(_ANSWER_SECONDS)
        connection.sendall(_HTTP2_PREFACE + _HTTP2_SETTINGS)
        answer = b""
        while len(answer) < len(_HTTP2_SETTINGS) and (more := connection.recv(len(_HTTP2_SETTINGS) - len(answer))):
            answer += more
    if answer[3:4] != _HTTP2_SETTINGS[3:4]:
        raise ConnectionError("what listens there is not Ray")


def plan(ray: Any, threads: int | None, actors: int | None) -> tuple[int, int]:
    """Return the threads of an actor and the number of actors, for the machines that the cluster has now."""
    cpus = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    cpus = [count for count in cpus if count > 0]
    chosen = min(_THREADS, *cpus, _THREADS) if threads is None else threads
    room = sum(count // chosen for count in cpus)
    if not room:
        most = counted(max(cpus, default=0), "CPU")
        raise ValueError(
            f"A worker with num_threads={chosen} does not fit: the largest machine of the Ray cluster has {most}. "
            "Give a smaller number."
        )
    return chosen, room if actors is None else actors


def first_lines(error: BaseException) -> str:
    """Return the parts of an error's text that say what has happened, in one line."""
    lines = [line.strip() for line in str(error).splitlines()]
    return " ".join([line for line in lines if line][:8])[:600] or type(error).__name__
