"""The inputs of both implementations: `probe`, a file, or texts. The inputs and weights in a dump are checked here."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.files import check_format, make_folder, parse_json, printable, read_bytes, write_whole
from minibert._utils.validation import IntArray, brief, counted, some_of
from minibert.checkpoint.safetensors import safetensors_library
from minibert.errors import ModelFormatError
from minibert.models.inputs import INPUTS
from minibert.parity.diagnosis.mistake import Mistake
from minibert.parity.dumps import Array, NothingComparedError, read_dump
from minibert.parity.finding import Finding
from minibert.parity.llama_words import llama_mistake, words_of_ids
from minibert.parity.truth import HALF_PRECISIONS, InapplicableError, Padded, Subject, round_to
from minibert.tokenizer.batch import pad_rows
from minibert.trace.edits import copied_array

FORMAT = 1
"""The number of the format of probe.json."""

# First text, second text, what the row shows, and its most tokens, because some vocabularies have few words. The last
# row is longer than each known cut of texts (P4), and than local_attention (A13). The width, the hidden size and the
# number of heads of most models differ, so a swapped axis does not fit by chance.
_SHORT, _LONG = 24, 261
_SHOPS = " ".join(f"Shop {i} lends {7 * i} books." for i in range(80))
_ROWS = (
    ("The river bank was steep.", "Which bank lends money to a small shop, and why?", "a second segment", _SHORT),
    ("A short text.", None, "padding on the right", 8),
    ("One token in the middle of this row is masked.", None, "a hole in the mask", 16),
    ("Padding on the left moves the words.", None, "padding on the left", 16),
    (f"Café Zürich: ÀÉÎ, naïve 東京 x2! {_SHOPS}", None, "many tokens, accents, Chinese characters", _LONG),
)
_LABEL = 40  # the most characters of a text that names a row
_NAMES = ("input_ids", "attention_mask", "token_type_ids")


@dataclasses.dataclass(frozen=True, eq=False)
class Probe:
    """Inputs of a model, and the texts from which they were made.

    Parameters
    ----------
    input_ids, attention_mask, token_type_ids : int64 arrays (B, S)
    texts : list of (text, second text or None)
    shows : list of str       what each row is for
    """

    input_ids: IntArray
    attention_mask: IntArray
    token_type_ids: IntArray
    texts: list[tuple[str, str | None]]
    shows: list[str]

    @property
    def inputs(self) -> dict[str, IntArray]:
        """The inputs, as a model takes them: ``model(**probe.inputs)``."""
        return {name: getattr(self, name) for name in _NAMES}

    def save(self, folder: str | os.PathLike[str]) -> list[str]:
        """Write probe.json, probe.npz, probe.safetensors and texts.txt into a folder; return their paths."""
        library, home = safetensors_library(), Path(make_folder(folder))
        rows = {name: array.tolist() for name, array in self.inputs.items()}
        content: dict[str, Any] = {"format": FORMAT, **rows, "texts": [list(pair) for pair in self.texts]}
        content["shows"] = self.shows
        entries = (f'"{key}": {json.dumps(value, ensure_ascii=False)}' for key, value in content.items())
        text = "{" + ",\n".join(entries) + "}\n"
        write_whole(home / "probe.json", lambda file: file.write(text.encode()))
        write_whole(home / "probe.npz", lambda file: np.savez(file, **self.inputs))  # type: ignore[arg-type]
        write_whole(home / "probe.safetensors", lambda file: file.write(library.save(self.inputs)))
        lines = "".join("\t".join(filter(None, pair)) + "\n" for pair in self.texts)
        write_whole(home / "texts.txt", lambda file: file.write(lines.encode()))
        return [str(home / name) for name in ("probe.json", "probe.npz", "probe.safetensors", "texts.txt")]


def probe(model: Any, *, tokenizer: Any = None) -> Probe:
    """Make inputs in which known mistakes are visible: padding, a hole in the mask, a second segment, a long row.

    Parameters
    ----------
    model : SentenceTransformer, BertModel, a model with a head, or a folder or hub id
    tokenizer : BertTokenizer, optional
        Default: the tokenizer of a `SentenceTransformer`. Without a tokenizer, the ids are made from a fixed seed.
    """
    subject = Subject.of(model)
    tokenizer = tokenizer if tokenizer is not None else subject.tokenizer
    config = subject.config
    width = min(_LONG, config.max_length)
    short = min(_SHORT, width)  # the width of the rows but the last one
    rows = [
        _ids(tokenizer, config, i, first, second, width if tokens == _LONG else max(1, tokens * short // _SHORT))
        for i, (first, second, _, tokens) in enumerate(_ROWS)
    ]
    texts: list[tuple[str, str | None]] = [(first, second) for first, second, _, _ in _ROWS]
    shows = [purpose for _, _, purpose, _ in _ROWS]
    pad = (config.padding_id if tokenizer is None else tokenizer.pad_token_id) or 0
    ids = np.full((len(rows), width), pad, np.int64)
    mask, types = np.zeros_like(ids), np.zeros_like(ids)
    for i, (row, second) in enumerate(rows):
        first = short - len(row) if shows[i] == "padding on the left" else 0
        columns = slice(first, first + len(row))
        ids[i, columns], mask[i, columns], types[i, columns] = row, 1, second
        if shows[i] == "a hole in the mask" and len(row) > 4:
            mask[i, columns.start + len(row) // 2] = 0
    return Probe(ids, mask, types, texts, shows)


def row_labels(subject: Subject, mask: npt.NDArray[np.bool_], inputs: Mapping[str, Any]) -> list[str]:
    """Return a label for each row of the inputs: its purpose, if `probe` made it, or the text of its ids."""
    ids = inputs.get("input_ids")
    if ids is None:
        return []
    made = probe(subject)
    if np.array_equal(made.input_ids, ids) and np.array_equal(made.attention_mask, mask):
        return made.shows
    if subject.tokenizer is None:
        return []
    rows = np.asarray(ids)
    known = mask & (rows < len(subject.tokenizer))
    texts = (subject.tokenizer.decode(row[columns].tolist()) for row, columns in zip(rows, known, strict=True))
    return [repr(text if len(text) <= _LABEL else f"{text[:_LABEL]}...") for text in texts]


def _ids(
    tokenizer: Any, config: Any, index: int, first: str, second: str | None, width: int
) -> tuple[list[int], list[int]]:
    """Return the ids and token types of one row without padding."""
    if tokenizer is None:
        generator = np.random.Generator(np.random.PCG64(index))
        low = min(5, config.vocab_size - 1)
        types = [int(config.type_vocab_size > 1 and index == 0 and i >= width // 2) for i in range(width)]
        return generator.integers(low, config.vocab_size, width).tolist(), types
    encoded = tokenizer(first, second, truncation="longest_first", max_length=width)
    types = encoded.get("token_type_ids") or [0] * len(encoded["input_ids"])
    return list(encoded["input_ids"]), [min(int(token_type), config.type_vocab_size - 1) for token_type in types]


_LARGEST = 2**30


def read_inputs(inputs: Any, subject: Subject) -> dict[str, Any]:
    """Return inputs as keyword arguments of the model, without other keys of a mapping.

    Parameters
    ----------
    inputs : mapping or path
        With input_ids or inputs_embeds. A file is probe.json, another JSON object, .npz or .safetensors.
    subject : Subject
    """
    if isinstance(inputs, str | os.PathLike):
        inputs = _from_file(Path(os.fspath(inputs)))
    if not isinstance(inputs, Mapping):
        raise TypeError(f"inputs={brief(inputs)}; expected a mapping, as a tokenizer gives it, or the name of a file.")
    taken = {name: inputs[name] for name in INPUTS if name in inputs and inputs[name] is not None}
    if ("input_ids" in taken) == ("inputs_embeds" in taken):
        raise ValueError(
            f"inputs has {', '.join(map(brief, inputs)) or 'nothing'}; expected input_ids, and attention_mask and "
            "token_type_ids where they are not the usual ones."
        )
    arrays = {name: copied_array(name, value) for name, value in taken.items()}
    subject.pack(arrays)  # raises, with row and column
    return arrays


def _from_file(path: Path) -> dict[str, Any]:
    source = printable(str(path))
    try:
        if path.suffix.lower() != ".json":
            return dict(read_dump(path))
        content = parse_json(read_bytes(path, limit=_LARGEST), source)
        if not isinstance(content, dict):
            raise ModelFormatError(f"{source} holds {brief(content)}; expected an object with input_ids.")
        if "format" in content:
            check_format(content, FORMAT, source)
    except (ModelFormatError, NothingComparedError) as error:  # these are said of the model and of the dump only
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
        raise ValueError("The inputs are not known: the dump has no input_ids. Give inputs, or probe.json.")
    return dict(probe(subject).inputs)


def of_texts(subject: Subject, texts: Sequence[str | tuple[str, str]]) -> dict[str, Any]:
    """Tokenize texts, or pairs of texts, as the model's own tokenizer does."""
    if subject.tokenizer is None:
        raise ValueError("The model has no tokenizer; give its ids.")
    if not texts:
        raise ValueError("There are no texts.")
    rows = [subject.tokenizer(*((text,) if isinstance(text, str) else text), truncation=True) for text in texts]
    widths, side = [max(len(row["input_ids"]) for row in rows)] * len(rows), subject.tokenizer.padding_side
    fills = {"input_ids": subject.tokenizer.pad_token_id or 0}
    return {
        name: pad_rows([row[name] for row in rows], widths, side, fills.get(name, 0))
        for name in INPUTS
        if name in rows[0]
    }


