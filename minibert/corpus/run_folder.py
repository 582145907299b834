"""The folder of an unfinished run, ``<output>.parts``: its lock, its manifest, and what else may be in it.

The folder holds

- ``lock``: the run that holds it may write here (see locks.py);
- ``manifest.json``: the manifest of the unfinished run, with its settings. If it exists, there is a run to resume;
- ``part-*`` and ``shards.jsonl``: the output as far as it is computed, and the journal of its shards (journal.py);
- ``standard-input``: a copy of the standard input, if that is an input.

Other programs use such names too: Spark and dask write ``part-00000.parquet``. So a run deletes only files with exactly
these names. It starts only in a folder in which every file comes from an earlier run: there is a manifest, or a lock of
minibert and no other files than leftovers with these names. A run writes its manifest before its parts.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Self

from minibert._utils.files import os_reason, write_whole
from minibert._utils.locks import FileLock, is_ours
from minibert.corpus.file_folder import listed
from minibert.corpus.manifest import is_sealed, manifest_path, outputs_of, seal, unseal, unseal_beside
from minibert.corpus.parts import Part

__all__ = ["JOURNAL", "MANIFEST", "RunFolder", "folder_of", "is_unfinished"]

JOURNAL = "shards.jsonl"
"""The name of the journal in the folder."""

MANIFEST = "manifest.json"
"""The name of the manifest in the folder. Beside the output it has the name of `manifest_path`."""

_LOCK, _STANDARD_INPUT = "lock", "standard-input"
_TEMPORARY = re.compile(r"\.minibert-[a-z0-9_]{8}")  # temporary files of write_whole
_BLOCK = 2**20  # bytes copied at a time


class RunFolder:
    """The folder of one run, a context manager that holds its lock. On exit without a manifest its files are deleted.

    Parameters
    ----------
    output : str
        The file or folder that the run makes, not a link. All other files are beside it.
    parts : sequence of Part
    is_folder : bool
        Whether the output is a folder. To start again, it must be deleted too.

    Attributes
    ----------
    output : str
    parts : tuple of Part
    path : Path
    to_delete : str
        What must be deleted to start again.

    Raises
    ------
    OSError
        The folder cannot be made, another process holds its lock, or a file that minibert did not write is in it or has
        the name of a second output.
    """

    def __init__(self, output: str, parts: Sequence[Part], *, is_folder: bool = False) -> None:
        self.output, self.parts, self.path = output, tuple(parts), folder_of(output)
        self.to_delete = f"{self.path} and {output}" if is_folder else str(self.path)

    def __enter__(self) -> Self:
        try:
            while True:
                self._make()
                # Another run may delete both just now, because it ends.
                with contextlib.suppress(FileNotFoundError):
                    self._lock = FileLock(self.path / _LOCK, self._refuse_strangers, waits=True)
                    return self
        except (FileExistsError, ValueError):  # the message is complete
            with contextlib.suppress(OSError):
                self.path.rmdir()  # only if it is empty, so it was made here
            raise
        except BlockingIOError as error:
            raise BlockingIOError(
                f"{self.output} is being written by {error}. Wait until that run has ended, stop it, or give another "
                "output."
            ) from error
        except OSError as error:
            raise OSError(f"{self.path} cannot be made: {os_reason(error)}.") from error

    def __exit__(self, *_: object) -> None:
        ended = not (self.path / MANIFEST).exists()
        if ended:
            self._clear()
        self._lock.release(delete=ended)
        with contextlib.suppress(OSError):
            if ended:
                self.path.rmdir()

    # -- what a run reads and writes here

    def manifest(self) -> dict[str, Any] | None:
        """Return the manifest of the unfinished run; None if no run has started.

        Raises
        ------
        ValueError
            The manifest is damaged.
        """
        file = self.path / MANIFEST
        if not file.exists():
            return None
        return unseal(file, f"Delete {self.to_delete} to start again.")

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        """Write the manifest of the unfinished run, or replace it."""
        with self.writing(self.path / MANIFEST):
            write_whole(self.path / MANIFEST, lambda file: file.write(seal(manifest)))

    def keep_standard_input(self, stream: Callable[[], BinaryIO]) -> str:
        """Copy the standard input into the folder, unless the unfinished run did so; return the copy's path."""
        copy = self.path / _STANDARD_INPUT
        if not (copy.exists() and (self.path / MANIFEST).exists()):
            with self.writing(copy):
                write_whole(copy, lambda file: _copy(stream(), file))
        return str(copy)

    def clear_temporary(self) -> None:
        """Delete what `write_whole` has left in a run that was killed."""
        for name in os.listdir(self.path):
            if _TEMPORARY.fullmatch(name) and _is_plain_file(self.path / name):
                with contextlib.suppress(OSError):
                    (self.path / name).unlink()

    @contextlib.contextmanager
    def writing(self, path: str | os.PathLike[str]) -> Iterator[None]:
        """Add the file, and how to continue, to the message of an OSError."""
        try:
            yield
        except OSError as error:
            reason = os_reason(error)
            message = reason if "cannot be written" in reason else f"{path} cannot be written: {reason}."
            if (self.path / MANIFEST).exists():
                message += (
                    f" Finished shards are kept in {self.path}. Once the file can be written, continue with "
                    "resume=True."
                )
            raise OSError(message) from error

    # -- whose files these are

    def _make(self) -> None:
        """Make the folder; raise if its name, or that of its lock, belongs to something else."""
        if self.path.is_symlink() or (self.path.exists() and not self.path.is_dir()):
            kind = "a link" if self.path.is_symlink() else "a file"
            raise FileExistsError(
                f"{self.path} is {kind}, but the run makes a folder of this name for its unfinished output. Move it "
                "elsewhere, or give another output."
            )
        self.path.mkdir(exist_ok=True)
        lock = self.path / _LOCK
        if os.path.lexists(lock) and not _is_plain_file(lock):
            self._refuse([_LOCK])

    def _refuse_strangers(self, lock: str | None) -> None:
        """Raise if a folder without a manifest holds files that do not come from a killed run.

        Parameters
        ----------
        lock : str, optional
            Content of the lock; None if there was no lock. A run makes its lock first and deletes it last.
        """
        names = sorted(os.listdir(self.path))
        if lock is None:
            strangers = [name for name in names if name != _LOCK]
        else:
            strangers = [name for name in names if not (is_ours(lock) and self._is_own(name))]
        if strangers and not is_sealed(self.path / MANIFEST):
            self._refuse(strangers)
        if not (self.path / MANIFEST).exists():
            self._refuse_outputs()

    def _refuse(self, strangers: Sequence[str]) -> None:
        raise FileExistsError(
            f"{self.path} is the folder for the unfinished run, but it holds other files: {listed(strangers)}. Move "
            "this folder elsewhere, or give another output."
        )

    def _refuse_outputs(self) -> None:
        """Raise if a file that the user did not name, such as the index, would be replaced and no run wrote it."""
        beside = Path(manifest_path(self.output))
        earlier: set[str] = set()
        if os.path.lexists(beside):
            earlier = {output["name"] for output in outputs_of(unseal_beside(beside))}
        for path in (Path(part.final) for part in self.parts if part.final not in (None, self.output)):
            if os.path.lexists(path) and (path.name not in earlier or not _is_plain_file(path)):
                raise FileExistsError(
                    f"{path} exists, and the run would replace it by a file beside {self.output}; but no manifest "
                    f"({beside.name}) says that minibert wrote it. Move it elsewhere, or give another output."
                )

    def _is_own(self, name: str) -> bool:
        """Return whether a run with these parts makes files of this name."""
        names = {_LOCK, MANIFEST, JOURNAL, _STANDARD_INPUT, *(part.name for part in self.parts)}
        return (name in names or _TEMPORARY.fullmatch(name) is not None) and _is_plain_file(self.path / name)

    def _clear(self) -> None:
        """Delete the files of runs, and no others. `release` deletes the lock last."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self.path):
                if name != _LOCK and self._is_own(name):
                    with contextlib.suppress(OSError):
                        (self.path / name).unlink()


def folder_of(output: str | os.PathLike[str]) -> Path:
    """Return the folder in which the run that makes a file keeps its unfinished output."""
    return Path(f"{os.path.realpath(output)}.parts")


def is_unfinished(output: str | os.PathLike[str]) -> bool:
    """Return whether there is a run to resume."""
    return is_sealed(folder_of(output) / MANIFEST)


def _is_plain_file(path: Path) -> bool:
    """Return whether a path is a regular file, not a link, folder, device or pipe; False if it does not exist."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def _copy(source: BinaryIO, target: BinaryIO) -> None:
    while block := source.read(_BLOCK):
        target.write(block)
