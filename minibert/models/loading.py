"""The name of a model -> its `Weights`. Everything is checked before memory is allocated."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from minibert._utils.keywords import MODEL_KEYWORDS, check_keywords, check_remote_code, given_name
from minibert._utils.validation import FloatArray
from minibert.bert.config import SETTINGS, BertConfig, check_settings
from minibert.bert.families import FAMILIES, Family
from minibert.bert.ops import LayerNorm, Linear, PreparedLinear
from minibert.bert.rotary import Rotary
from minibert.bert.weights import (
    DECODER,
    HEADS,
    POOLER_ROWS,
    HeadWeights,
    LayerWeights,
    PredictionWeights,
    Row,
    Weights,
    bias_of_distances,
    head_of,
    head_rows,
    layer_rows,
    stored_rows,
)
from minibert.checkpoint.files import ModelFiles
from minibert.checkpoint.safetensors import StoredTensor
from minibert.checkpoint.tensors import DTYPES, open_checkpoint, read_tensor
from minibert.errors import ModelFormatError
from minibert.models.options import ModelOptions
from minibert.models.shared_weights import Restored, Sharing, noted_arrays

# Old versions of transformers saved these buffers. They are counters, not weights.
_BUFFERS = ("position_ids", "token_type_ids", "inv_freq")

# What the names of the model's tensors begin with; DistilBERT, ELECTRA and rotary models have the last four.
_MODULES = ("embeddings.", "encoder.", "pooler.", "transformer.", "embeddings_project.", "layers.", "final_norm.")

_WORDS = "embeddings.word_embeddings.weight"

# Published files have these modules also where the model does not, and transformers ignores them there.
_STRAY = ("embeddings_project.", "embeddings.token_type_embeddings.")

_Part = TypeVar("_Part")

_CHANGE = "config=dataclasses.replace(BertConfig.from_pretrained(name), {})"


def find_model(
    call: str, name_or_path: Any, keywords: Mapping[str, Any], function: Any, family: Family | None = None
) -> tuple[ModelFiles, ModelOptions, Family]:
    """Check the keywords of a from_pretrained, and find the files, the config and the family of a model.

    `name_or_path` is None if the name is in `keywords`, as transformers spells it. `family` is the one of `function`; a
    config.json that does not say its family has it.

    Raises
    ------
    TypeError, ValueError
        A keyword is not known, or would change the result.
    """
    options, others = ModelOptions.split(keywords)
    name = given_name(call, name_or_path, others)
    settings = check_keywords(call, others, MODEL_KEYWORDS, settings=SETTINGS, function=function)
    files = options.locate(name)
    check_remote_code(call, others.get("trust_remote_code"), files.settings("config.json"))
    config = options.config or BertConfig.from_files(files, family)
    check_settings(call, settings, config, _CHANGE)
    return files, dataclasses.replace(options, config=config), config.family


def load_weights(
    files: ModelFiles,
    config: BertConfig,
    prepare: Callable[[Linear], PreparedLinear],
    *,
    add_pooling_layer: bool = True,
    head: str | None = None,
    sharing: Sharing | None = None,
) -> Weights:
    """Read a model's files into float32 weights, and call `prepare` for each linear map as soon as it is read.

    Parameters
    ----------
    files : ModelFiles
        model.safetensors, or pytorch_model.bin, or the shards of one, in float32, float16, bfloat16 or float64. The
        names may have one common prefix such as "bert.", and LayerNorm.gamma / beta are accepted.
    config : BertConfig
    prepare : (Linear) -> PreparedLinear
        `Ops.prepare` of the ops that will compute.
    add_pooling_layer : bool
        Whether to read the pooler, if the checkpoint has one.
    head : str, optional
        A class in `HEADS`: its head is read too, and the pooler is read if and only if that head needs it.
    sharing : Sharing, optional
        The tables, the encoder and a decoder are then mapped from files that `prepare` made once.

    Raises
    ------
    ModelFormatError
        The checkpoint does not have this head; the message says which ones it has. A file is damaged or changes while
        it is read. Or a tensor is missing or unexpected, has another shape than the config says or an unknown dtype, or
        holds NaN or infinity. One message lists all faults of names and shapes.

    Notes
    -----
    Memory: the weights, the memory that `prepare` allocates for one map, and a buffer of 4 MB. The files are read, not
    mapped, so the weights do not change when a file is replaced or truncated later. A decoder that equals the word
    embeddings is not kept a second time, in addition to what `prepare` makes of it.
    """
    checkpoint = _open(files, config.family)
    if head is not None:
        config.check_required(head.removeprefix("Bert"))
        checkpoint.add_head(head, config)
    of_head = None if head is None else head_of(config.family, head)
    pooler = of_head.pooled if of_head is not None else add_pooling_layer and checkpoint.has_pooler
    checkpoint.check(config, pooler=pooler, head=head)

    def shared(part: str, read: Callable[[TensorSource], _Part], *, large: bool = True) -> _Part:
        """Read a part of the weights from the file that processes share, if they share one."""
        plain = FromFiles(checkpoint, prepare)
        if sharing is None or not large:
            return read(plain)
        made = functools.cache(lambda: plain.arrays(read))  # what cannot be written is not read again
        arrays = sharing.arrays(part, files, checkpoint.tensors.values(), made) or made()
        return read(Restored(arrays, sharing.layout))

    weights = shared("encoder", functools.partial(_read_encoder, config))
    weights = dataclasses.replace(weights, ignored=checkpoint.ignored())
    if pooler:
        weights = dataclasses.replace(weights, **_assemble(FromFiles(checkpoint, prepare), POOLER_ROWS, "", config))  # type: ignore[arg-type]
    if head is None:
        return weights
    read_head = functools.partial(_read_head, config, head, weights.word_embeddings)
    return dataclasses.replace(weights, head=shared(head, read_head, large=HEADS[head].has_decoder))


def _read_encoder(config: BertConfig, tensors: TensorSource) -> Weights:
    """Read the embeddings and the layers."""
    fields: dict[str, Any] = _assemble(tensors, stored_rows(config), "", config)
    buckets = fields.get("relative_attention_bias")
    bias = None if buckets is None else bias_of_distances(buckets, config.max_position_embeddings)
    types = config.layer_types or ("full_attention",) * config.num_hidden_layers
    rotaries = {
        name: Rotary(config.rope_of(name), config.head_size, config.max_position_embeddings)
        for name in config.family.theta
    }
    layers = []
    for i, kind in enumerate(types):
        maps: dict[str, Any] = _assemble(tensors, layer_rows(config, i), f"encoder.layer.{i}.", config)
        window = (config.local_attention or 0) // 2 if kind == "sliding_attention" else None
        rotary = rotaries.get(kind)
        layers.append(LayerWeights(f"encoder.layer.{i}", **maps, relative_bias=bias, rotary=rotary, window=window))
    return Weights(config=config, layers=tuple(layers), pooler=None, **fields)


def _read_head(config: BertConfig, head: str, word_embeddings: FloatArray, tensors: TensorSource) -> HeadWeights:
    """Read the modules of a class in `HEADS`."""
    rows = head_rows(config, head)
    fields: dict[str, Any] = _assemble(tensors, [row for row in rows if row.path != DECODER], "", config)
    tied = False
    for row in rows:
        if row.path == DECODER:
            fields["decoder"], tied = tensors.decoder(DECODER, word_embeddings, row.bias)
    if "transform" in fields:
        parts = {field: fields.pop(field) for field in ("transform", "transform_norm", "decoder")}
        fields["predictions"] = PredictionWeights(tied=tied, **parts)
    return HeadWeights(head, **fields)


def find_heads(files: ModelFiles, family: Family | None = None) -> tuple[str, ...]:
    """Return the classes of `HEADS` whose tensors the checkpoint has, in the order of `HEADS`; read only headers.

    Raises
    ------
    ModelFormatError
        A file is missing or damaged, or the checkpoint is not that of a BERT model.
    """
    return _open(files, family or BertConfig.from_files(files).family).heads()


def _open(files: ModelFiles, family: Family) -> _Checkpoint:
    tensors = _named_as_now(open_checkpoint(files), family)
    prefix = _find_prefix(tensors, files)
    field = prefix.removesuffix(".").rpartition(".")[2]
    if field != family.field and field in {other.field for other in FAMILIES.values()} - {"model"}:
        raise ModelFormatError(
            f"{files.source} has the tensors of {field!r}, but model_type={family.model_type!r}. Correct config.json, "
            "or call a class of the family that the tensors belong to."
        )
    return _Checkpoint(files, tensors, prefix, family)


def _named_as_now(tensors: dict[str, StoredTensor], family: Family) -> dict[str, StoredTensor]:
    """Return the tensors of a family's older files under the names of transformers, and stacked ones in parts."""
    found: dict[str, StoredTensor] = {}
    if lora := next((name for name in tensors if ".lora_" in name or ".parametrizations." in name), None):
        raise ModelFormatError(f"{lora} is that of an adapter, which minibert does not add. Merge it into the weights.")
    for name, tensor in tensors.items():
        for old, new in family.old_modules:
            name = re.sub(old, new, name)
        path, _, part = name.rpartition(".")
        whole = next((end for end in family.stacked if path.endswith(f".{end}")), None)
        parts = [f"{path.removesuffix(whole)}{end}.{part}" for end in family.stacked[whole]] if whole else [name]
        for i, own in enumerate(parts):
            if found.setdefault(own, tensor.block(i, len(parts))).name != tensor.name:
                raise ModelFormatError(f"{tensor.path} holds {own} twice: as {tensor.name} and as {found[own].name}.")
    return found


