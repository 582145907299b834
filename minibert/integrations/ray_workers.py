"""The actors of a Ray cluster that compute the vectors of `embed_corpus`.

The driver, which is the process that runs `embed_corpus`, reads the texts and writes the files. An actor gets some
hundred texts of a shard, a piece, and returns their vectors. So only the driver needs the input and the output folder,
and its journal alone says what is done: a piece is computed again if its actor dies, and a shard is saved once. The
driver hands out pieces ahead of the shard that it saves next, so that the actors do not wait for it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import socket
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Self

import numpy as np

import minibert
from minibert._utils.validation import FloatArray, IntArray, brief, check_int, counted
from minibert.corpus.encoders import probe_vector
from minibert.integrations.ray import assigned_threads, import_ray, resolved_options
from minibert.integrations.ray_cluster import check_address, connect, first_lines, plan
from minibert.sentence.batching import distinct_longest_first, in_chunks
from minibert.sentence.encoding import EncodedTexts
from minibert.sentence.options import EncodeOptions
from minibert.sentence.sentence_transformers import SentenceTransformer

__all__ = ["RayWorkers"]

# Most texts of a piece, and the characters at which it ends before it has that many: some seconds of one core.
_TEXTS, _CHARACTERS = 1024, 2**17

# Pieces that an actor has at a time: one that it computes, and one that waits, so that it does not wait for the driver.
_PIECES_AHEAD = 2

# A piece is given up when this number of actors have died while they computed it.
_MOST_DEATHS = 5


_REPORT_SECONDS = 60.0  # between two messages that no actor has started


class RayWorkers:
    """The workers of a Ray cluster, for ``embed_corpus(..., workers=)``. A context manager that is connected inside.

    Parameters
    ----------
    model : str
        Name or folder of the model, the one that `embed_corpus` gets. A folder must exist on each machine.
    address : str, optional
        "host:port" of the cluster's head, or "local" to start Ray on this machine for this run. Default: RAY_ADDRESS,
        else the cluster to which this machine belongs, else "local".
    actors : int, optional
        Default: as many as the machines of the cluster have room for.
    num_threads : int, optional
        Threads of each actor, which are the CPUs that Ray reserves for it. Default: 4, or the CPUs of the smallest
        machine if these are fewer.
    report : callable
        Called with each problem, as a line of text.
    **model_options
        Further arguments of `SentenceTransformer`. The workers of a machine hold the weights once, unless
        ``shared_weights=False`` is given.

    Raises
    ------
    ImportError
        Ray is not installed.
    ValueError
        The address is not one, or no machine of the cluster has enough CPUs for an actor.
    OSError
        The address does not answer.
    """

    def __init__(
        self,
        model: str,
        *,
        address: str | None = None,
        actors: int | None = None,
        num_threads: int | None = None,
        report: Callable[[str], object] = print,
        **model_options: Any,
    ) -> None:
        # The working folder of a worker is another one.
        self._model = os.path.abspath(model) if os.path.isdir(model) else model
        self._report = report
        # The variables of this process may be missing on other machines.
        self._model_options = resolved_options(model_options, os.environ)
        self._address = check_address(address)
        self._actors = None if actors is None else check_int("actors", actors, 1)
        self._threads = None if num_threads is None else check_int("num_threads", num_threads, 1)
        self._ray = import_ray()
        self._pool: _Pool | None = None
        self._ours = False

    def __enter__(self) -> Self:
        self._ours = not self._ray.is_initialized()
        if self._ours:
            connect(self._ray, self._address, self._report)
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.stop()
        if self._ours:
            self._ray.shutdown()

    def start(self, options: EncodeOptions, probe: FloatArray, processor: str) -> _Pool:
        """Start the actors, which load their models while the caller reads; see `minibert.corpus.encoders.Workers`."""
        threads, actors = plan(self._ray, self._threads, self._actors)
        arguments = (self._model, self._model_options, vars(options))
        self._pool = _Pool(self._ray, arguments, probe, processor, threads=threads, actors=actors, report=self._report)
        return self._pool


# --- the actor --------------------------------------------------------------------------------------------------------


class _Worker:
    """What runs in an actor: a model, loaded when it is first needed, and the options of `encode`."""

    def __init__(self, model: str, model_options: Mapping[str, Any], encode_options: Mapping[str, Any]) -> None:
        self._name, self._model_options, self._options = model, model_options, EncodeOptions.of(encode_options)

    def describe(self) -> dict[str, Any]:
        """Load the model, and describe this process."""
        about = {"version": minibert.__version__, "host": socket.gethostname()}
        self._model = SentenceTransformer(self._name, num_threads=assigned_threads(), **self._model_options)
        about["processor"] = self._model.model.ops.processor()
        return {**about, "probe": probe_vector(self._model, self._options)}

    def encode(self, texts: list[str]) -> tuple[FloatArray, IntArray, IntArray]:
        """Compute n vectors (n, width), and for each text its tokens (n,) and how many of them were cut off (n,)."""
        found = next(self._model.encode_chunks(texts, chunk_size=len(texts), **vars(self._options)))
        return found.vectors, found.n_tokens, found.n_truncated


# --- the driver -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(eq=False)
class _Shard:
    """A shard of n texts: its distinct texts in pieces, and their results."""

    rows: IntArray  # for each text its index among the distinct ones
    texts_of: IntArray  # for each distinct text the number of equal texts
    results: list[tuple[FloatArray, IntArray, IntArray] | None]
    progress: Callable[[int], object]


@dataclasses.dataclass(eq=False)
class _Piece:
    """Some distinct texts of a shard, which one actor computes together."""

    shard: _Shard
    number: int
    texts: list[str]
    first: int
    deaths: int = 0


@dataclasses.dataclass(eq=False)
class _Actor:
    """An actor: its handle, and its pieces in the order in which it computes them."""

    handle: Any
    processor: str | None = None  # None until it has described itself
    pieces: list[_Piece] = dataclasses.field(default_factory=list)


class _Pool:
    """The actors, the pieces that wait, and those that are being computed: an `Encoder`."""

    def __init__(
        self,
        ray: Any,
        arguments: tuple[Any, ...],
        probe: FloatArray,
        processor: str,
        *,
        threads: int,
        actors: int,
        report: Callable[[str], object],
    ) -> None:
        self._ray, self._arguments, self._threads, self._report = ray, arguments, threads, report
        self._probe, self._processor = probe, processor
        self._class = ray.remote(_Worker).options(num_cpus=threads, max_restarts=0, max_task_retries=0)
        self._waiting: deque[_Piece] = deque()
        self._running: dict[Any, tuple[_Actor, _Piece | None]] = {}  # Ray's reference to a result -> whose it is
        self._actors: list[_Actor] = []
        self._names: set[str] = set()
        self._deaths = 0  # of actors since the last result
        self._size = actors
        for _ in range(actors):
            self._add()

    # -- Encoder

    def submit(self, texts: Sequence[str], progress: Callable[[int], object]) -> Callable[[], EncodedTexts | None]:
        """Queue n texts; equal texts are computed once, and texts of similar length together."""
        if not texts:
            return lambda: None
        chosen, rows = distinct_longest_first(texts)
        pieces = list(in_chunks((texts[index] for index in chosen), _TEXTS, len, _CHARACTERS))
        shard = _Shard(rows, np.bincount(rows), [None] * len(pieces), progress)
        first = 0
        for number, piece in enumerate(pieces):
            self._waiting.append(_Piece(shard, number, piece, first))
            first += len(piece)
        self._hand_out()
        return lambda: self._result(shard)

    def has_room(self) -> bool:
        """Return whether the actors have, or soon will have, less to do than they can hold."""
        self._collect(0)
        return len(self._waiting) + len(self._running) < 2 * _PIECES_AHEAD * self._size

    def processors(self) -> Collection[str]:
        """Return the names of the processors that have computed a piece."""
        return self._names

    def stop(self) -> None:
        """End the actors."""
        for actor in self._actors:
            self._kill(actor)

    # -- results

    def _result(self, shard: _Shard) -> EncodedTexts:
        while None in shard.results:
            if not self._collect(_REPORT_SECONDS) and all(actor.processor is None for actor in self._actors):
                free = int(self._ray.available_resources().get("CPU", 0))
                self._report(
                    f"No worker has started yet: each of the {self._size} needs {counted(self._threads, 'CPU')}, and "
                    f"{counted(free, 'CPU')} of the cluster {'is' if free == 1 else 'are'} free. The run waits."
                )
        parts = zip(*(result for result in shard.results if result is not None), strict=True)
        vectors, n_tokens, n_truncated = (np.concatenate(part)[shard.rows] for part in parts)
        return EncodedTexts(vectors, n_tokens, n_truncated, ())

    def _collect(self, seconds: float) -> bool:
        """Take the results that are there, waiting for the first; return whether there was one."""
        ready, _ = self._ray.wait([*self._running], num_returns=1, timeout=seconds) if self._running else ([], [])
        if ready:
            ready, _ = self._ray.wait([*self._running], num_returns=len(self._running), timeout=0)
        for reference in ready:
            if reference in self._running:  # an actor that died has taken its other pieces along
                self._take(reference)
        self._hand_out()
        return bool(ready)

    def _take(self, reference: Any) -> None:
        actor, piece = self._running[reference]
        errors = self._ray.exceptions
        try:
            result = self._ray.get(reference)
        except errors.RayTaskError as error:  # the worker's code raised it
            raise _as_ours(error.cause, piece) from error
        except errors.RayError as error:
            self._bury(actor, error)
            return
        del self._running[reference]
        if piece is None:
            self._check(result)
            actor.processor = result["processor"]
            return
        actor.pieces.remove(piece)
        self._deaths = 0
        self._names.add(str(actor.processor))
        # Copied, because the arrays of `ray.get` lie in Ray's shared memory, which is small.
        piece.shard.results[piece.number] = tuple(np.array(array) for array in result)  # type: ignore[assignment]
        piece.shard.progress(int(piece.shard.texts_of[piece.first : piece.first + len(piece.texts)].sum()))

    def _check(self, about: Mapping[str, Any]) -> None:
        """Raise if a worker would compute other vectors than this process."""
        host = about["host"]
        if about["version"] != minibert.__version__:
            raise ValueError(
                f"The worker on {host} has minibert {about['version']}, this process has {minibert.__version__}. "
                "Install the same wheel on all machines of the cluster."
            )
        # NumPy's ops name the kind of processor only, which does not decide their bits.
        same = about["processor"] == self._processor != platform.machine()
        if about["probe"].shape != self._probe.shape or not (
            np.array_equal(about["probe"], self._probe) if same else np.allclose(about["probe"], self._probe, atol=1e-4)
        ):
            raise ValueError(
                f"The worker on {host} computes another vector than this process for the same text, so its model "
                f"{brief(self._arguments[0])} is another one. Copy the same model files to all machines."
            )

    # -- actors

    def _add(self) -> None:
        actor = _Actor(self._class.remote(*self._arguments))
        self._actors.append(actor)
        self._running[actor.handle.describe.remote()] = actor, None

    def _hand_out(self) -> None:
        """Give waiting pieces to the actors that have the fewest."""
        for level in range(_PIECES_AHEAD):
            for actor in self._actors:
                if self._waiting and actor.processor is not None and len(actor.pieces) <= level:
                    piece = self._waiting.popleft()
                    actor.pieces.append(piece)
                    self._running[actor.handle.encode.remote(piece.texts)] = actor, piece

    def _bury(self, actor: _Actor, error: Exception) -> None:
        """Replace an actor that has died, and queue its pieces again, before all others."""
        self._running = {reference: whose for reference, whose in self._running.items() if whose[0] is not actor}
        self._actors.remove(actor)
        self._kill(actor)
        self._waiting.extendleft(reversed(actor.pieces))
        if "creation task" in str(error):  # its class could not be imported there
            raise OSError(
                f"A worker cannot import minibert. Install the wheel of minibert {minibert.__version__} on all "
                f"machines of the cluster. Ray says: {first_lines(error)}"
            )
        self._deaths += 1
        if actor.pieces:
            actor.pieces[0].deaths += 1  # it computed this one
        if (actor.pieces and actor.pieces[0].deaths >= _MOST_DEATHS) or self._deaths >= _MOST_DEATHS * (self._size + 1):
            what = "while they computed the same texts" if actor.pieces else "before they computed a text"
            raise OSError(
                f"{_MOST_DEATHS} workers or more died {what}. Often their memory was too small, or minibert is not "
                f"installed there; Ray says: {first_lines(error)}"
            )
        self._report(f"A worker died; another one computes its texts. Ray says: {first_lines(error)[:200]}")
        self._add()

    def _kill(self, actor: _Actor) -> None:
        with contextlib.suppress(Exception):  # it may be dead, and the cluster may be gone
            self._ray.kill(actor.handle)


def _as_ours(cause: BaseException, piece: _Piece | None) -> Exception:
    """Return the error of a worker as an error of this process."""
    doing = "load its model" if piece is None else "compute some texts"
    message = f"A worker could not {doing}: {first_lines(cause)}"
    for kind in (ValueError, TypeError, MemoryError):
        if isinstance(cause, kind):
            return kind(message)
    return OSError(message)
