"""The tensors of a checkpoint by the names that BERT has for them: renaming, the heads that are there, checks.

Only headers are read here; loading.py reads the numbers. `named_arrays` gives weights the names of a checkpoint again.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from minibert.bert.config import BertConfig
from minibert.bert.families import FAMILIES, Family, architectures
from minibert.bert.ops import LayerNorm, Table
from minibert.bert.rows import DECODER, HEADS, POOLER_ROWS, Row, head_of, head_rows, layer_rows, stored_rows
from minibert.bert.weights import Weights
from minibert.checkpoint.files import ModelFiles
from minibert.checkpoint.safetensors import StoredTensor
from minibert.checkpoint.tensors import DTYPES, open_checkpoint
from minibert.errors import ModelFormatError

# Old versions of transformers saved these buffers. They are counters, not weights.
_BUFFERS = ("position_ids", "token_type_ids", "inv_freq")

# What the names of the model's tensors begin with; DistilBERT, ELECTRA and rotary models have the last four.
_MODULES = ("embeddings.", "encoder.", "pooler.", "transformer.", "embeddings_project.", "layers.", "final_norm.")

WORDS = "embeddings.word_embeddings"
FREQUENCIES = "rotary_embeddings.inv_freq"
"""A tensor of ESM's files, the frequencies of the rotary positions."""

# Published files have these modules also where the model does not, and transformers ignores them there.
_STRAY = (
    "embeddings_project",
    "embeddings.token_type_embeddings",
    "embeddings.task_type_embeddings",
)


def open_model(files: ModelFiles, family: Family) -> StoredModel:
    """Read the headers of a checkpoint.

    Raises
    ------
    ModelFormatError
        A file is missing or damaged, or the checkpoint does not hold one model of this family.
    """
    tensors = _named_as_now(open_checkpoint(files), family)
    prefix = _find_prefix(tensors, files)
    field = prefix.removesuffix(".").rpartition(".")[2]
    if field != family.field and field in {other.field for other in FAMILIES.values()} - {"model"}:
        raise ModelFormatError(
            f"{files.source} has the tensors of {field!r}, but model_type={family.model_type!r}. Correct config.json, "
            "or call a class of the family that the tensors belong to."
        )
    return StoredModel(files, tensors, prefix, family)


def find_heads(files: ModelFiles, family: Family | None = None) -> tuple[str, ...]:
    """Return the classes of `HEADS` whose tensors the checkpoint has, in the order of `HEADS`; read only headers.

    Raises
    ------
    ModelFormatError
        A file is missing or damaged, or the checkpoint does not hold a BERT model.
    """
    return open_model(files, family or BertConfig.from_files(files).family).heads()


def is_part(name: str, whole: str) -> bool:
    """Return whether a head has some of the modules of another one, and no other modules."""
    return set(HEADS[name].rows) < set(HEADS[whole].rows)