def _assemble(
    tensors: TensorSource, rows: Iterable[Row], scope: str, config: BertConfig
) -> dict[str, PreparedLinear | LayerNorm | FloatArray]:
    """Read the modules below one path into fields; modules of the same field are stacked into one linear map."""
    by_field: dict[str, list[Row]] = {}
    for row in rows:
        by_field.setdefault(row.field, []).append(row)
    fields: dict[str, PreparedLinear | LayerNorm | FloatArray] = {}
    for field, stack in by_field.items():
        paths = tuple(scope + row.path for row in stack)
        num_rows, *columns = stack[0].sizes(config)
        if columns and not stack[0].is_table:
            shape, gated = (len(stack) * num_rows, *columns), paths[0].endswith(".intermediate.gate")
            fields[field] = tensors.linear(paths, shape, bias=stack[0].bias, gated=gated)  # type: ignore[arg-type]
            continue
        weight = tensors.array([f"{path}.weight" for path in paths])
        if columns:
            fields[field] = weight
        else:
            bias = tensors.array([f"{path}.bias" for path in paths]) if stack[0].bias else _zeros(num_rows)
            fields[field] = LayerNorm(paths[0], weight, bias, config.layer_norm_eps)
    return fields


def _zeros(length: int) -> FloatArray:
    zeros: FloatArray = np.zeros(length, np.float32)
    zeros.flags.writeable = False
    return zeros


