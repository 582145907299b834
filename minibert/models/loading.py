"""The name of a model -> its `Weights`. Everything is checked before memory is allocated."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np

from minibert._utils.keywords import MODEL_KEYWORDS, check_keywords, check_remote_code, given_name
from minibert._utils.validation import FloatArray
from minibert.bert.config import SETTINGS, BertConfig, check_settings
from minibert.bert.families import Family
from minibert.bert.ops import Linear, PreparedLinear, Table
from minibert.bert.rows import HEADS, head_of
from minibert.bert.weights import TensorSource, Weights, read_encoder, read_head, read_pooler, zeros_of
from minibert.checkpoint.files import ModelFiles
from minibert.checkpoint.safetensors import StoredTensor
from minibert.checkpoint.table import stored_table
from minibert.checkpoint.tensors import read_tensor
from minibert.errors import ModelFormatError
from minibert.models.options import ModelOptions
from minibert.models.shared_weights import Restored, Sharing, noted_arrays
from minibert.models.stored import WORDS, open_model

_Prepare: TypeAlias = Callable[[Linear], PreparedLinear]
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
    prepare: _Prepare,
    *,
    add_pooling_layer: bool = True,
    head: str | None = None,
    sharing: Sharing | None = None,
    balanced: bool = False,
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
    balanced : bool
        `prepare` rounds the maps, so those behind a LayerNorm are balanced with it: see `balance`.

    Raises
    ------
    ModelFormatError
        The checkpoint does not have this head; the message says which ones it has. A file is damaged or changes while
        it is read. Or a tensor is missing or unexpected, has another shape than the config says or an unknown dtype, or
        holds NaN or infinity. One message lists all faults of names and shapes.

    Notes
    -----
    Memory: the weights, the memory that `prepare` allocates for one map, and a buffer of 4 MB. A large table of words
    stays in its file (checkpoint/table.py). The files are read, not mapped: when one is deleted or replaced later,
    nothing changes, and when it is written to, the next row of words that is read from it is an error. A decoder that
    equals the word embeddings is not kept a second time, in addition to what `prepare` makes of it.
    """
    stored = open_model(files, config.family)
    stored.adapt(config)
    pooler = add_pooling_layer and stored.has_pooler
    if head is not None:
        config.check_required(head.removeprefix("Bert"))
        stored.add_head(head, config)
        pooler = head_of(config.family, head).pooled
    stored.check(config, pooler=pooler, head=head)

    def shared(part: str, read: Callable[[TensorSource], _Part], *, large: bool = True) -> _Part:
        """Read a part of the weights from the file that processes share, if they share one.

        Without that file, the part is packed once to be noted in it. The model is then made of the notes.
        """
        plain = FromFiles(stored.tensors, prepare, balanced)
        if sharing is None or not large:
            return read(plain)
        made = functools.cache(lambda: plain.arrays(read))  # what cannot be written is not read again
        arrays = sharing.arrays(part, config, files.source, stored.tensors.values(), made) or made()
        return read(Restored(arrays, sharing.layout))

    weights = shared("encoder", functools.partial(read_encoder, config))
    parts: dict[str, Any] = {"ignored": stored.ignored()}
    if pooler:
        parts |= read_pooler(config, FromFiles(stored.tensors, prepare))
    if head is not None:
        read = functools.partial(read_head, head, weights)
        parts["head"] = shared(head, read, large="words" in HEADS[head].result_kinds)
    return dataclasses.replace(weights, **parts)