class StoredModel:
    """The tensors of a model under the names that BERT has for them, without the prefix.

    Tensors without the prefix belong to a head, even if their names look like BERT's, as "pooler" does. `add_head`
    takes in the tensors of one head.
    """

    def __init__(self, files: ModelFiles, tensors: dict[str, StoredTensor], prefix: str, family: Family) -> None:
        self.files, self._stored, self._family = files, tensors, family
        self.tensors = self._renamed(prefix)
        # A class with a head has the model in a field such as "bert", and the modules of the head beside that.
        self._prefix, self._beside = prefix, prefix.removesuffix(f"{family.field}.")
        self._head: tuple[str, ...] = ()

    # --- names --------------------------------------------------------------------------------------------------------

    def _renamed(
        self, prefix: str, head: str | None = None, modules: Collection[str] | None = None
    ) -> dict[str, StoredTensor]:
        """Return the tensors below a prefix, or of some modules, by their names in BERT; two must not be the same."""
        names = {name: self._bert_name(name[len(prefix) :], head) for name in self._stored if name.startswith(prefix)}
        names = {name: bert for name, bert in names.items() if modules is None or bert.rpartition(".")[0] in modules}
        renamed = {bert: self._stored[name] for name, bert in names.items()}
        if len(renamed) < len(names):
            twice = Counter(names.values()).most_common(1)[0][0]
            raise ModelFormatError(f"{self.files.source} holds {twice} twice: as gamma or beta, and by its new name.")
        return renamed

    def _bert_name(self, name: str, head: str | None) -> str:
        """Return the modern name in BERT of a tensor, which may be one of a head."""
        path, _, part = modern_name(name).rpartition(".")
        name = f"{self._family.bert_path(path, head)}.{part}"
        if name != "cls.predictions.bias" or head is None:
            return name
        # The bias of the decoder; some files have it under both names.
        return name if f"{self._decoder(head)}.bias" in self._stored else f"{DECODER}.bias"

    def _decoder(self, head: str) -> str:
        """Return the path in the checkpoint of the decoder of a masked-LM head."""
        return f"{self._beside}{self._family.own_path(DECODER, head)}"

    def _own_name(self, name: str, head: str | None) -> str:
        """Return the name in the family of a tensor of BERT, without prefixes."""
        path, _, part = name.rpartition(".")
        owner = "cls.predictions" if name == f"{DECODER}.bias" else path
        return f"{self._family.own_path(owner, head)}.{part}"

    # --- heads --------------------------------------------------------------------------------------------------------

    @property
    def has_pooler(self) -> bool:
        """True if the checkpoint has a tensor of a pooler."""
        return any(name.startswith("pooler.") for name in self.tensors)

    def heads(self) -> tuple[str, ...]:
        """Return the classes of `HEADS` whose tensors exist, with the right number of rows where it is fixed.

        Several classes may need the same tensors, or one some of another's. config.json then says which one it is, else
        the one with more tensors is there; the two heads of pre-training are there beside both together.
        """
        tensors = {name: {one.name for one in self._of_head(name).values()} for name in HEADS if self._has(name)}
        named = {*architectures(self.files.settings("config.json"))} & tensors.keys()

        def is_another(name: str) -> bool:
            larger = any(tensors[name] < more and not is_part(name, other) for other, more in tensors.items())
            return name not in named and (larger or any(tensors[name] == tensors[other] for other in named))

        return tuple(name for name in tensors if not is_another(name))

    def _has(self, head: str) -> bool:
        tensors, fixed = self._of_head(head), [row for row in self._rows(head) if isinstance(row.shape[0], int)]
        if not tensors and head not in architectures(self.files.settings("config.json")):
            return False  # of a head that is a tied decoder, nothing is stored
        return not self._missing(head, tensors, tied=True) and all(
            tensors[f"{row.path}.weight"].shape[:1] == row.shape[:1] for row in fixed
        )

    def _rows(self, head: str) -> tuple[Row, ...]:
        """Return the modules of a head that are beside the model; in some families its dense map is one of them."""
        of_head = head_of(self._family, head)
        rows = of_head.rows + (POOLER_ROWS if of_head.pooled and self._family.has_dense(head) else ())
        # Without the config, a bias that it decides on is not needed.
        return tuple(dataclasses.replace(row, bias=self._family.bias_field(row.path) == "") for row in rows)

    def _of_head(self, head: str) -> dict[str, StoredTensor]:
        """Return the tensors beside the model that belong to a head."""
        return self._renamed(self._beside, head, {row.path for row in self._rows(head)})

    def _missing(self, head: str, there: Collection[str], *, tied: bool) -> list[str]:
        """Return the names of the tensors that a head needs, and that are neither in the model nor beside it."""
        missing = [name for row in self._rows(head) for name in _names(row, tied) if name not in there]
        if head_of(self._family, head).pooled and not self._family.has_dense(head):
            missing += [name for row in POOLER_ROWS for name in _names(row) if name not in self.tensors]
        return missing

    def add_head(self, head: str, config: BertConfig) -> None:
        """Add the tensors of a head to `tensors`; if one is missing, raise an error that lists the existing heads."""
        tensors, tied = self._of_head(head), config.tie_word_embeddings
        if missing := [self._own_name(name, head) for name in self._missing(head, tensors, tied=tied)]:
            more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
            remedy = self._what_is_there()
            if not tied and not self._missing(head, tensors, tied=True):
                remedy = "With tie_word_embeddings false in config.json, the decoder needs a weight of its own."
            raise ModelFormatError(
                f"{self.files.source} cannot be loaded as {self._family.own_class(head)}: {', '.join(missing[:4])}"
                f"{more} {'is' if len(missing) == 1 else 'are'} missing, and minibert never makes random weights. "
                f"{remedy}"
            )
        self._head = tuple(tensors)
        self.tensors |= tensors

    def _what_is_there(self) -> str:
        """Say which heads are there, and what to do if the one that was asked for is not."""
        heads = list(map(self._family.own_class, self.heads()))
        without = f"It has no head, so {self._family.class_name}Model loads it"
        there = f"It has the tensors of {' and '.join(heads)}" if heads else without
        return f"{there}. Use a checkpoint that was trained for this task, or minibert.load, which finds the class."

    # --- the config ---------------------------------------------------------------------------------------------------

    def adapt(self, config: BertConfig) -> None:
        """Leave out modules that are not in the model, and take the words from a decoder that is tied to them."""
        # ESM's files have a table of positions, too.
        stray = (*_STRAY, *(["embeddings.position_embeddings"] if self._family.stores_frequencies else []))
        absent = {path for path in stray if path not in {row.path for row in stored_rows(config)}}
        self.tensors = {name: tensor for name, tensor in self.tensors.items() if name.rpartition(".")[0] not in absent}
        decoder = self._stored.get(f"{self._decoder('BertForMaskedLM')}.weight")
        if config.tie_word_embeddings and decoder is not None:
            self.tensors.setdefault(f"{WORDS}.weight", decoder)

    def check(self, config: BertConfig, *, pooler: bool, head: str | None = None) -> None:
        """Compare all names, shapes and dtypes with the config; raise an error that lists the faults."""
        self._check_layer_count(config)
        of_head = head_rows(config, head) if head else ()
        rows = [("", row) for row in (*stored_rows(config), *(POOLER_ROWS if pooler else ()), *of_head)]
        rows += [(f"encoder.layer.{i}.", row) for i in _stored_layers(config) for row in layer_rows(config, i)]
        tied = config.tie_word_embeddings and f"{DECODER}.weight" not in self.tensors
        expected = {f"{scope}{name}": row for scope, row in rows for name in _names(row, tied)}
        if strange := [one for name, one in self.tensors.items() if name in expected and one.dtype not in DTYPES]:
            found, read = f"{self.files.source}: {strange[0].name} is {strange[0].dtype}", ", ".join(DTYPES)
            raise ModelFormatError(f"{found}, minibert reads {read}. Save it in float32, such as with transformers.")
        faults = _label_faults(config) if any("num_labels" in row.shape for row in of_head) else []
        faults += [fault for name, row in expected.items() if (fault := self._fault(name, row, config, head))]
        faults += [
            f"{self.tensors[name].name} is unexpected: it is not a part of BERT that minibert implements"
            for name in dict.fromkeys((*self._inside_bert(), *self._head))
            if name not in expected and not (name.startswith("pooler.") and not pooler)
        ]
        if faults:
            listed = "".join(f"\n  - {fault}" for fault in faults[:12])
            more = f"\n  and {len(faults) - 12} more" if len(faults) > 12 else ""
            what, remedy = "its config.json", "Use the config.json that belongs to the model, and a plain BERT."
            if head is not None and head not in (there := self.heads()) and there:
                what, remedy = self._family.own_class(head), self._what_is_there()
            raise ModelFormatError(f"The tensors of {self.files.source} do not match {what}:{listed}{more}\n{remedy}")

    def _check_layer_count(self, config: BertConfig) -> None:
        matches = (re.match(r"encoder\.layer\.(\d{1,9})\.", name) for name in self.tensors)
        numbers = {int(match[1]) for match in matches if match}
        stored = _stored_layers(config)
        if len(numbers) != len(stored) or numbers != {*stored}:
            layers = f"{len(numbers)} layers ({min(numbers)} to {max(numbers)})" if numbers else "no layers"
            matches = (re.match(r"(|.*?\.)(encoder|transformer)\.layer\.\d", name) for name in self._stored)
            others = ", ".join(map(repr, sorted({match[1] for match in matches if match} - {self._prefix})))
            remedy = "To run only the first layers, load the whole model and call it with num_layers=."
            if others:
                remedy = (
                    f"Its embeddings begin with {self._prefix!r}, and those of layers with {others}: save it with one."
                )
            named = "num_hidden_layers" if config.num_hidden_groups is None else "num_hidden_groups"
            raise ModelFormatError(
                f"config.json says {named}={getattr(config, named)}, but {self.files.source} holds "
                f"{layers} with the prefix {self._prefix!r}. {remedy}"
            )

    def _fault(self, name: str, row: Row, config: BertConfig, head: str | None) -> str | None:
        tensor = self.tensors.get(name)
        if tensor is None:
            return f"{self._own_name(name, head)} is missing"
        axes = slice(1 if name.endswith(".bias") else None)
        if tensor.shape != (shape := row.sizes(config)[axes]):
            fields = ", ".join(map(str, row.shape[axes]))
            fields = fields.replace("num_labels", "num_labels: see id2label in config.json")
            return f"{tensor.name} has shape {list(tensor.shape)}, expected {list(shape)} ({fields})"
        return None

    def _inside_bert(self) -> Iterator[str]:
        for name in self.tensors:
            if name.startswith(_MODULES) and not name.endswith(_BUFFERS):
                yield name

    def ignored(self) -> tuple[str, ...]:
        """Return the names of the tensors that do not belong to BERT: tensors of task heads, and old buffers."""
        used = {self.tensors[name].name for name in (*self._inside_bert(), *self._head)}
        used |= {tensor.name for name, tensor in self.tensors.items() if name == FREQUENCIES}
        return tuple(dict.fromkeys(tensor.name for tensor in self._stored.values() if tensor.name not in used))