def check_inputs(
    subject: Subject, inputs: Mapping[str, Any], dumped: Sequence[tuple[str, Array]]
) -> tuple[list[Finding], list[str]]:
    """Compare the dump's ids, mask, types and positions with the inputs or the defaults; return findings and notes."""
    padded = Padded.of(subject.config, inputs)
    usual = {"attention_mask": padded.mask, "token_type_ids": padded.types, "position_ids": padded.positions}
    arrays = {name: array for name, array in {**usual, **inputs}.items() if name != "inputs_embeds"}
    findings: list[Finding] = []
    notes: list[str] = []
    for name, ids in dumped:
        expected = np.broadcast_to(arrays[name], padded.ids.shape) if name in arrays else None
        if expected is not None and ids.shape in (expected.shape[1:], (1, *expected.shape[1:])):
            ids = np.broadcast_to(ids, expected.shape)
        if expected is None or (name not in inputs and ids.shape != expected.shape):
            notes.append(f"{name} in the dump, of shape {ids.shape}, was not compared: it is not in the inputs.")
            continue
        if name == "input_ids" and (llama := _of_llama(subject, padded, ids)) is not None:
            findings.append(Finding(llama.text, llama.id, (name,), 1.0, llama.remedy))
            continue
        if ids.shape != expected.shape:
            text = f"{name} has shape {ids.shape} in the dump; expected {expected.shape}."
        else:
            places = np.ones_like(padded.mask) if name == "attention_mask" else padded.mask
            rows = np.flatnonzero(((ids != expected) & places).any(axis=1))
            if not rows.size:
                continue
            text = f"{name} differ in row {rows[0]}. The port has {_row(subject, name, ids[rows[0]])}, expected "
            text += f"{_row(subject, name, expected[rows[0]])}."
        text += " So the values are not compared."
        findings.append(Finding(text, "", (name,), 0.0, "Give both the same integers, or repair the tokenizer first."))
    return findings, notes