def balance(norm: FloatArray, weight: FloatArray) -> FloatArray:
    """Return a factor for each feature between a LayerNorm and a map, powers of 2: float32, (K,).

    The LayerNorm's weight, (K,), is divided by them, and the columns of the map's, (N, K), are multiplied: the function
    is the same, and the LayerNorm's output has the factors, also in a trace. A feature that is large in the one and
    small in the other is then of a middle size in both, so it does not take the bits of its group when the map is
    rounded. Of a usual feature the factor is 1.

    Notes
    -----
    Source: Xiao et al. 2022, SmoothQuant (arXiv 2211.10438), with the LayerNorm's weight for the size of the inputs.
    """
    ratios = np.abs(norm, dtype=np.float64) / np.maximum(np.abs(weight).max(axis=0), 1e-38)
    return np.ldexp(np.float32(1), np.frexp(ratios / (np.median(ratios) or 1.0))[1] // 2)


class FromFiles:
    """The source that reads the files of a checkpoint."""

    def __init__(self, tensors: Mapping[str, StoredTensor], prepare: _Prepare, balanced: bool = False) -> None:
        self._tensors, self._prepare, self._balanced = tensors, prepare, balanced
        self._noted: dict[str, Table | PreparedLinear] = {}
        self._factors: dict[str, FloatArray] = {}

    def arrays(self, read: Callable[[TensorSource], object]) -> dict[str, FloatArray]:
        """Return all that a function reads, as `Restored` needs it."""
        read(self)
        return noted_arrays(self._noted)

    def array(self, names: Sequence[str], shape: tuple[int, ...]) -> Table:
        """Read the tensors with these names, whose shapes were compared before, stacked by rows."""
        if names[0].endswith("inv_freq"):
            if names[0] not in self._tensors:
                return np.zeros(0, np.float32)
            if (found := self._tensors[names[0]].shape) != shape:
                raise ModelFormatError(
                    f"{names[0]} has shape {list(found)}, expected {list(shape)} (num_attention_heads)"
                )
        table = stored_table(self._tensors[names[0]]) if names[0] == f"{WORDS}.weight" else None
        self._noted[" ".join(names)] = array = table or self._read(names)
        return array

    def linear(
        self, paths: tuple[str, ...], shape: tuple[int, int], *, bias: bool = True, gated: bool = False
    ) -> PreparedLinear:
        """Read and prepare the linear maps of these modules, stacked into one weight."""
        weight = self._read([f"{path}.weight" for path in paths])
        norm = re.sub(r"self\.(query|key)$|(?<=intermediate\.)(gate|dense)$", "LayerNorm", paths[0])
        before: Any = [self._noted[name] for name in (f"{norm}.weight", f"{norm}.bias") if name in self._noted]
        if self._balanced and before:  # a LayerNorm of a model that has it before the map, and read just now
            norms = [] if norm in self._factors else before  # those of the query and of the keys have the same one
            factors = self._factors.setdefault(norm, balance(before[0], weight))
            for array, by in ((weight, factors), *((array, 1 / factors) for array in norms)):
                array.flags.writeable = True
                array *= by
                array.flags.writeable = False
        return self._prepared(paths, weight, bias, gated, half=self._half([f"{path}.weight" for path in paths]))

    def _prepared(
        self, paths: tuple[str, ...], weight: FloatArray, bias: bool, gated: bool = False, *, half: str
    ) -> PreparedLinear:
        added = self._read([f"{path}.bias" for path in paths]) if bias else zeros_of(len(weight))
        linear = self._noted[" ".join(paths)] = self._prepare(Linear(paths, weight, added, gated, half))
        return linear

    def _half(self, names: Sequence[str]) -> str:
        """Return the one kind of 16 bits of these tensors; "" if they have another one, or are balanced."""
        kinds = {self._tensors[name].dtype for name in names}
        return kinds.pop() if len(kinds) == 1 and kinds <= {"F16", "BF16"} and not self._balanced else ""

    def decoder(self, path: str, word_embeddings: FloatArray, bias: bool) -> tuple[PreparedLinear, bool]:
        """Read and prepare the decoder; a weight that equals the word embeddings is not kept a second time."""
        own = f"{path}.weight" in self._tensors
        name = f"{path}.weight" if own else f"{WORDS}.weight"
        weight = self._read([name]) if own else word_embeddings
        if tied := np.array_equal(weight, word_embeddings):
            weight = word_embeddings  # so that a second copy is not kept
        self._noted[f"{path}.tied"] = np.array([tied], np.float32)
        return self._prepared((path,), weight, bias, half=self._half([name])), tied

    def _read(self, names: Sequence[str]) -> FloatArray:
        """Read tensors with the same number of columns into one new read-only float32 array, stacked by rows."""
        tensors = [self._tensors[name] for name in names]
        rows = sum(tensor.shape[0] for tensor in tensors)
        stacked = np.empty((rows, *tensors[0].shape[1:]), dtype=np.float32)
        first = 0
        for tensor in tensors:
            read_tensor(tensor, stacked[first : first + tensor.shape[0]])
            first += tensor.shape[0]
        stacked.flags.writeable = False
        return stacked