def _stored_layers(config: BertConfig) -> Sequence[int]:
    """Return the numbers of the layers that a checkpoint has, each once; the config may state any sizes."""
    count, groups = config.num_hidden_layers, config.num_hidden_groups
    if groups is None:
        return range(count)
    return range(groups) if groups <= count else list(map(config.stored_layer, range(count)))


def _names(row: Row, tied: bool = False) -> list[str]:
    """Return the names of the tensors that a module must have; a tied decoder needs only a bias."""
    names = [f"{row.path}.weight", f"{row.path}.bias"][: 1 + row.bias]
    return names[tied and row.path == DECODER :]


def _label_faults(config: BertConfig) -> list[str]:
    """Say what is wrong with the ids of a config's labels: a classifier has one row for each of 0 to num_labels - 1."""
    ids = list(config.id2label)
    if ids == list(range(len(ids))) and ids:
        return []
    listed = ", ".join(map(str, ids[:8])) or "nothing"
    return [f"id2label has the ids {listed}{', ...' if len(ids) > 8 else ''}; expected 0, 1, 2 and so on without a gap"]


# --- names in files ---------------------------------------------------------------------------------------------------


def modern_name(name: str) -> str:
    """Replace gamma and beta, the names of a LayerNorm's weight and bias in the first BERT checkpoints."""
    return re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name))


