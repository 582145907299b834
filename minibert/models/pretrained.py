"""What all models share: loading, saving, weights and ops, and what programs for torch expect of a model.

`TorchLike` has the methods of a torch.nn.Module. They change nothing: a model is always in inference mode, on the CPU,
in float32. What would change something is refused, and the message says what to do. `Fixed` refuses new attributes.
`BertPreTrainedModel` is the base class of `BertModel` and of the models with heads.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt

from minibert._utils.files import make_folder
from minibert._utils.keywords import FORWARD_KEYWORDS, SAVING_KEYWORDS, check_keywords, is_float32
from minibert._utils.torch_interop import cpu_device, float32_dtype, holds_tensor, to_tensor, torch_is_loaded
from minibert._utils.validation import FloatArray, brief, is_cpu
from minibert.bert.config import BertConfig
from minibert.bert.families import FAMILIES, NAMES, Family, bert_class
from minibert.bert.low_precision import compute_type_of
from minibert.bert.ops import Ops
from minibert.bert.packed import PackedBatch
from minibert.bert.weights import HEADS, LAYER_ROWS, POOLER_ROWS, Weights, stored_rows
from minibert.checkpoint.files import WEIGHTS, WEIGHTS_INDEX, ModelFiles, check_files
from minibert.checkpoint.safetensors import write_safetensors
from minibert.errors import ModelFormatError
from minibert.models import tracing
from minibert.models.backend import choose_ops, choose_sharing
from minibert.models.inputs import named_inputs, ordered_inputs, pack
from minibert.models.loading import find_model, load_weights, named_arrays
from minibert.models.options import LoadOptions, ModelOptions, Selection, lists_keywords
from minibert.models.outputs import ModelOutput, with_tensors
from minibert.models.shared_weights import is_mapped

if TYPE_CHECKING:
    from minibert.models.bert import BertModel, Embedding

_Output = TypeVar("_Output", bound=ModelOutput)
_Model = TypeVar("_Model", bound="BertPreTrainedModel[Any]")

_GROW = "change it with transformers, save it, and load the folder here"
_LAYER = "model.trace(...) gives the values of every layer by name, and trace(..., edit=...) changes them"

# Parts of transformers' models that minibert's do not have -> what to use.
_PARTS = {
    "layer": f"{_LAYER}; to run fewer layers, give num_layers= to a call (bert-score: all_layers=True)",
    "pooler": "output.pooler_output is its result, None if the checkpoint does not have a pooler",
    **dict.fromkeys(("encoder", "cls", "classifier", "qa_outputs"), _LAYER),
}

# The same for methods and other attributes.
_ELSEWHERE = {
    **_PARTS,
    **dict.fromkeys(("register_forward_hook", "register_forward_pre_hook"), _LAYER),
    **dict.fromkeys(("resize_token_embeddings", "resize_position_embeddings", "add_adapter", "load_adapter"), _GROW),
    "dropout": "leave it out, because dropout is the identity at inference",
    "state_dict": "dict(model.named_parameters()) has the same names, without the buffers",
    "load_state_dict": "save the weights as model.safetensors in a folder, and load it",
    "set_input_embeddings": "give the vectors to a call, model(inputs_embeds=...)",
}


class Fixed:
    """An object whose attributes cannot be replaced, because the forward pass would not use the new ones.

    `vars(self)` sets the attributes when the object is made.
    """

    if not TYPE_CHECKING:  # type checkers know which attributes there are

        def __getattr__(self, name: str) -> Any:
            remedy = f": {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{remedy}.")

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_") and (name in _PARTS or name in vars(self) or hasattr(type(self), name)):
            raise AttributeError(
                f"{type(self).__name__}.{name} cannot be set, because a model does not change. Change values in a call "
                "by trace(..., edit=...); change weights with transformers, save them, and load the folder."
            )
        super().__setattr__(name, value)


class TorchLike:
    """The methods of a torch.nn.Module that inference programs call; the base of minibert's models."""

    training = False

    @property
    def device(self) -> Any:
        """The device "cpu": a torch.device if torch is loaded, else a str."""
        return cpu_device()

    @property
    def dtype(self) -> Any:
        """The type of all results: torch.float32 if torch is loaded, else NumPy's float32."""
        return float32_dtype()

    def eval(self) -> Self:
        """Return the model itself, because it is always in inference mode."""
        return self

    def train(self, mode: bool = True) -> Self:
        """Refuse to train; ``train(False)`` returns the model itself."""
        if mode:
            raise ValueError("train(): minibert only runs trained models. Train with transformers, and load that.")
        return self

    def to(self, *args: object, **kwargs: object) -> Self:
        """Return the model itself for "cpu" and float32; refuse any other device or type."""
        harmless = ("non_blocking", "copy", "memory_format")
        values = [*args, *(value for name, value in kwargs.items() if name not in harmless)]
        for value in values or [None]:
            if not is_cpu(value) and (value is None or not is_float32(value)):
                raise ValueError(f"{brief(value)}: minibert runs on the CPU in float32. See compute_type= of loading.")
        return self

    def cpu(self) -> Self:
        """Return the model itself, because it is on the CPU."""
        return self

    def float(self) -> Self:
        """Return the model itself, because its results are float32 with every compute type.

        Weights that were rounded while loading stay rounded, as those of a model that torch has quantised. For weights
        in float32 load the model with compute_type="float32".
        """
        return self

    def half(self) -> Self:
        """Refuse float16, because a compute type is chosen while loading."""
        return self.to("float16")

    def bfloat16(self) -> Self:
        """Refuse bfloat16, because a compute type is chosen while loading."""
        return self.to("bfloat16")

    def double(self) -> Self:
        """Refuse float64, because minibert computes in float32."""
        return self.to("float64")

    def cuda(self, device: object = None) -> Self:
        """Refuse a GPU, because minibert runs on the CPU."""
        return self.to("cuda")

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Return the model itself for False; refuse gradients."""
        if requires_grad:
            raise ValueError("requires_grad_(): minibert does not compute gradients. Leave the call out.")
        return self


class BertPreTrainedModel(Fixed, TorchLike, Generic[_Output]):
    """The base class of `BertModel` and the models with heads: loading, weights and ops, and methods known from torch.

    Attributes
    ----------
    config : BertConfig    read-only; to use another one, load the model with ``config=``
    weights : Weights      read-only; ``BertModel(weights, ops)`` makes a model with other weights
    ops : Ops              read-only; ``BertModel(model.weights, ops)`` makes a model with other ops, as `with_ops`
    """

    _head: ClassVar[str | None] = None  # a class in HEADS
    _keeps_hidden_states: ClassVar[bool] = False

    _family: ClassVar[Family] = FAMILIES["bert"]
    base_model_prefix = "bert"
    main_input_name = "input_ids"

    config: BertConfig
    weights: Weights
    ops: Ops
    _result_dtype: npt.DTypeLike = np.float32

    trace = tracing.trace
    stream = tracing.stream
    value_names = tracing.value_names

    def __init__(
        self,
        weights: Weights | None = None,
        ops: Ops | None = None,
        *,
        output_hidden_states: Selection | None = None,
        output_attentions: Selection = False,
        return_dict: bool = True,
    ) -> None:
        name = type(self).__name__
        # Both are required. They may be None so that BertModel(config), which transformers allows, gets this message.
        if not isinstance(weights, Weights) or not isinstance(ops, Ops):
            given = f"{type(weights).__name__} and {type(ops).__name__}"
            raise TypeError(
                f"{name} was given {given}; expected trained Weights and Ops. Use {name}.from_pretrained(name_or_path)."
            )
        linears = [*(one for layer in weights.layers for one in layer.linears), *filter(None, [weights.pooler])]
        if ops.takes is not None and not all(map(ops.takes, linears)):
            raise ValueError(
                "These ops cannot compute with weights that other ops prepared, for another backend or compute type. "
                "Load the model with the backend= and compute_type= that you want."
            )
        vars(self).update(config=weights.config, weights=weights, ops=ops)
        self._return_dict = bool(return_dict)
        kept = self._keeps_hidden_states if output_hidden_states is None else output_hidden_states
        self._make_parts(kept, output_attentions)

    def _make_parts(self, hidden_states: Selection, attentions: Selection) -> None:
        """Make the parts of a model from its weights and ops."""
        raise NotImplementedError

    @property
    def _inputs(self) -> list[str]:
        return self.config.family.positional(self._head)

    @ordered_inputs
    def __call__(
        self,
        input_ids: npt.ArrayLike | None = None,
        attention_mask: npt.ArrayLike | None = None,
        token_type_ids: npt.ArrayLike | None = None,
        position_ids: npt.ArrayLike | None = None,
        inputs_embeds: npt.ArrayLike | None = None,
        *,
        output_hidden_states: Selection | None = None,
        output_attentions: Selection | None = None,
        num_layers: int | None = None,
        positions: npt.ArrayLike | None = None,
        return_dict: bool | None = None,
        **harmless: Any,
    ) -> _Output:
        """Run the model on B sequences of S token positions; masked tokens are not computed.

        Arrays, lists and tensors of torch are accepted. If an input is a tensor, the output holds tensors.

        Parameters
        ----------
        input_ids : int array of shape (B, S), in [0, vocab_size)
            `BertForMultipleChoice` has one axis more in all inputs.
        attention_mask : array of 0 and 1, or bool, of shape (B, S), optional
            0 masks a token. Any tokens may be masked, also a whole row. Default: none is masked.
        token_type_ids : int array of shape (B, S), in [0, type_vocab_size), optional
            Default: zeros.
        position_ids : int array of shape (B, S) or (1, S), in [0, max_position_embeddings), optional
            Default: the column; the mask does not change it.
        inputs_embeds : float array of shape (B, S, H), optional
            Word vectors instead of `input_ids`. Do not give hidden_states[0]; see `BertEmbeddings.__call__`.
        output_hidden_states : bool, int or ints, optional
            Which of the L + 1 hidden states to keep; the others are None. 0 is the embeddings' output, not False.
        output_attentions : bool, int or ints, optional
            Which of the L layers' attention probs to keep; 0 is the first layer.
        num_layers : int, optional
            Only for `BertModel`: stop after this number of layers, 0 to L. Below L, last_hidden_state and pooler_output
            are None.
        positions : int array of shape (n, 2), optional
            Only for a masked-LM head: the row and the column of each token whose logits are wanted, as
            ``np.argwhere(input_ids == tokenizer.mask_token_id)`` gives them. The decoder, H x V numbers, runs for these
            tokens only. Each result has the same bits as without `positions`. Default: all tokens.
        return_dict : bool, optional
            False: return the tuple of the output's values.
        **harmless
            Keywords of transformers at values that change nothing, such as ``labels=None`` or ``use_cache=False``.

        Returns
        -------
        BertModelOutput, or the output that belongs to the head
            New float32 arrays with zeros for masked tokens. B = 0 and S = 0 give empty arrays. The class of a model
            with a head says the shape of its logits.

        Raises
        ------
        TypeError, ValueError
            An input has the wrong kind, shape or range; the message names row, column and value. Or labels are given.
        MemoryError
            The result does not fit into the memory that this process may use.
        """
        name = type(self).__name__
        check_keywords(name, harmless, FORWARD_KEYWORDS, function=type(self).__call__)
        if num_layers is not None and self._head is not None:
            raise TypeError(f"{name} has a head, which needs all layers, so it does not take num_layers=.")
        if positions is not None and not self._has_decoder:
            raise TypeError(f"{name} has no masked-LM head, so it does not take positions=.")
        inputs = named_inputs(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        kept = {"output_hidden_states": output_hidden_states, "output_attentions": output_attentions}
        return self._finish(self._compute(inputs, kept, num_layers, positions), return_dict, inputs)

    forward = __call__

    def _compute(self, inputs: Mapping[str, Any], kept: Mapping[str, Any], num_layers: Any, positions: Any) -> _Output:
        """Run the model on the inputs of a call, which are not checked yet; `kept` are two of its arguments."""
        raise NotImplementedError

    @property
    def base_model(self) -> BertModel:
        """The model without its head; a `BertModel` itself."""
        return getattr(self, self.base_model_prefix, self)  # type: ignore[arg-type]

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
        return is_mapped(self.weights.word_embeddings)

    @classmethod
    @lists_keywords()
    def from_pretrained(cls, name_or_path: str | os.PathLike[str] | None = None, **harmless: Any) -> Self:
        """Load a model from a folder, the hub's cache, or the hub.

        Parameters
        ----------
        name_or_path : str or path
            A folder with config.json and model.safetensors or pytorch_model.bin, or a hub id such as
            "bert-base-uncased". Cached files are used without asking the network.
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
        """Load a model from located files; `more` are further options, which override `options`."""
        check_files(files)
        asked = ModelOptions.of(options, more)
        if cls._head is not None and HEADS[cls._head].pooled and not asked.add_pooling_layer:
            raise ValueError(f"add_pooling_layer=False, but the head of {cls.__name__} reads the pooler. Leave it out.")
        ops = choose_ops(asked.backend, asked.num_threads, asked.compute_type)
        sharing = choose_sharing(asked.shared_weights, asked.backend, asked.compute_type)
        config, pooler = asked.config or BertConfig.from_files(files), asked.add_pooling_layer
        weights = load_weights(files, config, ops.prepare, add_pooling_layer=pooler, head=cls._head, sharing=sharing)
        names = ("output_hidden_states", "output_attentions", "return_dict")
        kind = class_of(cls, config.family)  # type: ignore[arg-type]
        return kind(weights, ops, **{name: getattr(asked, name) for name in names})

    def num_parameters(self) -> int:
        """Count the trained numbers of the model; a tied decoder's weight is counted once."""
        config, head = self.config, self.weights.head
        rows = [*stored_rows(config), *LAYER_ROWS * config.num_hidden_layers]
        rows += POOLER_ROWS if self.weights.pooler else ()
        rows += HEADS[self._head].rows if self._head is not None else ()
        tied = self._has_decoder and head is not None and head.predictions is not None and head.predictions.tied
        count = sum(math.prod(row.sizes(config)) + row.bias * row.sizes(config)[0] for row in rows)
        return count - tied * self.weights.word_embeddings.size

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        """Yield the name in the checkpoint and the values of each trained array.

        A tied decoder has no weight of its own. They are copies: tensors if torch is loaded, else arrays. Changing them
        does not change the model.
        """
        return ((name, _copy(array)) for name, array in named_arrays(self.weights, self._head))

    def parameters(self) -> Iterator[Any]:
        """Yield copies of the arrays of `named_parameters`, made one by one; the embedding tables come last.

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
        check_keywords(call, harmless, SAVING_KEYWORDS)
        if self.compute_type != "float32":
            raise ValueError(f"{call}: weights rounded to {self.compute_type}; load with compute_type='float32'.")
        path = make_folder(save_directory)
        if os.path.lexists(index := os.path.join(path, WEIGHTS_INDEX)):
            raise FileExistsError(f"{index} belongs to another model; save into a new folder.")
        write_safetensors(os.path.join(path, WEIGHTS), named_arrays(self.weights, self._head))
        own_class = self.config.family.own_class(self._head or "BertModel")
        self.config.save_pretrained(path, architectures=[own_class], dtype="float32")

    def get_input_embeddings(self) -> Embedding:
        """Return the word embeddings; ``model.get_input_embeddings()(ids)`` looks up ids without a forward."""
        return self.base_model.embeddings.word_embeddings

    def with_ops(self, ops: Ops, dtype: npt.DTypeLike = np.float32) -> Self:
        """Return a model with the same weights and other ops, which compute in `dtype`; this model does not change.

        The ops must be able to use the weights that the ops of this model prepared: a wrapped set of `model.ops`, or
        one that reads ``linear.weight``.
        """
        base = self.base_model
        hidden, attentions = base._hidden_states or False, base._attentions or False
        kept: dict[str, Any] = {"output_hidden_states": hidden, "output_attentions": attentions}
        model = type(self)(self.weights, ops, **kept, return_dict=self._return_dict)
        model._result_dtype = model.base_model._result_dtype = dtype
        return model

    def _pack(self, inputs: Mapping[str, Any]) -> PackedBatch:
        return pack(self.config, **inputs)

    @property
    def _has_decoder(self) -> bool:
        return self._head is not None and any(row.field == "decoder" for row in HEADS[self._head].rows)

    def _finish(self, output: _Output, return_dict: bool | None, inputs: Mapping[str, object]) -> _Output:
        """Return an output as the caller wants it: tensors if an input is one, a tuple if that was asked for."""
        if torch_is_loaded() and any(map(holds_tensor, inputs.values())):
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


@functools.cache
def class_of(base: type[_Model], family: Family) -> type[_Model]:
    """Return the class of a family that is like a class of BERT, with the name that transformers has for it."""
    if base._family is family or not base.__name__.startswith("Bert"):
        return base
    doc = f"`{base.__name__}` for checkpoints of the type {family.model_type!r}; see bert/families.py."
    fields = {"_family": family, "base_model_prefix": family.field, "__module__": "minibert", "__doc__": doc}
    return type(family.own_class(base.__name__), (base,), fields)
