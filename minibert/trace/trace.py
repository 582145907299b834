"""`Trace`: the recorded values of one forward pass, by name; its files, and the report of an edit."""

from __future__ import annotations

import dataclasses
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from minibert._utils.files import check_format, check_output, parse_json, parse_npy, printable, write_whole
from minibert._utils.reporting import html_table
from minibert._utils.validation import FloatArray, IntArray, brief, check_int, counted, some_of
from minibert.bert.packed import PackedBatch
from minibert.bert.weights import Weights
from minibert.checkpoint.safetensors import safetensors_library
from minibert.trace.layout import Sizes
from minibert.trace.names import Names, Spec

if TYPE_CHECKING:
    from minibert.trace.page.document import Frame


_FORMAT = 1  # of the files
_SUFFIXES = (".npz", ".safetensors")
# The name of the header among the arrays of an .npz, and in the metadata of a safetensors file.
_HEADER = "minibert_trace"

# Rows of a table that is printed.
_SHOWN = 24


Value = FloatArray | list[FloatArray]
"""A recorded value as it is kept: rows of T tokens or of the sequences that show [CLS]; or an (A, S, S) for each."""


class Site(NamedTuple):
    """One value of one sequence.

    Parameters
    ----------
    name : str
    layer : int or None        None outside the layers
    sequence : int             its row in the padded batch
    columns : int ndarray      the column in the padded batch of each of its S tokens
    array : ndarray            (S, width), (A, S, S) for scores and probs, or (width,) for the values of [CLS] alone
    """

    name: str
    layer: int | None
    sequence: int
    columns: IntArray
    array: FloatArray


@dataclasses.dataclass(frozen=True)
class EditReport:
    """The changes that one item of ``edit=`` made.

    Parameters
    ----------
    pattern : str              its key
    description : str          the change, in words
    names : tuple of str       the names that the key means
    fired : int                how many values, of one name and one sequence each, it was applied to
    changed : int              how many numbers have other bits afterwards
    before_rms : float         root mean square of these values before the change
    change_rms : float         root mean square of the change
    """

    pattern: str
    description: str
    names: tuple[str, ...]
    fired: int
    changed: int
    before_rms: float
    change_rms: float


