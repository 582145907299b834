"""What is checked before a run over files begins or continues: names, inputs, and that it is the same run."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from minibert._utils.files import printable
from minibert.corpus.manifest import manifest_path, read_manifest
from minibert.corpus.readers import Source

__all__ = ["compare", "manifest_of_finished", "refuse_inputs", "refuse_names"]


def refuse_names(output: str, sources: Sequence[Source], settings: dict[str, Any]) -> None:
    """Refuse texts that the manifest cannot hold because it is UTF-8, mostly file names in another encoding."""
    names = [os.path.basename(output), *(source.path for source in sources), *settings.values()]
    for name in filter(lambda name: isinstance(name, str), names):
        try:
            name.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(
                f"{printable(name)} is not UTF-8, but the manifest is written in UTF-8; give another name."
            ) from None


def refuse_inputs(sources: Sequence[Source], outputs: Sequence[str]) -> None:
    """Refuse inputs that cannot be read twice, or that the outputs would overwrite."""
    for source in sources:
        path = source.path
        if path != "-" and os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
            raise ValueError(
                f"{source.name} is a pipe or a device, which cannot be read twice; give it as the standard input, '-', "
                "which is copied first."
            )
        for output in outputs:
            if os.path.exists(path) and os.path.exists(output) and os.path.samefile(path, output):
                raise ValueError(f"{output} is an input too, and would be overwritten; give another output.")


def manifest_of_finished(output: str, again: str) -> dict[str, Any]:
    """Return the manifest beside a finished output; raise a ValueError if it does not have one.

    Parameters
    ----------
    output : str
    again : str
        A sentence on how to compute it again, for the message.
    """
    manifest = read_manifest(output, again)
    if manifest is None:
        raise ValueError(
            f"There is nothing to resume: {output} exists, but not its manifest "
            f"{os.path.basename(manifest_path(output))}. {again}"
        )
    return manifest


def compare(theirs: dict[str, Any], mine: dict[str, Any], whose: str, way_on: str) -> None:
    """Raise if a run to resume, finished or not, differs from this one."""
    mine = json.loads(json.dumps(mine))
    if theirs.get("checksums") != mine["checksums"] or theirs.get("inputs") != mine["inputs"]:
        raise ValueError(f"{whose} has another input: {_difference(theirs, mine)}. {way_on}")
    then, now = theirs.get("settings", {}), mine["settings"]
    # The version first: another version may have other names and values of settings, and round differently.
    for name in sorted({*then, *now}, key=lambda name: (name != "minibert", name)):
        if then.get(name) != now.get(name):
            theirs_has, mine_has = (
                f"{name}={of_run[name]!r}" if name in of_run else f"the default {name}" for of_run in (then, now)
            )
            raise ValueError(f"{whose} has {theirs_has}, this one has {mine_has}. {way_on}")
    if len(theirs.get("probe", ())) != len(mine["probe"]) or not np.allclose(theirs["probe"], mine["probe"], atol=1e-4):
        raise ValueError(f"{whose} has another model, which gives another vector. {way_on}")


def _difference(theirs: dict[str, Any], mine: dict[str, Any]) -> str:
    names = [[source["name"] for source in one.get("inputs", ())] for one in (theirs, mine)]
    if names[0] != names[1]:
        return f"{', '.join(names[0])}, not {', '.join(names[1])}"
    changed = [
        name for name, then, now in zip(names[1], theirs["checksums"], mine["checksums"], strict=True) if then != now
    ]
    return f"{', '.join(changed)} has changed" if changed else "it was read in another way"
