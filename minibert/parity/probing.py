"""`probe`: inputs in which each known mistake is visible."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.files import make_folder, write_json, write_whole
from minibert._utils.validation import IntArray, check_int
from minibert.parity.subject import Subject

__all__ = ["FORMAT", "Probe", "probe", "row_labels"]

FORMAT = 1
"""The number of the format of probe.json."""

# First text, second text, what the row shows, and the most of its 24 tokens, because some vocabularies have few words.
# The width, the hidden size and the number of heads of most models differ, so a swapped axis does not fit by chance.
_ROWS = (
    ("The river bank was steep.", "Which bank lends money to a small shop, and why?", "a second segment", 24),
    ("A short text.", None, "padding on the right", 8),
    ("One token in the middle of this row is masked.", None, "a hole in the mask", 16),
    ("Padding on the left moves the words.", None, "padding on the left", 16),
    ("Café Zürich: ÀÉÎ, naïve 東京 x2!", None, "capitals, accents, Chinese characters", 20),
)
_WIDTH = 24
_LABEL = 40  # the most characters of a text that names a row
_NAMES = ("input_ids", "attention_mask", "token_type_ids")


@dataclasses.dataclass(frozen=True, eq=False)
class Probe:
    """Inputs of a model, and the texts that they were made from.

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
        """Write probe.json, probe.npz, probe.safetensors and texts.txt into a folder; return their paths.

        Raises
        ------
        TypeError, OSError
        """
        home = Path(make_folder(folder))
        rows = {name: array.tolist() for name, array in self.inputs.items()}
        content: dict[str, Any] = {"format": FORMAT, **rows, "texts": [list(pair) for pair in self.texts]}
        write_json(home / "probe.json", {**content, "shows": self.shows})
        write_whole(home / "probe.npz", lambda file: np.savez(file, **self.inputs))  # type: ignore[arg-type]
        _write_safetensors(home / "probe.safetensors", self.inputs)
        lines = "".join("\t".join(filter(None, pair)) + "\n" for pair in self.texts)
        write_whole(home / "texts.txt", lambda file: file.write(lines.encode()))
        return [str(home / name) for name in ("probe.json", "probe.npz", "probe.safetensors", "texts.txt")]


def probe(model: Any, *, tokenizer: Any = None, long: bool = False) -> Probe:
    """Make inputs in which known mistakes are visible: padding, a hole in the mask, a second segment, other letters.

    Parameters
    ----------
    model : SentenceTransformer, BertModel or a model with a head
    tokenizer : BertTokenizer, optional
        Default: that of a `SentenceTransformer`. Without one, the ids are made from a fixed seed.
    long : bool
        Add a row as long as the model allows.

    Returns
    -------
    Probe
    """
    subject = Subject.of(model)
    tokenizer = tokenizer if tokenizer is not None else subject.tokenizer
    config = subject.config
    most = config.max_position_embeddings
    width = min(_WIDTH, most)
    rows = [
        _ids(tokenizer, config, i, first, second, max(1, most_tokens * width // _WIDTH))
        for i, (first, second, _, most_tokens) in enumerate(_ROWS)
    ]
    texts: list[tuple[str, str | None]] = [(first, second) for first, second, _, _ in _ROWS]
    shows = [shown for _, _, shown, _ in _ROWS]
    if long:
        length = min(most, tokenizer.model_max_length if tokenizer is not None else most)
        text = " ".join([_ROWS[0][0]] * length)
        rows.append(_ids(tokenizer, config, len(rows), text, None, check_int("the length", length, 1)))
        texts.append((text, None))
        shows.append("the longest text")
        width = max(width, len(rows[-1][0]))
    pad = 0 if tokenizer is None else tokenizer.pad_token_id or 0
    ids = np.full((len(rows), width), pad, np.int64)
    mask, types = np.zeros_like(ids), np.zeros_like(ids)
    for i, (row, second) in enumerate(rows):
        first = width - len(row) if shows[i] == "padding on the left" else 0
        columns = slice(first, first + len(row))
        ids[i, columns], mask[i, columns], types[i, columns] = row, 1, second
        if shows[i] == "a hole in the mask" and len(row) > 4:
            mask[i, columns.start + len(row) // 2] = 0
    return Probe(ids, mask, types, texts, shows)


def row_labels(subject: Subject, mask: npt.NDArray[np.bool_], inputs: Mapping[str, Any]) -> list[str]:
    """Return what each row of the inputs is: what it shows, if they are those of `probe`, or the text of its ids."""
    ids = inputs.get("input_ids")
    if ids is None:
        return []
    made = probe(subject)
    if np.array_equal(made.input_ids, ids) and np.array_equal(made.attention_mask, mask):
        return made.shows
    if subject.tokenizer is None:
        return []
    texts = (subject.tokenizer.decode(row[shown].tolist()) for row, shown in zip(np.asarray(ids), mask, strict=True))
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
    return list(encoded["input_ids"]), [min(int(one), config.type_vocab_size - 1) for one in types]


def _write_safetensors(path: Path, arrays: dict[str, IntArray]) -> None:
    """Write int64 arrays; the format is that of huggingface/safetensors."""
    header: dict[str, Any] = {}
    end = 0
    for name, array in arrays.items():
        header[name] = {"dtype": "I64", "shape": list(array.shape), "data_offsets": [end, end + 8 * array.size]}
        end += 8 * array.size
    content = json.dumps(header, separators=(",", ":")).encode()
    content += b" " * (-len(content) % 8)
    values = b"".join(np.ascontiguousarray(array, "<i8").tobytes() for array in arrays.values())
    write_whole(path, lambda file: file.write(len(content).to_bytes(8, "little") + content + values))
