"""`BertPreTrainedModel`: what `BertModel` and the models with heads share, from files to the form of an output."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self, TypeVar, Unpack

from minibert._utils.keywords import FORWARD_KEYWORDS, check_keywords
from minibert._utils.torch_interop import holds_tensor, to_tensor, torch_is_loaded
from minibert._utils.validation import FloatArray
from minibert.bert.config import BertConfig
from minibert.bert.low_precision import compute_type_of
from minibert.bert.ops import LayerNorm, Ops
from minibert.bert.weights import HEADS, Weights
from minibert.checkpoint.files import ModelFiles, check_files
from minibert.models.backend import choose_ops, choose_sharing
from minibert.models.habits import Fixed, TorchHabits
from minibert.models.loading import find_model, load_weights
from minibert.models.options import FromPretrainedKwargs, LoadOptions, ModelKwargs, ModelOptions, lists_keywords
from minibert.models.outputs import ModelOutput, with_tensors
from minibert.models.saving import named_arrays, save_model
from minibert.models.shared_weights import is_mapped
from minibert.models.tracing import Traceable

__all__ = ["BertPreTrainedModel"]

_Output = TypeVar("_Output", bound=ModelOutput)


class BertPreTrainedModel(Fixed, TorchHabits, Traceable):
    """What `BertModel` and the models with heads share: loading, weights and ops, and methods known from torch."""

    _head: ClassVar[str | None] = None  # a class in HEADS
    _keeps_hidden_states: ClassVar[bool] = False

    base_model_prefix = "bert"
    main_input_name = "input_ids"

    def __init__(self, weights: Weights | None, ops: Ops | None, return_dict: bool) -> None:
        name = type(self).__name__
        # Both are required. They may be None so that BertModel(config), which transformers allows, gets this message.
        if not isinstance(weights, Weights) or not isinstance(ops, Ops):
            raise TypeError(
                f"{name} was given {type(weights).__name__} and {type(ops).__name__}; expected trained Weights, "
                "because it never makes random ones, and the Ops that prepared them. Use "
                f"{name}.from_pretrained(name_or_path)."
            )
        self._weights = weights
        self._ops = ops
        self._return_dict = bool(return_dict)

    @property
    def config(self) -> BertConfig:  # type: ignore[override]
        """The config of the weights. To use another one, load the model with ``config=``."""
        return self._weights.config

    @property
    def base_model(self) -> BertPreTrainedModel:
        """The model without its head; a `BertModel` itself."""
        return getattr(self, self.base_model_prefix, self)

    @property
    def weights(self) -> Weights:  # type: ignore[override]
        """The weights; ``BertModel(weights, ops)`` makes a model with other weights."""
        return self._weights

    @property
    def ops(self) -> Ops:  # type: ignore[override]
        """The set of ops that computes; ``BertModel(model.weights, ops)`` makes a model with other ops."""
        return self._ops

    @property
    def compute_type(self) -> str:
        """The numbers that the encoder multiplies: "float32", "int16", "int8_int16" or "int8"."""
        return compute_type_of(self._weights)

    @property
    def num_threads(self) -> int:
        """The most threads that compute; those of NumPy's BLAS are not counted."""
        return self._ops.num_threads

    @property
    def shared_weights(self) -> bool:
        """True if the weights are in the file that processes share, False if this process has a copy of its own."""
        return is_mapped(self._weights.word_embeddings)

    @classmethod
    @lists_keywords(ModelKwargs.__annotations__, others=True)
    def from_pretrained(
        cls,
        name_or_path: str | os.PathLike[str] | None = None,
        **harmless: Unpack[FromPretrainedKwargs],
    ) -> Self:
        """Load a model from a folder, the hub's cache, or the hub.

        Parameters
        ----------
        name_or_path : str or path
            A folder with config.json and model.safetensors, or a hub id such as "bert-base-uncased". Cached files are
            used without asking the network.
        config : BertConfig, optional
            Used instead of the model's own config.json.
        revision : str, optional
            Branch, tag or commit of the hub repository; default "main".
        cache_dir : path, optional
            The hub cache to use; default: that of the hub client (HF_HOME, HF_HUB_CACHE).
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
        backend : {"numba", "numpy"}, optional
            minibert's kernels, or NumPy alone. Default: MINIBERT_BACKEND, else "numba" if it can be imported. With
            "numba", the result of a text is the same bit for bit in any batch, with any number of threads and on every
            processor. With "numpy" it is not.
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
        return cls.from_files(*find_model(call, name_or_path, harmless, cls.from_pretrained))

    @classmethod
    def from_files(cls, files: ModelFiles, options: LoadOptions | None = None, **more: Any) -> Self:
        """Load a model from files that were located already; `more` are options too, and win over `options`."""
        check_files(files)
        asked = ModelOptions.of(options, more)
        if cls._head is not None and HEADS[cls._head].pooled and not asked.add_pooling_layer:
            raise ValueError(f"add_pooling_layer=False, but the head of {cls.__name__} reads the pooler. Leave it out.")
        ops = choose_ops(asked.backend, asked.num_threads, asked.compute_type)
        sharing = choose_sharing(asked.shared_weights, asked.backend, asked.compute_type)
        weights = load_weights(
            files,
            asked.config or BertConfig.from_files(files),
            ops.prepare,
            add_pooling_layer=asked.add_pooling_layer,
            head=cls._head,
            sharing=sharing,
        )
        kept = asked.output_hidden_states
        return cls(
            weights,
            ops,
            output_hidden_states=cls._keeps_hidden_states if kept is None else kept,  # type: ignore[call-arg]
            output_attentions=asked.output_attentions,
            return_dict=asked.return_dict,
        )

    def can_generate(self) -> bool:
        """Return False, because BERT does not write texts."""
        return False

    def num_parameters(self) -> int:
        """Count the trained numbers of the model; a tied decoder's weight counts once."""
        weights = self.weights
        tables = (weights.word_embeddings, weights.position_embeddings, weights.token_type_embeddings)
        parts: list[Any] = [weights.embeddings_norm, *([weights.pooler] if weights.pooler else ())]
        for layer in weights.layers:
            parts += [getattr(layer, field.name) for field in dataclasses.fields(layer) if field.name != "path"]
        tied = 0
        if self._head is not None and weights.head is not None:
            fields = [row.field for row in HEADS[self._head].rows]
            parts += [getattr(weights.head.owner(field), field) for field in fields]
            if weights.head.predictions is not None and weights.head.predictions.tied and "decoder" in fields:
                tied = weights.word_embeddings.size
        return (
            sum(table.size for table in tables)
            - tied
            + sum(
                part.bias.size + (part.weight.size if isinstance(part, LayerNorm) else math.prod(part.shape))
                for part in parts
            )
        )

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        """Yield the name in the checkpoint and the values of each trained array.

        A tied decoder has no weight of its own. They are copies: tensors if torch is loaded, else arrays. Changing them
        does not change the model.
        """
        return ((name, _copy(array)) for name, array in named_arrays(self.weights, self._head))

    def parameters(self) -> Iterator[Any]:
        """Yield the arrays of `named_parameters`, but the tables of embeddings last: copies, made one by one.

        So ``next(model.parameters()).device`` does not copy the table of words.
        """
        tables = []
        for name, array in named_arrays(self.weights, self._head):
            if "_embeddings." in name:
                tables.append(array)
            else:
                yield _copy(array)
        yield from map(_copy, tables)

    def save_pretrained(self, save_directory: str | os.PathLike[str], **harmless: Any) -> None:
        """Write config.json and model.safetensors, which minibert and transformers load as the same model.

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
        save_model(call, save_directory, self.weights, harmless, head=self._head)

    def _check_keywords(self, keywords: Mapping[str, Any]) -> None:
        """Check the keywords of a call that the model itself does not have."""
        check_keywords(type(self).__name__, keywords, FORWARD_KEYWORDS, function=type(self).__call__)

    def _finish(self, output: _Output, return_dict: bool | None, *inputs: object) -> _Output:
        """Return an output as the caller wants it: tensors if an input is one, a tuple if that was asked for."""
        if any(map(holds_tensor, inputs)):
            output = with_tensors(output)
        if self._return_dict if return_dict is None else return_dict:
            return output
        return output.to_tuple()  # type: ignore[return-value]

    def __repr__(self) -> str:
        config, compute_type = self.config, self.compute_type
        low = "" if compute_type == "float32" else f", compute_type={compute_type!r}"
        return (
            f"{type(self).__name__}({config.num_hidden_layers} layers, hidden_size={config.hidden_size}, "
            f"{config.num_attention_heads} heads, {self.num_parameters():,} parameters{low})"
        )


def _copy(array: FloatArray) -> Any:
    """Copy an array: into a tensor if torch is loaded."""
    return to_tensor(array.copy()) if torch_is_loaded() else array.copy()