class TensorSource(Protocol):
    """The numbers of a model by their names in BERT: those of a checkpoint, or `Restored` from a shared file."""

    def array(self, names: Sequence[str]) -> FloatArray:
        """Return the tensors with these names, stacked by rows."""

    def linear(
        self, paths: tuple[str, ...], shape: tuple[int, int], *, bias: bool = True, gated: bool = False
    ) -> PreparedLinear:
        """Return the linear maps of these modules, stacked into one weight of this shape."""

    def decoder(self, path: str, word_embeddings: FloatArray, bias: bool) -> tuple[PreparedLinear, bool]:
        """Return the decoder of a masked-LM head, and whether its weight is the table of word embeddings."""


class FromFiles:
    """The source that reads the files of a checkpoint."""

    def __init__(self, checkpoint: _Checkpoint, prepare: Callable[[Linear], PreparedLinear]) -> None:
        self._checkpoint, self._prepare = checkpoint, prepare
        self._noted: dict[str, FloatArray | PreparedLinear] = {}

    def arrays(self, read: Callable[[TensorSource], object]) -> dict[str, FloatArray]:
        """Return all that a function reads, as `Restored` needs it."""
        read(self)
        return noted_arrays(self._noted)

    def array(self, names: Sequence[str]) -> FloatArray:
        """Read the tensors with these names, stacked by rows."""
        array = self._noted[" ".join(names)] = self._checkpoint.read(names)
        return array

    def linear(
        self, paths: tuple[str, ...], shape: tuple[int, int], *, bias: bool = True, gated: bool = False
    ) -> PreparedLinear:
        """Read and prepare the linear maps of these modules, stacked into one weight."""
        weight = self._checkpoint.read([f"{path}.weight" for path in paths])
        return self._prepared(paths, weight, bias, gated)

    def _prepared(self, paths: tuple[str, ...], weight: FloatArray, bias: bool, gated: bool = False) -> PreparedLinear:
        added = self._checkpoint.read([f"{path}.bias" for path in paths]) if bias else _zeros(len(weight))
        linear = self._noted[" ".join(paths)] = self._prepare(Linear(paths, weight, added, gated))
        return linear

    def decoder(self, path: str, word_embeddings: FloatArray, bias: bool) -> tuple[PreparedLinear, bool]:
        """Read and prepare the decoder; a weight that equals the word embeddings is not kept a second time."""
        stored = f"{path}.weight" in self._checkpoint.tensors
        weight = self._checkpoint.read([f"{path}.weight"]) if stored else word_embeddings
        if tied := np.array_equal(weight, word_embeddings):
            weight = word_embeddings  # so that a second copy is not kept
        self._noted[f"{path}.tied"] = np.array([tied], np.float32)
        return self._prepared((path,), weight, bias), tied