def _named_as_now(tensors: dict[str, StoredTensor], family: Family) -> dict[str, StoredTensor]:
    """Return the tensors of a family's older files under the names of transformers, and stacked ones in parts."""
    renamed: dict[str, StoredTensor] = {}
    if lora := next((name for name in tensors if ".lora_" in name or ".parametrizations." in name), None):
        raise ModelFormatError(f"{lora} belongs to an adapter; minibert adds none. Merge it into the weights.")
    for name, tensor in tensors.items():
        for old, new in family.old_modules:
            name = re.sub(old, new, name)
        path, _, part = name.rpartition(".")
        whole = next((end for end in family.stacked if path.endswith(f".{end}")), None)
        parts = [f"{path.removesuffix(whole)}{end}.{part}" for end in family.stacked[whole]] if whole else [name]
        for i, own in enumerate(parts):
            if renamed.setdefault(own, tensor.block(i, len(parts))).name != tensor.name:
                raise ModelFormatError(f"{tensor.path} holds {own} twice: as {tensor.name} and as {renamed[own].name}.")
    return renamed


def _find_prefix(tensors: dict[str, StoredTensor], files: ModelFiles) -> str:
    """Return the text before "embeddings." of the embeddings: "", "bert." or the name of another wrapper."""
    # The words may be stored as a decoder alone.
    of_words = r"embed_tokens|embeddings\.((word|position|tok)_embeddings|LayerNorm|norm)"
    anchor = rf"(|.*\.)({of_words}|layers\.0\.input_layernorm|encoder\.emb_layer_norm_after)\.weight"
    prefixes = {match[1] for name in tensors if (match := re.fullmatch(anchor, name))}
    if len(prefixes) == 1:
        return prefixes.pop()
    if prefixes:
        listed = ", ".join(map(repr, sorted(prefixes)))
        raise ModelFormatError(f"{files.source} holds several models ({listed}). Save the one that you need alone.")
    names = ", ".join(sorted(tensors)[:3]) or "nothing"
    raise ModelFormatError(
        f"{files.source} is not a BERT checkpoint: {WORDS}.weight is not among its tensors ({names}, ...)."
    )


