"""The shards of a run: from the first one that is appended to outputs with their final names.

While the run goes on, its shards are in the parts of its folder (run_folder.py), and a journal records them
(journal.py). When all shards are done, the parts get their final names, so no output is copied or read again. The
manifest gets its final name last: it is then the manifest beside the output.

If the output is a folder (file_folder.py), a file is made of the parts whenever they are large enough: first the file
gets its name, then a line in the journal records it, then the parts are emptied. A run that is killed between the first
two makes the file again, of the same shards; one that is killed between the last two finds the line.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Self

from minibert._utils.files import sync_folder
from minibert.corpus.file_folder import FileFolder, refuse_used
from minibert.corpus.journal import Journal
from minibert.corpus.manifest import FORMAT, check_outputs, is_sealed, manifest_path
from minibert.corpus.parts import Counts, Part
from minibert.corpus.run_folder import MANIFEST, RunFolder

__all__ = ["Shards"]


class Shards:
    """The shards of one run, a context manager. On exit it truncates what was written of an interrupted shard.

    Parameters
    ----------
    folder : RunFolder
        The folder of the run, whose lock is held.
    files : FileFolder, optional
        If the output is a folder: how its files are made of the parts. The parts do not have final names then.
    """

    def __init__(self, folder: RunFolder, files: FileFolder | None = None) -> None:
        self._folder, self._into = folder, files
        self._journal = Journal(folder, None if files is None else files.name)
        self._processors: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._journal.close()

    @property
    def counts(self) -> Counts:
        """The counts of the shards that are done."""
        return self._journal.counts

    def describe(self) -> str:
        """Return a sentence about the unfinished run: its folder and its number of shards."""
        done = self._journal.lines_of_shards()
        return f"{self._folder.path} holds an unfinished run with {done} shards done"

    # -- start and resume

    def refuse_used(self) -> None:
        """Raise a FileExistsError if the output is a folder that holds files; call this before `start`."""
        if self._into is not None:
            refuse_used(self._into.path, finished=is_sealed(self._beside))

    def start(self, manifest: dict[str, Any]) -> None:
        """Write the manifest and empty parts. From now on there is a run to resume."""
        self._folder.write_manifest({"format": FORMAT, **manifest})
        if self._into is not None:
            with self._folder.writing(self._folder.output):
                self._beside.unlink(missing_ok=True)  # of an earlier run, whose folder is gone
                self._into.path.mkdir(exist_ok=True)
        sync_folder(self._folder.path.parent)
        self._journal.start()
        sync_folder(self._folder.path)

    def resume(self, report: Callable[[str], object]) -> None:
        """Find the shards that are done and undamaged; truncate the parts after them.

        Parameters
        ----------
        report : callable
            Called with a message if a shard is damaged; it and those after it are computed again.

        Raises
        ------
        ValueError, OSError
            The output is a folder, and a file in it is missing, damaged, or from elsewhere.
        """
        self._folder.clear_temporary()
        self._journal.resume(report)
        if self._into is not None:
            self._into.refuse_changes(self._journal.files, self._way_on)
            with self._folder.writing(self._folder.output):
                self._into.path.mkdir(exist_ok=True)
        self._save_large_file()

    # -- one shard after the other

    def append(self, name: str, data: bytes | memoryview) -> None:
        """Append bytes of the next shard to the part with this name."""
        self._journal.append(name, data)

    def commit(self, counts: Counts) -> None:
        """Record the shard that was appended. After the return it is on the disk, and a crash cannot lose it."""
        self._journal.commit(counts)
        self._save_large_file()

    def add_processors(self, names: Collection[str]) -> None:
        """Record in the manifest the processors that computed, before a shard of theirs is recorded."""
        if self._processors.issuperset(names):
            return
        manifest = self._manifest()
        known = manifest.get("processors", [])
        self._processors = {*known, *names}
        if len(self._processors) > len(known):
            self._folder.write_manifest({**manifest, "processors": sorted(self._processors)})

    # -- finish

    def finish(self, assemble: Callable[[Path, Counts], Sequence[Part]] | None = None) -> tuple[Counts, int]:
        """Rename the parts, then the manifest, to their final names. An interrupted `finish` is continued.

        Parameters
        ----------
        assemble : callable, optional
            Folder, counts -> further parts, which it makes whole from those in the folder.

        Returns
        -------
        counts : Counts
            Counts of all shards.
        n_files : int
            Number of files of vectors.
        """
        path = self._folder.path
        manifest = self._manifest()
        if "finished" not in manifest:
            outputs = self._parts_to_rename(assemble) if self._into is None else self._last_files()
            manifest["finished"] = {"counts": dataclasses.asdict(self.counts), "outputs": outputs}
            self._folder.write_manifest(manifest)
        self._journal.close()
        outputs = manifest["finished"]["outputs"]
        waiting = {
            name: path.parent / output["name"]
            for name, output in outputs.items()
            if self._into is None and (path / name).exists()
        }
        # Files of an earlier run must not be beside a new output, because they do not belong to it.
        for stale in (self._beside, *list(waiting.values())[1:]):
            with self._folder.writing(stale):
                stale.unlink(missing_ok=True)
        for name, final in waiting.items():
            with self._folder.writing(final):
                os.replace(path / name, final)
        check_outputs(manifest, path.parent, self._way_on)
        with self._folder.writing(self._beside):
            os.replace(path / MANIFEST, self._beside)
        sync_folder(path.parent)  # before the folder is deleted, because a run could be finished from it
        return Counts(**manifest["finished"]["counts"]), 1 if self._into is None else len(outputs)

    def _parts_to_rename(self, assemble: Callable[[Path, Counts], Sequence[Part]] | None) -> dict[str, Any]:
        """Close the parts, and return those that have a final name, as the manifest names them."""
        self._journal.close()
        path = self._folder.path
        parts = [part for part in self._folder.parts if part.final is not None]
        with self._folder.writing(path):
            parts += [] if assemble is None else assemble(path, self.counts)
            return {
                part.name: {"name": os.path.basename(str(part.final)), "size": (path / part.name).stat().st_size}
                for part in parts
            }

    # -- the files of a folder

    def _save_large_file(self) -> None:
        """Make a file of what the parts hold, if it is large enough."""
        if self._into is not None and self._journal.in_parts.n_texts * self._into.row_bytes >= self._into.size:
            self._save_file(self._into)

    def _save_file(self, into: FileFolder) -> None:
        """Make a file of what the parts hold, record it, and empty the parts."""
        number = len(self._journal.files)
        with self._folder.writing(into.path / into.name(number)):
            record = into.add(number, self._folder.path, self._journal.in_parts)
        self._journal.add_file(record)

    def _last_files(self) -> dict[str, Any]:
        """Make the last file, and return the files of the folder, as the manifest names them.

        If there are no vectors, an empty file tells the columns.
        """
        assert self._into is not None
        if self._journal.in_parts.n_texts or not self._journal.files:
            self._save_file(self._into)
        folder = os.path.basename(self._folder.output)
        return {record["name"]: {**record, "name": f"{folder}/{record['name']}"} for record in self._journal.files}

    # -- internals

    @property
    def _beside(self) -> Path:
        """The manifest beside the output."""
        return Path(manifest_path(self._folder.output))

    @property
    def _way_on(self) -> str:
        """A sentence on what to do about an output that is missing or damaged."""
        if self._into is None:
            return f"Delete {self._folder.to_delete} to start again."
        # Somebody has moved or changed a file of the folder, which was finished before.
        return (
            "Put a copy of it there, then continue with resume=True. If there is no copy, delete "
            f"{self._folder.to_delete} to start again."
        )

    def _manifest(self) -> dict[str, Any]:
        manifest = self._folder.manifest()
        assert manifest is not None  # `start` has written it
        return manifest
