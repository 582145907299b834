"""The names of the values that one model computes: shapes, aliases, patterns. layout.py says what they mean."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias

from minibert._utils.validation import brief, counted
from minibert.bert.families import FAMILIES
from minibert.trace.layout import Entry, Layout, Sizes
from minibert.trace.table import LAST_STATE, STATE_BEFORE, TWO_MEANINGS

Record: TypeAlias = str | Iterable[str] | Callable[[str], bool]
"""Which names: a name, an alias or a pattern; several of these; or a function of the name that returns True or False.

In a pattern ``*`` stands for any text; between two other characters it does not match a dot, so
``encoder.layer.*.output`` names one module of each layer. ``?`` is one character, ``[0-3]`` one of these.
"""


_PREFIXES = (*(f"{family.field}." for family in FAMILIES.values()), "model.", "BertModel.", "0.auto_model.", "0.model.")


@dataclasses.dataclass(frozen=True)
class Spec:
    """One name of one model.

    Parameters
    ----------
    name : str
    layer : int or None        None before and after the layers
    kind : "tokens" (B, S, width), "pairs" (B, A, S, S; width is A) or "pooled" (B, width)
    width : int
    num_heads : int            head a owns the columns a D to (a + 1) D - 1, or, of pairs, the matrix a; 0: no heads
    """

    name: str
    layer: int | None
    kind: Literal["tokens", "pairs", "pooled"]
    width: int
    num_heads: int

    def shape(self, num_sequences: int, length: int) -> tuple[int, ...]:
        """Return the shape of the padded array."""
        if self.kind == "pairs":
            return num_sequences, self.width, length, length
        return (num_sequences, length, self.width) if self.kind == "tokens" else (num_sequences, self.width)


class Names:
    """The names of one model, in the order of the forward pass.

    Attributes
    ----------
    sizes : Sizes
    states : list of str               the names of the hidden states
    look_ups : tuple of str            the names of the arguments of `Ops.embed`, in order
    embedded : str                     the name of its result
    specs : dict of str to Spec        the names that are computed
    by_module : dict of str to str     a module with weights -> the name of its output
    after : dict of str to str         a linear map -> the name of its activation or of its sum with a residual
    """

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self._family, self._layout = FAMILIES[sizes.model_type], Layout.of(sizes)
        self.states = self._layout.states()
        self.look_ups = tuple(entry.path for entry in self._layout.embeddings if entry.kind == "rows")
        self.embedded = next(entry.path for entry in self._layout.embeddings if entry.kind == "sum")
        whole = sizes.num_layers == sizes.num_hidden_layers
        self.specs: dict[str, Spec] = {}
        self._not_computed: set[str] = set()
        self.by_module: dict[str, str] = {}
        self.after: dict[str, str] = {}
        self._aliases: dict[str, tuple[str, bool]] = {}
        before = ("", "")
        for layer, entry in self._layout.rows():
            name = entry.path.format(i=layer)
            if whole or entry in self._layout.embeddings or (layer is not None and layer < sizes.num_layers):
                self.specs[name] = self._spec(name, layer, entry)
            else:
                self._not_computed.add(name)
            if entry.module:
                self.by_module[entry.module.format(i=layer)] = name
            if before[0] == "linear" and entry.kind in ("activation", "sum"):
                self.after[before[1]] = name
            before = entry.kind, name
            for by_head, aliases in ((False, entry.aliases), (True, entry.by_head)):
                self._aliases |= {alias.format(i=layer): (name, by_head) for alias in aliases}
        self._add_states()
        self._add_head()
        modules = [*self.by_module, *self._identities()]
        if self._family.shared_layers:  # a module's own path does not say of which layer its value is
            modules = [module for module in modules if not module.startswith("encoder.layer.")]
        own = {module: self._family.own_path(module, sizes.head) for module in modules}
        if self._family.class_name == "Esm":  # the output of its decoder is without the bias
            own.pop("cls.predictions.decoder", None)
        self._aliases |= {
            path: self._aliases.get(module, (self.by_module.get(module, ""), False))
            for module, path in own.items()
            if path != module and path not in self.specs
        }

    def __reduce__(self) -> tuple[type[Names], tuple[Sizes]]:
        """Pickle the sizes alone, because all the rest follows from them."""
        return Names, (self.sizes,)

    def _identities(self) -> dict[str, str]:
        """Return the LayerNorms that a layer does not have, which change nothing in transformers: module -> x."""
        modules = [path for path in self._family.modules if "{i}" in path and path.endswith("LayerNorm")]
        every = ((path.format(i=i), x) for i, x in enumerate(self.states[:-1]) for path in modules)
        return {module: x for module, x in every if module not in self.by_module}

    def _add_states(self) -> None:
        """Add the names of hidden states that depend on their neighbours, and those of the inputs of LayerNorms."""
        for i, state in enumerate(self.states[:-1]):
            first = self._layout.layer(i)[0]
            inputs = (*STATE_BEFORE[:2], f"{first.module}.input") if first.kind == "norm" else STATE_BEFORE
            self._aliases |= {alias.format(i=i): (state, False) for alias in inputs}
        for module, state in self._identities().items():
            self._aliases |= dict.fromkeys((module, f"{module}.input"), (state, False))
        for entry in self._layout.final:
            self._aliases[f"{entry.module}.input"] = (f"encoder.layer.{self.sizes.num_hidden_layers - 1}", False)
        for i, state in enumerate(self.states):
            self._aliases[f"hidden_states.{i}"] = (state, False)
        self._aliases |= dict.fromkeys(LAST_STATE, (self.states[-1], False))
        if self._layout.pooler:
            self._aliases["pooler.input"] = (self.states[-1], False)

    def _add_head(self) -> None:
        """Add the names of what the modules of a head read, and of the logits."""
        head = self._layout.head
        paths = {entry.symbol: entry.path for entry in (*self._layout.pooler, *head)} | {"x": self.states[-1]}
        for entry in head:
            if entry.operand == entry.needs[0]:  # else it reads one row of each sequence
                self._aliases[f"{entry.path}.input"] = (paths[entry.needs[0]], False)
        if [entry.path for entry in head] == ["classifier"] and "classifier.input" in self._aliases:
            self._aliases["dropout"] = self._aliases["classifier.input"]
        if head and self.sizes.head != "BertForPreTraining":  # it has logits of two kinds
            self._aliases["logits"] = (head[-1].path, False)

    def _spec(self, name: str, layer: int | None, entry: Entry) -> Spec:
        letters = entry.shape.strip("()").split(", ")
        sizes = self.sizes
        widths = {"H": sizes.hidden_size, "F": sizes.intermediate_size, "V": sizes.vocab_size, "N": sizes.num_labels}
        widths["I"] = sizes.prediction_head_size or 0
        widths["E"] = sizes.embedding_size or sizes.hidden_size
        widths["G"] = (sizes.num_key_value_heads or 0) * (sizes.hidden_size // sizes.num_attention_heads)
        if letters == ["B", "A", "S", "S"]:
            return Spec(name, layer, "pairs", sizes.num_attention_heads, sizes.num_attention_heads)
        width = widths[letters[-1]] if letters[-1] in widths else int(letters[-1])
        num_heads = width * sizes.num_attention_heads // sizes.hidden_size if entry.by_head else 0
        return Spec(name, layer, "tokens" if len(letters) == 3 else "pooled", width, num_heads)

    @classmethod
    @functools.lru_cache(maxsize=16)
    def of(cls, sizes: Sizes) -> Names:
        """Return the names of a model; equal sizes give the same object, because making it takes a millisecond."""
        return cls(sizes)

    def aliases(self, name: str) -> tuple[str, ...]:
        """Return the other spellings of a name."""
        return tuple(alias for alias, (canonical, _) in self._aliases.items() if canonical == name)

    def resolve(self, name: str) -> tuple[str, bool]:
        """Return the table's name for a name or an alias, and whether the alias has the shape (B, S, A, D).

        Raises
        ------
        ValueError
            The model does not have it, or it is not computed; the message lists the nearest names.
        """
        resolved = self.find(name)
        if resolved is not None:
            return resolved
        short = _without_prefix(name)
        raise ValueError(self._complaint(name, short, self._aliases.get(short, (short,))[0] in self._not_computed))

    def find(self, name: str) -> tuple[str, bool] | None:
        """Return what `resolve` returns; None if the model does not compute a value with this name."""
        short = _without_prefix(name)
        canonical, by_head = self._aliases.get(short, (short, False))
        return (canonical, by_head) if canonical in self.specs else None

    @functools.lru_cache(maxsize=1024)  # noqa: B019  # a search takes as long as the forward of a few tokens
    def match(self, pattern: str) -> tuple[str, ...]:
        """Return the table's names for a name, an alias or a pattern, in the order of the forward pass.

        Raises
        ------
        ValueError
            There are none; the message lists the nearest names.
        """
        short = _without_prefix(pattern)
        if not re.search(r"[*?[]", short):
            return (self.resolve(short)[0],)
        regex = _compile(short)
        names = {name for name in (*self.specs, *self._not_computed) if regex.fullmatch(name)}
        # "encoder.layer.3.*" does not mean the input of layer 3, because that is the output of layer 2.
        inputs = short.endswith("input")
        names |= {
            name
            for alias, (name, _) in self._aliases.items()
            if (inputs or not alias.endswith(".input")) and regex.fullmatch(alias)
        }
        computed = tuple(name for name in self.specs if name in names)
        if not computed:
            raise ValueError(self._complaint(pattern, short, bool(names)))
        return computed

    def select(self, record: Record) -> list[str]:
        """Return the names that `record` selects, each once, in the order of the forward pass; () selects none.

        Raises
        ------
        TypeError, ValueError
            It is not a name, a pattern, several of these, or a function; or one of them means no name of this model.
        """
        if callable(record):
            return [name for name in self.specs if record(name)]
        several = isinstance(record, Iterable) and not isinstance(record, str | bytes | dict)
        patterns: list[object] = list(record) if several else [record]
        for pattern in patterns:
            if not isinstance(pattern, str):
                raise TypeError(
                    f"record={brief(record)}; expected names, patterns ('encoder.layer.3.*') or a function."
                )
        wanted = {name for pattern in patterns for name in self.match(str(pattern))}
        return [name for name in self.specs if name in wanted]

    def symbol(self, layer: int, symbol: str) -> str:
        """Return the name of a symbol in one layer: (3, "probs") gives the name of the probs of layer 3."""
        paths = [entry.path.format(i=layer) for entry in self._layout.layer(layer) if entry.symbol == symbol]
        return paths[0] if paths else f"encoder.layer.{layer}.{symbol}"

    def _complaint(self, name: str, short: str, not_computed: bool) -> str:
        quoted = repr(name) if len(name) <= 120 else brief(name)
        if not_computed:
            return f"{quoted} is not computed with num_layers={self.sizes.num_layers}. Give a larger num_layers."
        layer = re.match(r"blocks\.(\d+|\*|\[[^]]+\]|\?)\.", short)  # a number, or the pattern of several
        template = short if layer is None else f"blocks.{{i}}.{short[layer.end() :]}"
        if template in TWO_MEANINGS and layer is not None:
            hooked, bridge = (meaning.format(i=layer[1]) for meaning in TWO_MEANINGS[template])
            return (
                f"{quoted} has two meanings: {hooked} in HookedEncoder of TransformerLens, {bridge} in its "
                "TransformerBridge. Write one of these."
            )
        import difflib  # with its imports, it takes 2 ms of a start

        known = [*self.specs, *self._aliases]
        plain = re.sub(r"\[[^]]*\]|[*?]", "", short)
        nearest = difflib.get_close_matches(plain, known, 5, 0.0)
        layers = counted(self.sizes.num_hidden_layers, "layer")
        head = FAMILIES[self.sizes.model_type].own_class(self.sizes.head or "no head")
        return (
            f"{quoted} is not the name of a value of this model, which has {layers}, "
            f"{'a' if self.sizes.pooler else 'no'} pooler and {head}. The nearest names are {', '.join(nearest)}."
        )


def _without_prefix(name: str) -> str:
    while name.startswith(_PREFIXES):
        name = name[name.index(".", 2) + 1 :]
    # In ONNX graphs the same prefixes are followed by slashes.
    return re.sub(r"^/(?:bert|model|auto_model|0/auto_model|0/model)(?=/)", "", name)


@functools.lru_cache(maxsize=256)
def _compile(pattern: str) -> re.Pattern[str]:
    """Turn a pattern into a regular expression; see `Record`."""
    parts = []
    for match in re.finditer(r"\*+|\?|\[[^]]+\]|.", pattern, re.DOTALL):
        text = match[0]
        if text.startswith("*"):
            inside = len(text) == 1 and match.start() > 0 and match.end() < len(pattern)
            parts.append("[^./]*" if inside else ".*")
        elif text == "?":
            parts.append("[^./]")
        elif text.startswith("[") and len(text) > 2 and re.fullmatch(r"\[!?[\w-]+\]", text):
            parts.append(text.replace("!", "^"))
        else:
            parts.append(re.escape(text))
    try:
        return re.compile("".join(parts), re.DOTALL)
    except re.error:  # such as [3-0]
        return re.compile(re.escape(pattern))
