"""The sentences of a diagnosis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from minibert.bert.config import BertConfig
from minibert.parity.finding import Finding
from minibert.parity.mistake import Mistake
from minibert.parity.padded import Padded

__all__ = ["cannot_tell", "finding_of", "renamed", "separate_by", "unknown"]


def _layers(names: Sequence[str], num_layers: int) -> str:
    """Say where names are: "in all 6 layers", "in the embeddings and in layer 3"; nothing if `num_layers` is 0."""
    if not num_layers:
        return ""
    layers = sorted({int(name.split(".")[2]) for name in names if name.startswith("encoder.layer.")})
    if not layers:
        return ""
    first = "in the embeddings and " if any(name.startswith("embeddings") for name in names) else ""
    if len(layers) == num_layers > 1:
        return f", {first}in all {num_layers} layers"
    if len(layers) == 1:
        return f", {first}in layer {layers[0]}" + (" only" if num_layers > 1 and not first else "")
    return f", {first}in layers {', '.join(map(str, layers))}"


def _with_config(text: str, config: BertConfig) -> str:
    """Put the values of this model into a text of the catalogue, which is for any model."""
    values = {"hidden_act": config.hidden_act, "layer_norm_eps": f"{config.layer_norm_eps:g}"}
    for field, value in values.items():
        text = text.replace(f"config.json has another {field}", f"config.json has {value}")
    return text


def finding_of(
    mistake: Mistake,
    names: tuple[str, ...],
    explained: float,
    alternatives: Sequence[Mistake],
    separate: str,
    config: BertConfig,
    *,
    wide: bool,
) -> Finding:
    """Return the finding for a mistake that explains names; `wide` means that they do not tell the layer."""
    text = f"{mistake.text}{_layers(names, 0 if wide else config.num_hidden_layers)}"
    if alternatives:
        others = "; or ".join(other.text for other in alternatives[:5])
        text = f"This dump cannot tell which: {text}; or {others}"
    text = _with_config(text, config)
    ids = tuple(_id(other) for other in alternatives)
    return Finding(text, _id(mistake), names, explained, mistake.remedy, ids, separate)


def _id(mistake: Mistake) -> str:
    return mistake.id.split("@")[0]


def separate_by(mistake: Mistake, alternatives: Sequence[Mistake], inputs: Padded) -> str:
    """Say what would tell mistakes apart: a name to dump, or rows that the inputs do not have."""
    if not alternatives:
        return ""
    symbols = [set(one.symbols) for one in (mistake, *alternatives)]
    places = sorted(symbols[0].union(*symbols[1:]) - symbols[0].intersection(*symbols[1:]))
    if places:
        return f"Dump every name; {', '.join(places[:4])} of `minibert parity names` would tell."
    kinds = {one.kind for one in (mistake, *alternatives)}
    wanted = ["padding", "a hole in the mask"] if kinds & {"A5", "A6"} else []
    wanted += ["a second segment", "padding on the left"] if kinds & {"E1", "E3", "E5"} else []
    missing = [row for row in wanted or _ROWS if not _ROWS[row](inputs)]
    if missing:
        return f"Give a row with {', and one with '.join(missing)}, as the probe has them."
    return (
        "Give more and longer texts. If that does not tell them apart, they give the same numbers with this model, and "
        "repairing either one is enough."
    )


def _hidden(inputs: Padded, *, before: bool) -> bool:
    """Return whether a place is hidden that has visible places after it, and with `before` also before it."""
    count = inputs.mask.cumsum(axis=1)
    return bool((~inputs.mask & (count < count[:, -1:]) & ((count > 0) == before)).any())


# What rows of the inputs can show.
_ROWS: dict[str, Callable[[Padded], bool]] = {
    "a second segment": lambda inputs: bool((inputs.types * inputs.mask).any()),
    "padding": lambda inputs: not bool(inputs.mask.all()),
    "a hole in the mask": lambda inputs: _hidden(inputs, before=True),
    "padding on the left": lambda inputs: _hidden(inputs, before=False),
}


_DUMP_STATES = "Dump the hidden states, hidden_states.0 and the next ones."
_OTHER_MODEL = (
    "The values are far from the true ones: perhaps the port has other ids or another checkpoint. Compare input_ids "
    "and embeddings.word_embeddings.weight first."
)


def unknown(
    names: Sequence[str],
    facts: str,
    segments: Mapping[str, frozenset[str]],
    *,
    wide: bool,
    untried: Sequence[str] = (),
    far: bool = False,
) -> Finding:
    """Return the finding for names that no known mistake explains.

    `untried` are those for which several mistakes at once were not tried; `far` means that the error of the first one
    is more than half of the value.
    """
    first = names[0]
    more = f" and {len(names) - 1} other names" if len(names) > 1 else ""
    if wide:
        text = (
            f"{first} is wrong, and no single known mistake explains it. This dump cannot tell where it begins: "
            "there is no name before it. Several mistakes at once were not tried."
        )
        return Finding(text, "", tuple(names), 0.0, f"{_OTHER_MODEL} {_DUMP_STATES}" if far else _DUMP_STATES)
    where = "this op alone" if len(segments[first]) == 1 else f"one of the {len(segments[first])} ops before it"
    text = f"{first}{more}: wrong, though what goes in is right; {where}, with no known cause"
    remedy = "Compare the weights of this module with the checkpoint, then its formula with minibert/bert/reference.py."
    if len(segments[first]) > 1:
        missing = sorted(segments[first] - {first})
        remedy = f"Dump every name of this part, so that one op is left: {', '.join(missing[:3])}, ..."
    if "the activation is wrong" in facts:
        remedy = "Compare the formula of the activation with hidden_act of config.json, in minibert/bert/reference.py."
    if far and first.startswith("embeddings"):
        remedy = f"{_OTHER_MODEL} Then: {remedy}"
    text = f"{text} ({facts})" if facts else text
    if untried:
        more = f" and {len(untried) - 1} other names" if len(untried) > 1 else ""
        text += f". Several mistakes at once were not tried for {untried[0]}{more}"
    return Finding(text, "", tuple(names), 0.0, remedy)


def cannot_tell(names: Sequence[str], *, wide: bool) -> Finding:
    """Return the finding for small differences that no op makes alone."""
    if wide:
        text = f"{names[0]} is a little outside the budget. This dump cannot tell where that begins: "
        return Finding(f"{text}there is no name before it.", "", tuple(names), 0.0, _DUMP_STATES)
    text = (
        f"{names[0]} is outside the budget, but each op is right on the inputs that it was given: small differences "
        "add up, or the values of another run were dumped"
    )
    return Finding(text, "", tuple(names), 0.0, "Dump all names in one run, and compare the inputs of both sides.")


def renamed(found: Mapping[str, str], matching: Sequence[Mistake]) -> Finding:
    """Return the finding for arrays that are the values of other names."""
    name, source = next(iter(found.items()))
    more = f", and {len(found) - 1} other names are wrong in such a way" if len(found) > 1 else ""
    text = f"{name} holds the values of {source}{more}"
    if not matching:
        return Finding(text, "", tuple(found), 1.0, "Dump the output of the module with this name.")
    best, *others = matching
    ids = tuple(other.id for other in others)
    return Finding(
        f"{best.text}: {text}", best.id, tuple(found), 1.0, best.remedy, ids, "Dump more names." if ids else ""
    )
