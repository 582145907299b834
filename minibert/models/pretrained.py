"""What all models share beside their forward (base.py): loading, saving, parameters and tracing.

`BertPreTrainedModel` is the base class of `BertModel` and of the models with heads.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterator
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

import minibert.models.tracing as tracing
from minibert._utils.files import make_folder
from minibert._utils.keywords import SAVING_KEYWORDS, check_keywords
from minibert._utils.torch_interop import to_tensor, torch_is_loaded
from minibert.bert.config import BertConfig
from minibert.bert.families import FAMILIES, NAMES, Family, bert_class
from minibert.bert.low_precision import compute_type_of
from minibert.bert.ops import Table
from minibert.bert.packed import PackedBatch
from minibert.bert.rows import HEADS
from minibert.checkpoint.files import ModelFiles, check_files
from minibert.checkpoint.hub import WEIGHTS, WEIGHTS_INDEX
from minibert.checkpoint.safetensors import write_safetensors
from minibert.errors import ModelFormatError
from minibert.models.backend import choose_compute_type, choose_ops, choose_sharing
from minibert.models.base import ModelBase
from minibert.models.fingerprint import Fingerprinted, parts_of_weights, sha256_of_results
from minibert.models.loading import find_model, load_weights
from minibert.models.options import LoadOptions, ModelOptions, lists_keywords
from minibert.models.outputs import ModelOutput
from minibert.models.shared_weights import is_mapped
from minibert.models.stored import named_arrays

_Output = TypeVar("_Output", bound=ModelOutput)
_Model = TypeVar("_Model", bound="BertPreTrainedModel[Any]")


class BertPreTrainedModel(Fingerprinted, ModelBase[_Output]):
    """The base class of `BertModel` and the models with heads: loading, saving, parameters and tracing."""

    _family: ClassVar[Family] = FAMILIES["bert"]
    main_input_name = "input_ids"

    trace = tracing.trace
    stream = tracing.stream
    value_names = tracing.value_names

    @property
    def compute_type(self) -> str:
        """The type of numbers that the encoder multiplies: "float32", "int16", "int8_int16" or "int8"."""
        return compute_type_of(self.weights)

    @property
    def num_threads(self) -> int:
        """The largest number of threads that compute; threads of NumPy's BLAS are not counted."""
        return self.ops.num_threads

    @property
    def shared_weights(self) -> bool:
        """True if the weights are in the file that processes share, False if this process has its own copy."""
        norms = self.weights.embeddings_norm, self.weights.final_norm
        return any(is_mapped(norm.weight) for norm in norms if norm is not None)

    @classmethod
    @lists_keywords()
    def from_pretrained(cls, name_or_path: str | os.PathLike[str] | None = None, **harmless: Any) -> Self:
        """Load a model from a folder, the hub's cache, or the hub.

        Parameters
        ----------
        name_or_path : str or path
            A folder with config.json and model.safetensors or pytorch_model.bin, a GGUF file, "ollama:name", or a hub
            id such as "bert-base-uncased". Cached files are used without asking the network.
        config : BertConfig, optional
            Used instead of the model's own config.json.
        revision : str, optional
            Branch, tag or commit of the hub repository; default "main".
        cache_dir : path, optional
            The hub cache to use; default: the hub client's (HF_HOME, HF_HUB_CACHE).
        token : str or bool, optional
            For private repositories; default: HF_TOKEN, or the token that ``hf auth login`` saved.
        local_files_only : bool
            Never ask the network.
        subfolder : str
            Folder of the repository that holds the model.
        output_hidden_states, output_attentions : bool, int or ints
            The defaults of each call; see `BertModel.__call__`. If they are not given, `BertModel` keeps all hidden
            states, a model with a head keeps none, and no model keeps attentions.
        add_pooling_layer : bool
            Load the pooler if the checkpoint has one. A model with a head has it if and only if the head needs it.
        backend : {"kernels", "numpy"}, optional
            minibert's kernels, or NumPy alone. Default: MINIBERT_BACKEND, else "kernels" if they were built. With
            "kernels", the result of a text is the same bit for bit in any batch, with any number of threads and on
            every processor. With "numpy" it is not. "numba" is the old name of "kernels".
        num_threads : int, optional
            Threads of minibert's kernels, 1 to 1,024. Default: MINIBERT_NUM_THREADS, else the cores that this process
            may use, but at most OMP_NUM_THREADS. A BLAS reads its number of threads from its own variables
            (OPENBLAS_NUM_THREADS).
        compute_type : {"float32", "int16", "int8_int16", "int8"}, optional
            The numbers that the encoder multiplies. Weights are converted while they are loaded. All but float32 are
            faster and need less memory, with a small error; models/README.md has the figures. Default:
            MINIBERT_COMPUTE_TYPE, else "float32".
        shared_weights : bool, optional
            Map the packed weights from a file, which is written at the first load, so that all processes of this
            machine hold one copy of them. The results are the same. Default: MINIBERT_SHARED_WEIGHTS (1 or 0), else
            False.
        idle_release : float, optional
            After this number of seconds without a call, threads and buffers are given back, and the memory of weights
            too if they are shared. The next call takes some milliseconds more. Default: they are kept.
        return_dict : bool
            The default of each call; see `__call__`.
        **harmless
            Keywords of transformers at values that change nothing, such as ``torch_dtype=torch.float32``,
            ``attn_implementation="sdpa"``, ``device_map="cpu"``, or ``pretrained_model_name_or_path=`` for the name.

        Raises
        ------
        TypeError, ValueError
            A keyword is not known, or its value would change the result.
        ModelFormatError
            A file is missing or damaged, or minibert does not implement the model.
        DownloadError
            The model is not on this machine and could not be downloaded.
        """
        call = f"{cls.__name__}.from_pretrained"
        files, options, family = find_model(call, name_or_path, harmless, cls.from_pretrained, cls._family)
        if family is not cls._family:
            bert = bert_class(cls.__name__)
            own = f"minibert.{family.own_class(bert)}, or " if bert in NAMES else ""
            raise ModelFormatError(
                f"{files.source} is a model of the type {family.model_type!r}, not {cls._family.model_type!r}. Use "
                f"{own}minibert.load, which finds the class."
            )
        return cls.from_files(files, options)

    @classmethod
    def from_files(cls, files: ModelFiles, options: LoadOptions | None = None, **more: Any) -> Self:
        """Load a model from located files; `more` are further options that override `options`."""
        check_files(files)
        asked = ModelOptions.of(options, more)
        if cls.head_name is not None and HEADS[cls.head_name].pooled and not asked.add_pooling_layer:
            raise ValueError(f"add_pooling_layer=False, but the head of {cls.__name__} reads the pooler. Leave it out.")
        sharing = choose_sharing(asked.shared_weights, asked.backend, asked.compute_type)
        ops = choose_ops(asked.backend, asked.num_threads, asked.compute_type, asked.idle_release, sharing)
        if sharing is not None:
            files.digest_by(sharing.digest)
        config = asked.config or BertConfig.from_files(files)
        how: Any = {"add_pooling_layer": asked.add_pooling_layer, "head": cls.head_name, "sharing": sharing}
        low = choose_compute_type(asked.compute_type) != "float32"
        weights = load_weights(files, config, ops.prepare, balanced=low, **how)
        names = ("output_hidden_states", "output_attentions", "return_dict")
        kind = class_of(cls, config.family)  # type: ignore[arg-type]
        return kind(weights, ops, **{name: getattr(asked, name) for name in names})

    def num_parameters(self) -> int:
        """Count the trained numbers of the model; a tied decoder's weight is counted once."""
        config, head = self.config, self.weights.head
        rows = [row for *_, rows in self.weights.stored_parts(self.head_name) for row in rows]
        tied = "words" in self.result_kinds and head is not None and head.tied
        count = sum(math.prod(row.sizes(config)) + row.bias * row.sizes(config)[0] for row in rows)
        return count - tied * math.prod(self.weights.words.shape)

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        """Yield the name in the checkpoint and the values of each trained array.

        A tied decoder has no weight of its own. They are copies: tensors if torch is loaded, else arrays. Changing them
        does not change the model.
        """
        return ((name, _copy(array)) for name, array in named_arrays(self.weights, self.head_name))

    def parameters(self) -> Iterator[Any]:
        """Yield copies of the arrays of `named_parameters`, made one by one; the embedding tables come last.

        So ``next(model.parameters()).device`` does not copy the table of words.
        """
        tables = []
        for name, array in named_arrays(self.weights, self.head_name):
            if "_embeddings." in name:
                tables.append(array)
            else:
                yield _copy(array)
        yield from map(_copy, tables)

    def parts_without_results(self) -> dict[str, Any]:
        """Return the `fingerprint_parts` but for the results."""
        return parts_of_weights(self.weights, self.head_name, self.compute_type)

    def fingerprint_parts(self) -> dict[str, Any]:
        """Return what `fingerprint` is computed from, by name: the results are those of five fixed lists of ids."""
        head = self.config.family.own_class(self.head_name or "BertModel")
        return {"class": head, **self.parts_without_results(), "results": sha256_of_results(self.ops, self._results())}

    def _results(self) -> Iterator[Any]:
        vocab_size, lengths = self.config.vocab_size, (1, 2, 5, 9, 16)
        ids = [7919 * np.arange(1, n + 1) % vocab_size for n in lengths if n <= self.config.longest]
        batch = PackedBatch.from_sequences(self.config, ids, [np.zeros_like(row) for row in ids])
        for part in self.run_packed(batch, output_hidden_states=True).to_tuple():
            yield from part if isinstance(part, tuple) else (part,)

    def save_pretrained(self, save_directory: str | os.PathLike[str], **harmless: Any) -> None:
        """Write config.json and model.safetensors. minibert and transformers load them as the same model.

        The weights are written in float32, under the names that transformers gives them. The folder is made if it does
        not exist; other files in it are not touched.

        Parameters
        ----------
        save_directory : str or path
        **harmless
            Keywords of transformers at values that change nothing, such as ``safe_serialization=True``.

        Raises
        ------
        OSError
            A file cannot be written. A file that was there before is then as it was.
        """
        call = f"{type(self).__name__}.save_pretrained"
        check_keywords(call, harmless, SAVING_KEYWORDS)
        if self.compute_type != "float32":
            raise ValueError(f"{call}: weights rounded to {self.compute_type}; load with compute_type='float32'.")
        path = make_folder(save_directory)
        if os.path.lexists(index := os.path.join(path, WEIGHTS_INDEX)):
            raise FileExistsError(f"{index} belongs to another model; save into a new folder.")
        write_safetensors(os.path.join(path, WEIGHTS), named_arrays(self.weights, self.head_name))
        own_class = self.config.family.own_class(self.head_name or "BertModel")
        self.config.save_pretrained(path, architectures=[own_class], dtype="float32")

    def __repr__(self) -> str:
        if self.is_closed:
            return f"{type(self).__name__}(closed)"
        config, compute_type = self.config, self.compute_type
        low = "" if compute_type == "float32" else f", compute_type={compute_type!r}"
        return (
            f"{type(self).__name__}({config.num_hidden_layers} layers, hidden_size={config.hidden_size}, "
            f"{config.num_attention_heads} heads, {self.num_parameters():,} parameters{low})"
        )


def _copy(table: Table) -> Any:
    """Copy an array, or a table in a file: into a tensor if torch is loaded."""
    array = np.array(table)
    return to_tensor(array) if torch_is_loaded() else array


@functools.cache
def class_of(base: type[_Model], family: Family) -> type[_Model]:
    """Return the class of a family that is like a class of BERT, with the name that transformers has for it."""
    if base._family is family or not base.__name__.startswith("Bert"):
        return base
    doc = f"`{base.__name__}` for checkpoints of the type {family.model_type!r}; see bert/families/."
    fields = {"_family": family, "base_model_prefix": family.field, "__module__": "minibert", "__doc__": doc}
    return type(family.own_class(base.__name__), (base,), fields)