class _Checkpoint:
    """The tensors of a model under the names that BERT has for them, without the prefix, and the checks of them.

    Tensors without the prefix belong to a head, even if their names look like BERT's, as "pooler" does. `add_head`
    takes those of one head in.
    """

    def __init__(self, files: ModelFiles, tensors: dict[str, StoredTensor], prefix: str, family: Family) -> None:
        self.files, self._stored, self._family = files, tensors, family
        self.tensors = self._renamed(tensors, prefix)
        # A class with a head has the model in a field such as "bert", and the modules of the head beside that.
        self._prefix, self._beside = prefix, prefix.removesuffix(f"{family.field}.")
        if decoder := tensors.get(f"{self._beside}{family.own_path(DECODER, 'BertForMaskedLM')}.weight"):
            self.tensors.setdefault(_WORDS, decoder)
        self._head: tuple[str, ...] = ()

    def _renamed(
        self, tensors: Iterable[str], prefix: str, head: str | None = None, only: Collection[str] | None = None
    ) -> dict[str, StoredTensor]:
        """Return the tensors below a prefix under their modern names in BERT, which must differ."""
        names = {name: self._bert_name(name[len(prefix) :], head) for name in tensors if name.startswith(prefix)}
        names = {name: bert for name, bert in names.items() if only is None or bert.rpartition(".")[0] in only}
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
        decoder = f"{self._beside}{self._family.own_path(DECODER, head)}.bias"
        return name if decoder in self._stored else f"{DECODER}.bias"

    def _own_name(self, name: str, head: str | None) -> str:
        """Return the name in the family of a tensor of BERT, without prefixes."""
        path, _, part = name.rpartition(".")
        owner = "cls.predictions" if name == f"{DECODER}.bias" else path
        return f"{self._family.own_path(owner, head)}.{part}"

    @property
    def has_pooler(self) -> bool:
        """True if the checkpoint has a tensor of a pooler."""
        return any(name.startswith("pooler.") for name in self.tensors)

    def heads(self) -> tuple[str, ...]:
        """Return the classes of `HEADS` whose tensors exist, with the right number of rows where it is fixed."""
        return tuple(name for name in HEADS if self._has(name))

    def _has(self, head: str) -> bool:
        found, fixed = self._of_head(head), [row for row in self._rows(head) if isinstance(row.shape[0], int)]
        return not self._missing(head, found, tied=True) and all(
            found[f"{row.path}.weight"].shape[:1] == row.shape[:1] for row in fixed
        )

    def _rows(self, head: str) -> tuple[Row, ...]:
        """Return the modules of a head that are beside the model; in some families its dense map is one of them."""
        beside = self._family.own_path("pooler.dense", head) != "pooler.dense"
        of_head = head_of(self._family, head)
        rows = of_head.rows + (POOLER_ROWS if of_head.pooled and beside else ())
        # Without the config, a bias that it decides on is not needed.
        return tuple(dataclasses.replace(row, bias=self._family.bias_field(row.path) == "") for row in rows)

    def _of_head(self, head: str) -> dict[str, StoredTensor]:
        """Return the tensors beside the model that belong to a head."""
        return self._renamed(self._stored, self._beside, head, {row.path for row in self._rows(head)})

    def _names(self, row: Row, there: Collection[str], scope: str = "", *, tied: bool = False) -> list[str]:
        """Return the names of the tensors of a module, as far as they are needed."""
        names = [f"{scope}{row.path}.{part}" for part in (("weight", "bias") if row.bias else ("weight",))]
        return [name for name in names if name in there or not (tied and name == f"{DECODER}.weight")]

    def _needed(self, head: str, found: Collection[str], *, tied: bool) -> list[str]:
        return [name for row in self._rows(head) for name in self._names(row, found, tied=tied)]

    def _missing(self, head: str, found: Collection[str], *, tied: bool) -> list[str]:
        needed = self._needed(head, found, tied=tied)
        missing = [name for name in needed if name not in found]
        pooler = [name for row in POOLER_ROWS if head_of(self._family, head).pooled for name in self._names(row, ())]
        return missing + [name for name in pooler if name not in needed and name not in self.tensors]

    def add_head(self, head: str, config: BertConfig) -> None:
        """Add the tensors of a head to `tensors`; if one is missing, raise an error that lists the existing heads."""
        found, tied = self._of_head(head), config.tie_word_embeddings
        if missing := [self._own_name(name, head) for name in self._missing(head, found, tied=tied)]:
            more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
            remedy = self._what_is_there()
            if not tied and not self._missing(head, found, tied=True):
                remedy = "With tie_word_embeddings false in config.json, the decoder needs a weight of its own."
            raise ModelFormatError(
                f"{self.files.source} cannot be loaded as {self._family.own_class(head)}: {', '.join(missing[:4])}"
                f"{more} {'is' if len(missing) == 1 else 'are'} missing, and minibert never makes random weights. "
                f"{remedy}"
            )
        self._head = tuple(found)
        self.tensors |= found

    def _what_is_there(self) -> str:
        """Say which heads are there, and what to do if the one that was asked for is not."""
        heads = list(map(self._family.own_class, self.heads()))
        without = f"It has no head, so {self._family.class_name}Model loads it"
        there = f"It has the tensors of {' and '.join(heads)}" if heads else without
        return f"{there}. Use a checkpoint that was trained for this task, or minibert.load, which finds the class."

    def check(self, config: BertConfig, *, pooler: bool, head: str | None = None) -> None:
        """Compare all names, shapes and dtypes with the config; raise an error that lists the faults."""
        words = self.tensors.get(_WORDS)
        if words is not None and not config.tie_word_embeddings and not words.name.endswith("_embeddings.weight"):
            del self.tensors[_WORDS]  # the decoder's
        self._check_layer_count(config)
        of_head = head_rows(config, head) if head else ()
        rows = [("", row) for row in (*stored_rows(config), *(POOLER_ROWS if pooler else ()), *of_head)]
        rows += [(f"encoder.layer.{i}.", row) for i in range(config.num_hidden_layers) for row in layer_rows(config, i)]
        expected = {
            name: row.shape if name.endswith(".weight") else row.shape[:1]
            for scope, row in rows
            for name in self._names(row, self.tensors, scope, tied=config.tie_word_embeddings)
        }
        for name in {name for name in self.tensors if name.startswith(_STRAY)} - expected.keys():
            del self.tensors[name]
        faults = _label_faults(config) if any("num_labels" in row.shape for row in of_head) else []
        faults += [fault for name, sizes in expected.items() if (fault := self._fault(name, sizes, config, head))]
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
        found = {int(match[1]) for name in self.tensors if (match := re.match(r"encoder\.layer\.(\d{1,9})\.", name))}
        if found != set(range(len(found))) or len(found) != config.num_hidden_layers:
            layers = f"{len(found)} layers ({min(found)} to {max(found)})" if found else "no layers"
            matches = (re.match(r"(|.*?\.)(encoder|transformer)\.layer\.\d", name) for name in self._stored)
            others = ", ".join(map(repr, sorted({match[1] for match in matches if match} - {self._prefix})))
            remedy = "To run only the first layers, load the whole model and call it with num_layers=."
            if others:
                remedy = (
                    f"Its embeddings begin with {self._prefix!r}, and those of layers with {others}: save it with one."
                )
            raise ModelFormatError(
                f"config.json says num_hidden_layers={config.num_hidden_layers}, but {self.files.source} holds "
                f"{layers} with the prefix {self._prefix!r}. {remedy}"
            )

    def _fault(self, name: str, sizes: tuple[str | int, ...], config: BertConfig, head: str | None) -> str | None:
        tensor = self.tensors.get(name)
        if tensor is None:
            return f"{self._own_name(name, head)} is missing"
        shape = tuple(size if isinstance(size, int) else getattr(config, size) for size in sizes)
        if tensor.shape != shape:
            fields = ", ".join(map(str, sizes)).replace("num_labels", "num_labels: see id2label in config.json")
            return f"{tensor.name} has shape {list(tensor.shape)}, expected {list(shape)} ({fields})"
        if tensor.dtype not in DTYPES:
            return f"{tensor.name} is {tensor.dtype}, minibert reads {', '.join(DTYPES)}"
        return None

    def _inside_bert(self) -> Iterator[str]:
        for name in self.tensors:
            if name.startswith(_MODULES) and not name.endswith(_BUFFERS):
                yield name

    def ignored(self) -> tuple[str, ...]:
        """Return the names of the tensors that do not belong to BERT: tensors of task heads, and old buffers."""
        used = {self.tensors[name].name for name in (*self._inside_bert(), *self._head)}
        return tuple(dict.fromkeys(tensor.name for tensor in self._stored.values() if tensor.name not in used))

    def read(self, names: Sequence[str]) -> FloatArray:
        """Read tensors with the same number of columns into one new read-only float32 array, stacked by rows."""
        tensors = [self.tensors[name] for name in names]
        rows = sum(tensor.shape[0] for tensor in tensors)
        stacked = np.empty((rows, *tensors[0].shape[1:]), dtype=np.float32)
        first = 0
        for tensor in tensors:
            read_tensor(tensor, stacked[first : first + tensor.shape[0]])
            first += tensor.shape[0]
        stacked.flags.writeable = False
        return stacked