def _of_llama(subject: Subject, right: Padded, ids: Array) -> Mistake | None:
    """Return the mistake of llama.cpp's normalizer, if all rows have its ids, where no word is [UNK] in the inputs."""
    if subject.tokenizer is None or len(ids) != len(right.ids):
        return None
    mistake = llama_mistake(subject.tokenizer)
    try:
        made = right if mistake.inputs is None else mistake.inputs(right, subject.config)
    except InapplicableError:
        return None
    unknown, pad = [subject.tokenizer.unk_token_id], subject.tokenizer.pad_token_id
    for row, mask, own in zip(made.ids, made.mask, ids, strict=True):
        if not np.isin(own, np.arange(len(subject.tokenizer))).all():
            return None
        wanted = words_of_ids(subject.tokenizer, row[mask].tolist())
        found = words_of_ids(subject.tokenizer, own[own != pad].tolist())
        if len(wanted) != len(found) or any(a not in (b, unknown) for a, b in zip(wanted, found, strict=True)):
            return None
    return mistake


def _row(subject: Subject, name: str, row: Array) -> str:
    tokenizer = subject.tokenizer
    listed = row[:24].tolist()
    if name == "input_ids" and tokenizer is not None and row.dtype.kind in "iu":
        known = [i if 0 <= i < len(tokenizer) else 0 for i in listed]
        return f"{listed} ({' '.join(tokenizer.convert_ids_to_tokens(known))})"
    return str(listed)


def check_weights(subject: Subject, dumped: Sequence[tuple[str, Array]]) -> tuple[list[Finding], list[str], list[str]]:
    """Compare the dump's weights with the checkpoint's, bit for bit; return findings, notes and warnings.

    A transposed weight is right in a library that stores it so. If it is square, its shape does not say which it is.
    """
    findings: list[Finding] = []
    weights = subject.weights()
    equal = 0
    transposed: list[str] = []
    square: list[str] = []
    for name, array in dumped:
        true = weights[name]
        if array.shape == true.shape and np.array_equal(array.astype(np.float32), true):
            equal += 1
            continue
        if array.T.shape == true.shape and np.array_equal(array.T.astype(np.float32), true):
            (square if array.shape == true.shape else transposed).append(name)
            continue
        text = f"{name} is not the checkpoint's"
        if array.shape != true.shape:
            text += f": its shape is {array.shape}, expected {true.shape}."
        else:
            numbers = array.astype(np.float32)
            rounded = [form for form in HALF_PRECISIONS if np.array_equal(numbers, round_to(form, true))]
            wrong = int(np.count_nonzero(numbers != true))
            text += f": it was rounded to {rounded[0]}." if rounded else f": {wrong:,} of {true.size:,} numbers differ."
        findings.append(Finding(text, "", (name,), 0.0, "Repair what loads the weights first."))
    notes = [f"These weights are stored transposed: {some_of(transposed)}."] if transposed else []
    notes += [f"{counted(equal, 'weight')} in the dump: equal to the checkpoint's."] if equal else []
    warnings = [
        f"{counted(len(square), 'square weight')} in the dump {'is' if len(square) == 1 else 'are'} transposed: "
        f"{some_of(square)}. That is right only if the port computes x W with them; x W^T is usual."
    ]
    return findings, notes, warnings if square else []
