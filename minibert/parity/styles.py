"""The names of a model's values in the spelling of other projects, with shapes: what to dump."""

from __future__ import annotations

import re
from collections.abc import Callable

from minibert.parity.subject import Subject
from minibert.trace.names import TABLE, Entry

__all__ = ["STYLES", "listed_names"]

STYLES: dict[str, Callable[[str], bool]] = {
    "hidden_states": lambda name: name.startswith("hidden_states."),
    "onnx": lambda name: name.startswith("/"),
    "ggml": lambda name: bool(re.fullmatch(r"inp_\w+|[QKV]cur-\d+|ffn_\w+-\d+|result_embd", name)),
    "transformer_lens": lambda name: name.startswith(("blocks.", "embed.", "hook_")),
}
"""The styles, and which of the aliases belong to each."""


def listed_names(subject: Subject, style: str = "minibert") -> list[tuple[str, str]]:
    """Return the names of all values in the order of the forward pass, each with its shape in letters.

    With another style than "minibert" that is the first spelling in that style; values without one are left out.
    """
    shapes = {entry.path: entry for entries in TABLE.values() for entry in entries}
    rows = []
    for name, spec in subject.names.specs.items():
        entry = shapes[name if name in shapes else _pattern(name, spec.layer)]
        if style == "minibert":
            rows.append((name, _shape(subject, entry, False)))
            continue
        found = [alias for alias in subject.names.aliases(name) if STYLES[style](alias)]
        if found:
            rows.append((found[0], _shape(subject, entry, found[0] in _by_head(entry, spec.layer))))
    if subject.pipeline is not None and style in ("minibert", "hidden_states"):
        rows.append(("sentence_embedding", f"(B, {subject.pipeline.widths[-1]})"))
    return rows


def _pattern(name: str, layer: int | None) -> str:
    return name.replace(f"encoder.layer.{layer}", "encoder.layer.{i}", 1)


def _by_head(entry: Entry, layer: int | None) -> tuple[str, ...]:
    return tuple(name.format(i=layer) for name in entry.by_head)


def _shape(subject: Subject, entry: Entry, by_head: bool) -> str:
    config = subject.config
    sizes = {"H": config.hidden_size, "F": config.intermediate_size, "V": config.vocab_size}
    sizes |= {"A": config.num_attention_heads, "N": subject.names.sizes.num_labels}
    if by_head:
        return f"(B, S, {sizes['A']}, {config.hidden_size // config.num_attention_heads})"
    letters = entry.shape.strip("()").split(", ")
    return f"({', '.join(str(sizes.get(letter, letter)) for letter in letters)})"