# --- the names of weights, for saving ---------------------------------------------------------------------------------


def named_arrays(weights: Weights, head: str | None = None) -> Iterator[tuple[str, Table]]:
    """Yield the name in the checkpoint and the values of each array of BERT, in the order of the forward pass.

    The table of words may be in a file: NumPy reads it.

    With a class of `HEADS`, the names begin with "bert." or the field of another family, and the arrays of its head
    follow. A tied decoder's weight is not given a second time.
    """
    family = weights.config.family
    tied = weights.head is not None and weights.head.tied
    for scope, stored, owner, rows in weights.stored_parts(head):
        for path, part, array in _arrays_of(owner, rows, family, tied):
            own = family.own_path(path.replace(scope, stored, 1), head)
            # The dense map that some heads have instead of the pooler is beside the model, too.
            beside = owner is weights.head or (path == "pooler.dense" and family.has_dense(head))
            names = [f"{own}.{part}" if head is None or beside else f"{family.field}.{own}.{part}"]
            if path == DECODER:
                of_bias = f"{family.own_path('cls.predictions', head)}.bias"
                names = ([] if tied else names) + [of_bias] * (part == "bias")
            yield from ((name, array) for name in dict.fromkeys(names))
    if family.stores_frequencies and weights.layers and (rotary := weights.layers[0].rotary) is not None:
        yield f"{'' if head is None else family.field + '.'}rotary_embeddings.inv_freq", rotary.frequencies(1)


def _arrays_of(owner: Any, rows: Iterable[Row], family: Family, tied: bool) -> Iterator[tuple[str, str, Table]]:
    """Yield the path, "weight" or "bias", and the array of the fields that the rows name, each field once.

    The weight of a tied decoder, which is large, is left out.
    """
    for field, row in {row.field: row for row in rows}.items():
        part: Any = getattr(owner, field)
        if row.is_table:
            yield row.path, "weight", part
            continue
        paths = (part.path,) if isinstance(part, LayerNorm) else part.paths
        whole = family.own_path(paths[0]).rpartition(".")[0]
        paths = (whole,) if whole.endswith(tuple(family.stacked)) else paths
        weights = [] if tied and row.path == DECODER else np.split(part.weight, len(paths))
        for name, weight, bias in zip_longest(paths, weights, np.split(part.bias, len(paths))):
            if weight is not None:
                yield name, "weight", weight
            if row.bias:
                yield name, "bias", bias
