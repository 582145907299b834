"""`Trace.page` and `Trace.show`: write a trace as one self-contained HTML file.

The file holds page.css, open.js, and compressed in one string: page.js, a description in JSON and the numbers of
data.py. Its content policy forbids every request, and every script and style but these three. The same trace gives
the same bytes.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from minibert._utils.validation import FloatArray, brief, check_indices, check_int, counted
from minibert.trace.layout import Layout
from minibert.trace.page import data
from minibert.trace.page.data import Choice, Guesses, Payload, visible
from minibert.trace.page.steps import VectorStep, steps

if TYPE_CHECKING:
    from minibert.trace.trace import Trace


_HARMLESS = bytes.maketrans(b"<&", b",.")


class Frame(NamedTuple):
    """A page inside a notebook, `height` pixels high; it is shown if it is the last value of a cell."""

    html: str
    height: int

    def __repr__(self) -> str:
        return f"<a page of {len(self.html.encode('utf-8')):,} bytes; a notebook shows it>"

    def _repr_html_(self) -> str:
        # The sandbox keeps the page away from the notebook; srcdoc needs no file and no server.
        return (
            f'<iframe title="trace" sandbox="allow-scripts allow-downloads" width="100%" height="{self.height}" '
            f'style="border: 0" srcdoc="{escape(self.html)}"></iframe>'
        )


def page(
    trace: Trace,
    *,
    title: str = "",
    note: str = "",
    sequences: Sequence[int] | int | None = None,
    layers: Sequence[int] | int | None = None,
    heads: Sequence[int] | int | None = None,
    max_bytes: int = 5_000_000,
    parts: FloatArray | None = None,
    guesses: Guesses | None = None,
    errors: Sequence[tuple[str, float, str]] = (),
    vector: Sequence[VectorStep] = (),
) -> str:
    """Return the page of a trace; `Trace.page` describes the arguments and errors."""
    max_bytes = check_int("max_bytes", max_bytes, 0)
    sizes = trace.sizes
    rows = [row for row in _chosen("sequences", sequences, len(trace.mask), "sequences") if trace.mask[row].any()]
    if not rows:
        raise ValueError("the trace holds no token, so there is nothing to show. Trace a text that is not empty.")
    layers = _chosen("layers", layers, sizes.num_layers, "layers")
    heads = _chosen("heads", heads, sizes.num_attention_heads, "attention heads")
    choice = Choice(layers, heads, len(rows))
    if any(len(step.values) != len(trace.mask) for step in vector):
        raise ValueError(f"vector has the vectors of other texts than the {len(trace.mask)} of the trace.")
    payload = Payload()
    texts = []
    for row in rows:
        texts.append(data.text_data(trace, row, choice, payload, guesses, vector))
        if sum(payload.sizes.values()) > 2 * max_bytes + 100_000:  # an estimate; the exact size is compared below
            raise ValueError(_too_large(payload, max_bytes))
    if not payload.sizes:
        raise ValueError("the trace holds no value that the page shows; record attentions.* and hidden_states.*.")
    description = {
        "format": 1,
        "model": {
            "layers": sizes.num_hidden_layers,
            "heads": sizes.num_attention_heads,
            "hidden": sizes.hidden_size,
            "embedding": sizes.embedding_size or sizes.hidden_size,
            "intermediate": sizes.intermediate_size,
            "vocabulary": sizes.vocab_size,
        },
        "layers": layers,
        "heads": heads,
        "measures": data.HEAD_MEASURES,
        "first": data.FIRST,
        "firstKeys": data.FIRST_KEYS,
        "edited": [f"{report.pattern}: {report.description}" for report in trace.edits],
        "wordPlaces": data.WORD_PLACES,
        "steps": _all_steps(trace, vector),
        "texts": texts,
        "parts": None if parts is None else payload.add("parts", "f24", _checked_parts(parts, texts)),
        "errors": [[visible(name), f"{units:.3g}", visible(level)] for name, units, level in errors],
        "script": _file("page.js"),
    }
    html = _document(trace, title, note, description, payload)
    if len(html.encode("utf-8")) > max_bytes:
        raise ValueError(_too_large(payload, max_bytes))
    return html


def _chosen(name: str, value: Any, count: int, what: str) -> list[int]:
    if value is None:
        return list(range(count))
    return sorted(set(check_indices(name, value, count, what=what, expected="an int, several, or None for all")))


def _checked_parts(parts: FloatArray, texts: list[dict[str, Any]]) -> FloatArray:
    expected = tuple(len(text["tokens"]) for text in texts)
    if not isinstance(parts, np.ndarray) or parts.shape != expected or len(expected) != 2:
        raise ValueError(f"parts={brief(parts)}; expected the .parts of explain_similarity, of shape {expected}.")
    return parts


def _too_large(payload: Payload, max_bytes: int) -> str:
    parts = sorted(payload.sizes.items(), key=lambda item: -item[1])
    return (
        f"the page would be larger than max_bytes={max_bytes:,}: "
        f"{', '.join(f'{name} {size / 1e6:.2f} MB' for name, size in parts)}. Leave something out, such as "
        "layers=[0, 1] or heads=[0, 1, 2], give fewer or shorter texts, or give a larger max_bytes."
    )


def _all_steps(trace: Trace, vector: Sequence[VectorStep]) -> dict[str, list[dict[str, Any]]]:
    """Return the steps of each part, in the order of the page."""
    keys = ("symbol", "name", "formula", "words", "lines", "shape")
    parts: dict[str, list[tuple[Any, ...]]] = {
        part: [
            (entry.symbol, entry.path, entry.formula, words, lines, entry.shape)
            for entry, words, lines in steps(entries, trace.activation)
        ]
        for part, entries in Layout.of(trace.sizes).parts().items()
    }
    if vector:
        parts["vector"] = [(*step[:5], f"(B, {len(step.values[0])})") for step in vector]
    return {part: [dict(zip(keys, step, strict=True)) for step in rows] for part, rows in parts.items()}


# --- the document -----------------------------------------------------------------------------------------------------


@functools.cache
def _file(name: str) -> str:
    """Return a file of this folder without indents, empty lines and comments, because these only take space."""
    text = (files("minibert.trace.page") / name).read_text(encoding="utf-8")
    text = re.sub(r"^\s*/\*.*?\*/$", "", text, flags=re.DOTALL | re.MULTILINE)
    if name.endswith(".css"):
        text = re.sub(r" *([{};,]) +| *([{};,])$", r"\1\2", text, flags=re.MULTILINE).replace(": ", ":")
    return "\n".join(filter(None, map(str.strip, text.splitlines())))


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _document(trace: Trace, title: str, note: str, description: dict[str, Any], payload: Payload) -> str:
    style, script = _file("page.css"), _file("open.js")
    # Base 85 takes 6 % less than base 64. Two characters are replaced, so that nothing in it is markup.
    packed = payload.compressed(json.dumps(description, separators=(",", ":"), allow_nan=False).encode("ascii"))
    numbers = base64.b85encode(packed).translate(_HARMLESS).decode("ascii")
    sizes = trace.sizes
    heading = visible(title) or f"{sizes.model_type.upper()} with {counted(sizes.num_hidden_layers, 'layer')}"
    parts = {
        "title": escape(heading),
        "note": escape(visible(note)),
        "policy": f"default-src 'none'; script-src '{_digest(script)}' '{_digest(description['script'])}'; "
        f"style-src '{_digest(style)}'; base-uri 'none'; form-action 'none'",
        "style": style,
        "payload": numbers,
        "script": script,
    }
    # One pass over the template, so that a part that looks like a place for another part stays as it is.
    pieces = _file("page.html").split("{{")
    return pieces[0] + "".join(parts[name] + rest for name, rest in (piece.split("}}", 1) for piece in pieces[1:]))
