"""Shared weights: the large weights of a model in a file, which all processes of a machine map, packed for the kernels.

What        `choose_sharing` says whether weights are shared, by ``shared_weights=`` or MINIBERT_SHARED_WEIGHTS.
            `Recording` notes what a model is made of, and `Restored` makes it from the mapped arrays
Key         The SHA-256 of the checkpoint's files, so a checkpoint that was changed never gets the old weights; the
            sources of the kernels, the processor and the compute type. A digest is noted beside the weights, with the
            state of its file, because it would take longer than the rest. The state has the time of the last change,
            which the system sets, and no program can set back
Parts       "encoder" has the tables and the layers. All models with the same encoder map that file. A masked-LM head
            has a file of its own, because its decoder is large. Poolers and other heads are small, and are not shared
Failure     If the file cannot be written, each process has its own weights, and one warning says so
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol, cast

import numpy as np

import minibert
from minibert._utils.files import os_reason
from minibert._utils.mapped import shared_arrays
from minibert._utils.private_files import read_trusted, user_cache, write_trusted
from minibert._utils.reporting import warn_caller
from minibert._utils.validation import FloatArray
from minibert.bert.ops import PreparedLinear
from minibert.checkpoint.files import ModelFiles
from minibert.checkpoint.safetensors import StoredTensor, file_state
from minibert.errors import ModelFormatError

if TYPE_CHECKING:
    from minibert.kernels.packing import PackedLayout, PackedLinear, PackedWords

__all__ = ["Recording", "Restored", "Sharing", "Tensors", "shared_folder"]

# Is raised when the arrays of a part, or their names, change without a change in kernels/.
_FORMAT = 1

_SETTLED_SECONDS = 10


class Tensors(Protocol):
    """What `load_weights` makes weights of."""

    def array(self, names: list[str]) -> FloatArray:
        """Return the tensors with these names, stacked by rows."""

    def linear(self, paths: tuple[str, ...], shape: tuple[int, int]) -> PreparedLinear:
        """Return the linear maps of these modules, stacked to a weight of this shape."""

    def decoder(self, path: str, bias: str, word_embeddings: FloatArray) -> tuple[PreparedLinear, bool]:
        """Return the decoder of a masked-LM head, and whether its weight is the table of word embeddings."""


class Recording:
    """Tensors that are kept by name when they are asked for; see `Tensors`.

    Attributes
    ----------
    arrays : dict of str to ndarray
        What `Restored` needs.
    """

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors
        self.arrays: dict[str, FloatArray] = {}

    def array(self, names: list[str]) -> FloatArray:
        """Read and note tensors."""
        array = self.arrays[_name(names)] = self._tensors.array(names)
        return array

    def linear(self, paths: tuple[str, ...], shape: tuple[int, int]) -> PreparedLinear:
        """Read, pack and note a linear map."""
        return self._note(self._tensors.linear(paths, shape))

    def decoder(self, path: str, bias: str, word_embeddings: FloatArray) -> tuple[PreparedLinear, bool]:
        """Read, pack and note a decoder."""
        decoder, tied = self._tensors.decoder(path, bias, word_embeddings)
        self.arrays[f"{path}.tied"] = np.array([tied], np.float32)
        return self._note(decoder), tied

    def _note(self, linear: PreparedLinear) -> PreparedLinear:
        packed = cast("PackedLinear | PackedWords", linear)  # the kernels' `prepare` returned it
        name = _name(packed.paths)
        self.arrays |= {f"{name}.panels": packed.panels, f"{name}.bias": packed.bias}
        return linear


class Restored:
    """What `Recording` has noted; see `Tensors`."""

    def __init__(self, arrays: dict[str, FloatArray], layout: PackedLayout) -> None:
        self._arrays, self._layout = arrays, layout

    def array(self, names: list[str]) -> FloatArray:
        """Return noted tensors."""
        return self._arrays[_name(names)]

    def linear(self, paths: tuple[str, ...], shape: tuple[int, int]) -> PreparedLinear:
        """Return a noted linear map."""
        name = _name(paths)
        return self._layout.restore(paths, shape, self._arrays[f"{name}.panels"], self._arrays[f"{name}.bias"])

    def decoder(self, path: str, bias: str, word_embeddings: FloatArray) -> tuple[PreparedLinear, bool]:
        """Return a noted decoder."""
        V, H = word_embeddings.shape
        return self.linear((path,), (V, H)), bool(self._arrays[f"{path}.tied"][0])


def _name(parts: Iterable[str]) -> str:
    return " ".join(parts)


class Sharing:
    """The files of a compute type's packed weights.

    Parameters
    ----------
    layout : PackedLayout
    """

    def __init__(self, layout: PackedLayout, compute_type: str) -> None:
        self.layout = layout
        self._compute_type = compute_type
        self._digests: dict[Path, str] = {}

    def arrays(
        self,
        part: str,
        files: ModelFiles,
        tensors: Iterable[StoredTensor],
        make: Callable[[], dict[str, FloatArray]],
    ) -> dict[str, FloatArray] | None:
        """Map the arrays of a part of a model, which `make` makes if there is no file of them; None if that fails.

        Raises
        ------
        ModelFormatError
            A file of the checkpoint cannot be read, or has changed since `tensors` were listed.
        """
        folder = shared_folder()
        if folder is None:
            _warn_not_shared("the user does not have a home folder")
            return None
        states = {tensor.path: tensor.state for tensor in tensors}
        digests = [self._digest(folder, path, state) for path, state in sorted(states.items())]
        key = repr((_FORMAT, minibert.__version__, part, digests, self.layout.key))
        mode = 0o444 if all(_is_public(path) for path in states) else 0o400
        try:
            return shared_arrays(folder, key, make, title=f"{files.source}, {part}, {self._compute_type}", mode=mode)
        except OSError as error:
            _warn_not_shared(f"{folder}: {os_reason(error)}")
            return None

    def _digest(self, folder: Path, path: Path, state: tuple[int, ...]) -> str:
        """Return the SHA-256 of a file of the checkpoint, which must be in this state."""
        if path not in self._digests:
            try:
                with open(path, "rb", buffering=0) as file:
                    self._digests[path] = _noted_digest(folder, path, file)
                    unchanged = file_state(file) == state
            except OSError as error:
                raise ModelFormatError(f"{path} cannot be read: {os_reason(error)}.") from error
            if not unchanged:
                raise ModelFormatError(f"{path} changed while it was being read; load the model again.")
        return self._digests[path]


def _is_public(path: Path) -> bool:
    """Return whether every user may read a file: those who may not read a checkpoint may not read its weights either.

    A folder that others may not enter hides its files. Groups do not count, because the weights are those of the user's
    own group.
    """
    real = Path(os.path.realpath(path))
    with contextlib.suppress(OSError):
        return bool(real.stat().st_mode & 0o004) and all(folder.stat().st_mode & 0o001 for folder in real.parents)
    return False


def _noted_digest(folder: Path, path: Path, file: IO[bytes]) -> str:
    """Return the SHA-256 of an open file: the noted one, if the file has not changed since, else the computed one."""
    if sys.platform == "win32":  # its ctime is the time when the file was made
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    changed = os.fstat(file.fileno()).st_ctime_ns
    state = repr((os.path.realpath(path), *file_state(file), changed))
    name = hashlib.sha256(state.encode(errors="surrogateescape")).hexdigest()[:32] + ".digest"
    with contextlib.suppress(OSError):
        noted = read_trusted(folder, name).decode("ascii", "replace")
        if re.fullmatch("[0-9a-f]{64}", noted):
            return noted
    digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    # A file that was changed just now may change again within the same tick of the system's clock.
    if time.time_ns() - changed > _SETTLED_SECONDS * 10**9:
        with contextlib.suppress(OSError):  # without the note, the next load computes it again
            write_trusted(folder, name, [digest.encode()])
    return digest


def shared_folder() -> Path | None:
    """Return the folder of the files: in NUMBA_CACHE_DIR, as the compiled kernels, else in the user's cache."""
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        return Path(chosen) / "weights"
    users = user_cache()
    return None if users is None else users / "weights"


@functools.cache
def _warn_not_shared(reason: str) -> None:
    warn_caller(
        f"minibert's weights cannot be shared ({reason}), so this process has a copy of its own. The results are the "
        "same. Set NUMBA_CACHE_DIR to a folder to which only you can write.",
        RuntimeWarning,
    )