def _label_faults(config: BertConfig) -> list[str]:
    """Say what is wrong with the ids of a config's labels: a classifier has one row for each of 0 to num_labels - 1."""
    ids = list(config.id2label)
    if ids == list(range(len(ids))) and ids:
        return []
    some = ", ".join(map(str, ids[:8])) or "nothing"
    return [f"id2label has the ids {some}{', ...' if len(ids) > 8 else ''}; expected 0, 1, 2 and so on without a gap"]


def modern_name(name: str) -> str:
    """Replace gamma and beta, the names of a LayerNorm's weight and bias in the first BERT checkpoints."""
    return re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name))


def _find_prefix(tensors: dict[str, StoredTensor], files: ModelFiles) -> str:
    """Return the text before "embeddings." of the embeddings: "", "bert." or the name of another wrapper."""
    # The words may be stored as a decoder alone.
    anchor = r"(|.*\.)embeddings\.((word|position|tok)_embeddings|LayerNorm|norm)\.weight"
    prefixes = {match[1] for name in tensors if (match := re.fullmatch(anchor, name))}
    if len(prefixes) == 1:
        return prefixes.pop()
    if prefixes:
        found = ", ".join(map(repr, sorted(prefixes)))
        raise ModelFormatError(f"{files.source} holds several models ({found}). Save the one that you need alone.")
    some = ", ".join(sorted(tensors)[:3]) or "nothing"
    raise ModelFormatError(f"{files.source} is not a BERT checkpoint: {_WORDS} is not among its tensors ({some}, ...).")