class Trace(Mapping[str, FloatArray]):
    """The recorded values of one forward pass: a mapping of names to arrays in padded form.

    ``trace[name]`` takes every name and alias of names.py, and ``trace[3, "probs"]`` a symbol of the table in a layer.
    It returns a new array each time, with zeros for masked tokens: (B, S, width), (B, A, S, S) for scores and probs, or
    (B, width) for the values of [CLS] alone. Iteration gives each recorded name of the table once, in the order of the
    forward pass.

    Attributes
    ----------
    batch : PackedBatch
        The inputs; in a trace from a file, all ids are 0.
    mask : bool ndarray of shape (B, S)
        True for tokens that were computed.
    output : the output of the model, or None for a trace from a file
    tokens : list of B lists of str, or None
        The tokens of each sequence that were computed, if ``tokens=`` was given.
    edits : tuple of EditReport
        One for each item of ``edit=``.
    activation : str or None
        The activation of the feed forward, one of the values of `ACTIVATIONS` (``minibert/bert/reference.py``); None
        for a trace from a file.
    """

    def __init__(
        self,
        names: Names,
        batch: PackedBatch,
        values: Mapping[str, Value],
        *,
        output: Any = None,
        tokens: Sequence[Sequence[str]] | None = None,
        edits: Sequence[EditReport] = (),
        weights: Weights | None = None,
    ) -> None:
        self._names = names
        self.batch = batch
        self._values = dict(values)
        self.mask: npt.NDArray[np.bool_] = batch.mask
        self.output = output
        self.tokens = None if tokens is None else [list(row) for row in tokens]
        self.edits = tuple(edits)
        self.activation = None if weights is None else weights.config.activation
        self._weights = weights

    def __getstate__(self) -> dict[str, Any]:
        """Leave the weights out of a pickle or a copy: they are the whole model."""
        return {**self.__dict__, "_weights": None}

    # --- the mapping --------------------------------------------------------------------------------------------------

    def __getitem__(self, key: str | tuple[int, str]) -> FloatArray:
        name, by_head = self._find(key)
        padded = self._padded(name)
        if by_head:
            heads = self._names.specs[name].num_heads
            return padded.reshape(*padded.shape[:2], heads, padded.shape[2] // heads)
        return padded

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        try:
            self._find(key)  # type: ignore[arg-type]
        except KeyError:
            return False
        return True

    def _find(self, key: str | tuple[int, str]) -> tuple[str, bool]:
        try:
            if isinstance(key, tuple) and len(key) == 2 and isinstance(key[1], str):
                layer = check_int("the layer", key[0], 0, max(0, self._names.sizes.num_hidden_layers - 1))
                key = self._names.symbol(layer, key[1])
            if not isinstance(key, str):
                raise TypeError(f"{brief(key)} is not a name; expected a str, or layer and symbol: trace[3, 'probs'].")
            name, by_head = self._names.resolve(key)
        except (TypeError, ValueError) as error:
            raise KeyError(str(error)) from None
        if name not in self._values:
            recorded = some_of(self.names, 4) or "nothing"
            raise KeyError(f"{name} was not recorded; recorded are {recorded}. Add it to record=.")
        return name, by_head

    def _padded(self, name: str) -> FloatArray:
        """Return a new padded array."""
        spec, value = self._names.specs[name], self._values[name]
        if isinstance(value, list):
            return self.batch.pad_pairs(value, spec.width)
        if spec.kind == "pooled":
            pooled = np.zeros((self.batch.num_sequences, spec.width), dtype=value.dtype)
            pooled[self.batch.has_result(self.sizes.reads_any)] = value
            return pooled
        return self.batch.pad(value) if len(value) < self.mask.size else self.batch.pad(value.copy())

    # --- other views --------------------------------------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        """The recorded names, in the order of the forward pass."""
        return tuple(self._values)

    @property
    def sizes(self) -> Sizes:
        """The sizes and parts of the model, and `num_layers`, the layer after which the forward pass stopped."""
        return self._names.sizes

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each recorded array, without making it."""
        return {name: self._names.specs[name].shape(*self.mask.shape) for name in self._values}

    @property
    def ids(self) -> list[IntArray] | None:
        """The token ids of each sequence that were computed; None for a trace from a file, and for inputs_embeds."""
        batch = self.batch
        if self.output is None or batch.inputs_embeds is not None:
            return None
        return [batch.token_ids[start:end] for start, end in pairwise(batch.cu_seqlens.tolist())]

    @property
    def nbytes(self) -> int:
        """The memory of the recorded values in bytes; padding takes none."""
        values = (value if isinstance(value, list) else [value] for value in self._values.values())
        return sum(array.nbytes for arrays in values for array in arrays)

    def sequence(self, index: int) -> dict[str, FloatArray]:
        """Return the values of one sequence without padding, by name; read-only arrays that share the trace's memory.

        They have the shapes (S, width), (A, S, S), or (width,). A sequence whose first token is masked does not have
        the values of [CLS].
        """
        values = {name: self.value_of(name, index) for name in self._values}
        return {name: value for name, value in values.items() if value is not None}

    def value_of(self, name: str, index: int) -> FloatArray | None:
        """Return one recorded value for sequence `index`, read-only; None for [CLS] if it is masked."""
        name, by_head = self._find(name)
        value, batch = self._values[name], self.batch
        index = check_int("index", index, -batch.num_sequences, batch.num_sequences - 1) % batch.num_sequences
        if isinstance(value, list):
            part = value[index].view()
        elif self._names.specs[name].kind == "pooled":
            rows = batch.has_result(self.sizes.reads_any)
            if not rows[index]:
                return None
            part = value[int(np.count_nonzero(rows[:index]))]
        else:
            part = value[batch.cu_seqlens[index] : batch.cu_seqlens[index + 1]]
        part.flags.writeable = False
        return part.reshape(len(part), self._names.specs[name].num_heads, -1) if by_head else part

    def output_map(self, layer: int) -> FloatArray | None:
        """Return the weight (H, H) of a layer's linear map after attention; None for a trace from a file or pickle."""
        return None if self._weights is None else self._weights.layers[layer].attention_output.weight

    def __repr__(self) -> str:
        rows = [f"  {name:{max(map(len, self))}}  {shape!s:20} RMS {rms}" for name, shape, rms in self._rows(_SHOWN)]
        more = [f"  ... and {len(self) - _SHOWN} more"] if len(self) > _SHOWN else []
        return "\n".join([self._title(), *rows, *more])

    def _repr_html_(self) -> str:
        return html_table(self._title(), ("name", "shape", "RMS"), self._rows(len(self)), len(self))

    def _title(self) -> str:
        batch = self.batch
        of = f"{counted(batch.num_tokens, 'token')} in {counted(batch.num_sequences, 'sequence')}"
        return f"Trace of {of}: {counted(len(self), 'name')}, {self.nbytes / 1e6:,.1f} MB"

    def _rows(self, most: int) -> Iterator[tuple[str, tuple[int, ...], str]]:
        for name, shape in islice(self.shapes.items(), most):
            value = self._values[name]
            arrays = value if isinstance(value, list) else [value]
            count = sum(array.size for array in arrays)
            squares = sum(float(np.square(array, dtype=np.float64).sum()) for array in arrays)
            yield name, shape, f"{np.sqrt(squares / max(count, 1)):.3g}"

    # --- the page -----------------------------------------------------------------------------------------------------

    def page(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Write one HTML file to look at the trace in a browser: the heads, their attention, each layer step by step.

        The file needs no other file and no network, and makes no request. It shows what was recorded.

        Parameters
        ----------
        path : str or path           ends in .html or .htm
        title, note : str            the name of the model, and a line below it
        sequences, layers, heads : int or several ints, optional
            What the page has; default: all of the trace. Negative ones count from the end.
        max_bytes : int
            A larger page is refused; default 5,000,000. Beyond a million probs the page has the largest of each row.
        parts : ndarray of shape (Sa, Sb), optional
            For a trace of two texts: ``minibert.inside.explain_similarity(model, a, b).parts``.
        guesses : Guesses, optional
            The words that a masked-LM head reads out of each hidden state; ``minibert inspect`` makes them.
        errors : list of (name, error in units, level), optional
            What a comparison with another implementation found for each value.
        vector : list of VectorStep, optional
            The steps from the last hidden states to the vector of each text:
            ``minibert.inside.sentences.vector_steps(model, texts).steps`` of a `SentenceTransformer`.

        Raises
        ------
        TypeError, ValueError
            An argument is wrong; the page would be larger than `max_bytes`, and the message says what to leave out; the
            trace holds nothing that the page shows.
        OSError
            The file cannot be written.
        """
        from minibert.trace.page.document import page

        check_output(path, (".html", ".htm"))
        html = page(self, **options).encode("utf-8")
        write_whole(path, lambda file: file.write(html))

    def show(self, *, height: int = 900, **options: Any) -> Frame:
        """Return the page for a notebook, `height` pixels high; the other arguments and errors are as for `page`."""
        from minibert.trace.page.document import Frame, page

        return Frame(page(self, **options), check_int("height", height, 100, 100_000))

    # --- files --------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the recorded values, the mask and the tokens into a file that ends in .npz or .safetensors.

        The file holds one padded array for each name, ``attention_mask`` (B, S), and a header in JSON with a format
        number. `output` is not written. The file gets its name when it is complete.

        Raises
        ------
        ValueError
            The name has another suffix.
        OSError
            The file cannot be written.
        """
        suffix = check_output(path, _SUFFIXES)
        header = {
            "format": _FORMAT,
            "sizes": dataclasses.asdict(self._names.sizes),
            "names": list(self._values),
            "tokens": self.tokens,
            "edits": [dataclasses.asdict(report) for report in self.edits],
        }
        arrays, text = {**self, "attention_mask": self.mask.astype(np.uint8)}, json.dumps(header, ensure_ascii=False)
        if suffix == ".npz":
            named: dict[str, Any] = {_HEADER: np.array(text), **arrays}
            write_whole(path, lambda file: np.savez(file, **named))
        else:
            write_whole(path, lambda file: file.write(safetensors_library().save(arrays, {_HEADER: text})))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file that `save` wrote; the `output` of the trace is None.

        Raises
        ------
        ValueError
            The file is damaged, is not a trace, or was written by a newer version of minibert.
        OSError
            The file cannot be read.
        """
        path = Path(path)
        name, suffix = printable(str(path)), path.suffix.lower()
        if suffix not in _SUFFIXES:
            raise ValueError(f"{name} must end in {' or '.join(_SUFFIXES)}: these are the formats of a trace.")
        content = path.read_bytes()
        try:
            arrays, text = (_read_npz if suffix == ".npz" else _read_safetensors)(content)
            header = dict(parse_json(text.encode(), "its header"))
            check_format(header, _FORMAT, "it")
            return cls._assembled(arrays, header)
        except (MemoryError, ImportError):
            raise
        except Exception as error:  # zipfile, zlib, NumPy and safetensors raise many types
            raise ValueError(f"{name} is not a whole trace ({error}). Expected a file of Trace.save.") from error

    @classmethod
    def _assembled(cls, arrays: dict[str, npt.NDArray[Any]], header: Mapping[str, Any]) -> Self:
        """Return the trace that the arrays and the header of a file hold."""
        names = Names(_checked_sizes(header["sizes"]))
        mask = arrays["attention_mask"]
        if mask.ndim != 2 or mask.dtype != np.uint8 or mask.max(initial=0) > 1:
            raise ValueError(f"attention_mask is {mask.dtype} of shape {mask.shape}; expected 0 and 1 of shape (B, S)")
        batch = PackedBatch.from_mask(mask.astype(np.bool_))
        if unknown := [name for name in header["names"] if name not in names.specs]:
            raise ValueError(f"{brief(unknown[0])} is not a name of its model")
        rows = batch.has_result(names.sizes.reads_any)
        values = {name: _packed(arrays[name], names.specs[name], batch, rows) for name in header["names"]}
        if {*arrays} != {*values, "attention_mask"}:
            raise ValueError("its arrays differ from the names in its header")
        if header["tokens"] is not None:
            check_tokens(header["tokens"], np.diff(batch.cu_seqlens))
        edits = [EditReport(**{**report, "names": tuple(report["names"])}) for report in header["edits"]]
        return cls(names, batch, values, tokens=header["tokens"], edits=edits)


# --- the content of files ---------------------------------------------------------------------------------------------


def _read_npz(content: bytes) -> tuple[dict[str, npt.NDArray[Any]], str]:
    import zipfile  # its import takes long

    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        # What is written is not compressed. So no entry can be larger than the file.
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
            raise ValueError("it is compressed")
        arrays = {name.removesuffix(".npy"): parse_npy(archive.read(name)) for name in archive.namelist()}
    return arrays, str(arrays.pop(_HEADER))


def _read_safetensors(content: bytes) -> tuple[dict[str, npt.NDArray[Any]], str]:
    arrays = safetensors_library().load(content)  # checks the header, the offsets and the length
    header = parse_json(content[8 : 8 + int.from_bytes(content[:8], "little")], "its header")
    return arrays, str(header["__metadata__"][_HEADER])


def _checked_sizes(sizes: Mapping[str, Any]) -> Sizes:
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in sizes.items()}
    checked = Sizes(**values)
    for name in (*(field.name for field in dataclasses.fields(checked)[:6]), "embedding_size"):
        check_int(name, checked.hidden_size if getattr(checked, name) is None else getattr(checked, name), 0, 2**31 - 1)
    check_int("num_layers", checked.num_layers, 0, checked.num_hidden_layers)
    if checked.num_hidden_layers > 10_000:
        raise ValueError(f"it has {checked.num_hidden_layers} layers")
    return checked


def _packed(array: npt.NDArray[Any], spec: Spec, batch: PackedBatch, rows: npt.NDArray[np.bool_]) -> Value:
    """Return the rows of a padded array that are not masked."""
    expected = spec.shape(*batch.mask.shape)
    if array.dtype not in (np.float32, np.float64) or array.shape != expected:
        raise ValueError(f"{spec.name} is {array.dtype} of shape {array.shape}; expected {expected}")
    if spec.kind == "tokens":
        return np.ascontiguousarray(array[batch.mask])
    if spec.kind == "pooled":
        return np.ascontiguousarray(array[rows])
    places = [np.flatnonzero(row) for row in batch.mask]
    return [np.ascontiguousarray(array[b][:, columns[:, None], columns]) for b, columns in enumerate(places)]


def check_tokens(tokens: object, lengths: IntArray) -> None:
    """Raise a ValueError if tokens are not one list of str for each sequence, of its length."""
    rows = list(tokens) if isinstance(tokens, list | tuple) else []
    fits = all(isinstance(row, list | tuple) and all(isinstance(token, str) for token in row) for row in rows)
    if not fits or [len(row) for row in rows] != lengths.tolist():
        raise ValueError(f"tokens={brief(tokens)}; expected lists of {brief(lengths.tolist())} str, one per sequence.")
