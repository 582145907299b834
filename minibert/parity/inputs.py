"""The inputs that both implementations were given: from a mapping, a file, the probe, or texts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minibert._utils.files import check_format, parse_json, printable, read_bytes
from minibert._utils.validation import brief
from minibert.errors import ModelFormatError
from minibert.parity.dumps import NothingComparedError, read_dump
from minibert.parity.probing import FORMAT, probe
from minibert.parity.subject import INPUTS, Subject

__all__ = ["of_probe", "of_texts", "read_inputs"]

_LARGEST = 2**30

# Beside .json; ids have no place in files without a header.
_SUFFIXES = (".npz", ".npy", ".safetensors")


def read_inputs(inputs: Any, subject: Subject) -> dict[str, Any]:
    """Return inputs as keyword arguments of the model; other keys of a mapping are left out.

    Parameters
    ----------
    inputs : mapping or path
        With input_ids or inputs_embeds. A file is probe.json, another JSON object, .npz or .safetensors.
    subject : Subject

    Raises
    ------
    TypeError, ValueError, OSError
    """
    if isinstance(inputs, str | os.PathLike):
        inputs = _from_file(Path(os.fspath(inputs)))
    if not isinstance(inputs, Mapping):
        raise TypeError(
            f"inputs={brief(inputs)}; expected a mapping as the model takes it, such as tokenizer(texts, padding=True)"
            ", or the name of a file."
        )
    taken = {name: inputs[name] for name in INPUTS if name in inputs and inputs[name] is not None}
    if ("input_ids" in taken) == ("inputs_embeds" in taken):
        raise ValueError(
            f"inputs has {', '.join(map(brief, inputs)) or 'nothing'}; expected input_ids, and attention_mask and "
            "token_type_ids where they are not the usual ones."
        )
    arrays = {name: np.asarray(value) for name, value in taken.items()}
    subject.pack(arrays)  # raises, with row and column
    return arrays


def _from_file(path: Path) -> dict[str, Any]:
    if path.suffix.lower() != ".json":
        if path.suffix.lower() not in _SUFFIXES and not path.is_dir() and path.exists():
            raise ValueError(
                f"{printable(str(path))} is of an unknown kind; expected probe.json, or a .json, .npz or "
                ".safetensors file with input_ids."
            )
        try:
            return dict(read_dump(path))
        except NothingComparedError as error:  # that is said of the dump only
            raise ValueError(str(error)) from error
    shown = printable(str(path))
    try:
        content = parse_json(read_bytes(path, limit=_LARGEST), shown)
        if not isinstance(content, dict):
            raise ModelFormatError(f"{shown} holds {brief(content)}; expected an object with input_ids.")
        if "format" in content:
            check_format(content, FORMAT, shown)
    except ModelFormatError as error:
        raise ValueError(str(error)) from error
    return content


def of_probe(subject: Subject) -> dict[str, Any]:
    """Return the inputs of the probe.

    Raises
    ------
    ValueError
        There is no tokenizer, so the probe of the caller may be another one.
    """
    if subject.tokenizer is None:
        raise ValueError(
            "The inputs are not known: the dump has no input_ids. Give inputs, as the model takes them, or probe.json."
        )
    return dict(probe(subject).inputs)


def of_texts(subject: Subject, texts: Sequence[str | tuple[str, str]]) -> dict[str, Any]:
    """Tokenize texts, or pairs of texts, as the model's own tokenizer does.

    Raises
    ------
    ValueError
    """
    if subject.tokenizer is None:
        raise ValueError("The model has no tokenizer; give its ids.")
    rows = [subject.tokenizer(*((one,) if isinstance(one, str) else one), truncation=True) for one in texts]
    batch = subject.tokenizer.pad(rows, return_tensors="np")
    return {name: batch[name] for name in INPUTS if name in batch}