# --- the names in the checkpoint, for saving --------------------------------------------------------------------------


def named_arrays(weights: Weights, head: str | None = None) -> Iterator[tuple[str, FloatArray]]:
    """Yield the name in the checkpoint and the values of each array of BERT, in the order of the forward pass.

    With a class of `HEADS`, the names begin with "bert." or the field of another family, and the arrays of its head
    follow. A tied decoder's weight is not given a second time.
    """
    parts: list[tuple[Any, Sequence[Row]]] = [(weights, stored_rows(weights.config))]
    parts += [(layer, layer_rows(weights.config, i)) for i, layer in enumerate(weights.layers)]
    if weights.pooler is not None:
        parts.append((weights, POOLER_ROWS))
    family, with_head = weights.config.family, head is not None and weights.head is not None
    for owner, rows in parts:
        for path, part, array in _arrays_of(owner, rows, family):
            own = family.own_path(path, head if with_head else None)
            beside = path.startswith("pooler.") and own != path  # the head has a dense map instead of the pooler
            yield f"{family.field}.{own}.{part}" if with_head and not beside else f"{own}.{part}", array
    if head is None or weights.head is None:
        return
    tied = weights.head.predictions is not None and weights.head.predictions.tied
    for row in head_rows(weights.config, head):
        for path, part, array in _arrays_of(weights.head.owner(row.field), [row], family):
            names = [] if path == DECODER and tied else [f"{family.own_path(path, head)}.{part}"]
            if path == DECODER and part == "bias":
                names.append(f"{family.own_path('cls.predictions', head)}.bias")
            yield from ((name, array) for name in dict.fromkeys(names))


def _arrays_of(owner: Any, rows: Iterable[Row], family: Family) -> Iterator[tuple[str, str, FloatArray]]:
    """Yield the path, "weight" or "bias", and the array of the fields that the rows name, each field once."""
    for field, row in {row.field: row for row in rows}.items():
        part: PreparedLinear | LayerNorm | FloatArray = getattr(owner, field)
        if isinstance(part, np.ndarray):
            yield row.path, "weight", part
            continue
        paths = (part.path,) if isinstance(part, LayerNorm) else part.paths
        whole = family.own_path(paths[0]).rpartition(".")[0]
        paths = (whole,) if whole.endswith(tuple(family.stacked)) else paths
        weights, biases = np.split(part.weight, len(paths)), np.split(part.bias, len(paths))
        for name, weight, bias in zip(paths, weights, biases, strict=True):
            yield name, "weight", weight
            if row.bias:
                yield name, "bias", bias
