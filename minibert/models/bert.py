"""`BertModel`: ids in, every hidden state out; and its base class, which the models with a head share."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar, Unpack

import numpy as np
import numpy.typing as npt

from minibert._utils.keywords import FORWARD_KEYWORDS, check_keywords
from minibert._utils.system import require_memory
from minibert._utils.torch_interop import holds_tensor, to_tensor, torch_is_loaded
from minibert._utils.validation import FloatArray, check_indices, check_int
from minibert.bert import encoder
from minibert.bert.config import BertConfig
from minibert.bert.low_precision import compute_type_of
from minibert.bert.ops import Ops
from minibert.bert.packed import PackedBatch
from minibert.bert.weights import EMBEDDING_ROWS, HEADS, LAYER_ROWS, POOLER_ROWS, Weights
from minibert.checkpoint.files import ModelFiles, check_files
from minibert.models import tracing
from minibert.models.backend import choose_ops, choose_sharing
from minibert.models.inputs import pack
from minibert.models.loading import find_model, load_weights
from minibert.models.modules import BertEmbeddings, Embedding, Encoder, Fixed, TorchLike
from minibert.models.options import FromPretrainedKwargs, LoadOptions, ModelOptions, Selection, lists_keywords
from minibert.models.outputs import BertModelOutput, ModelOutput, with_tensors
from minibert.models.saving import named_arrays, save_model
from minibert.models.shared_weights import is_mapped

# Tokens that go through the encoder together. They are enough for fast matrix products, and so few that the arrays
# between two products stay in cache. The number also limits the memory of a forward beyond its result. Callers that
# pool each step before the next one is computed do not need memory for the full result either.
TOKENS_PER_STEP = 1024


_Output = TypeVar("_Output", bound=ModelOutput)


class CallOptions(NamedTuple):
    """The options of one call of a model; see `BertPreTrainedModel.__call__`."""

    hidden_states: Selection | None
    attentions: Selection | None
    num_layers: int | None
    positions: npt.ArrayLike | None


class BertPreTrainedModel(Fixed, TorchLike, Generic[_Output]):
    """The base class of `BertModel` and the models with heads: loading, weights and ops, and methods known from torch.

    Attributes
    ----------
    config : BertConfig    read-only; to use another one, load the model with ``config=``
    weights : Weights      read-only; ``BertModel(weights, ops)`` makes a model with other weights
    ops : Ops              read-only; ``BertModel(model.weights, ops)`` makes a model with other ops
    """

    _head: ClassVar[str | None] = None  # a class in HEADS
    _keeps_hidden_states: ClassVar[bool] = False

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
            raise TypeError(
                f"{name} was given {type(weights).__name__} and {type(ops).__name__}; expected trained Weights, "
                "because it never makes random ones, and the Ops that prepared them. Use "
                f"{name}.from_pretrained(name_or_path)."
            )
        vars(self).update(config=weights.config, weights=weights, ops=ops)
        self._return_dict = bool(return_dict)
        kept = self._keeps_hidden_states if output_hidden_states is None else output_hidden_states
        self._make_parts(kept, output_attentions)

    def _make_parts(self, hidden_states: Selection, attentions: Selection) -> None:
        """Make the parts of a model from its weights and ops."""
        raise NotImplementedError

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
        inputs = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
            "position_ids": position_ids,
            "inputs_embeds": inputs_embeds,
        }
        options = CallOptions(output_hidden_states, output_attentions, num_layers, positions)
        return self._finish(self._compute(inputs, options), return_dict, *inputs.values())

    forward = __call__

    def _compute(self, inputs: Mapping[str, Any], options: CallOptions) -> _Output:
        """Run the model on the inputs of a call, which are not checked yet."""
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
    def from_pretrained(
        cls, name_or_path: str | os.PathLike[str] | None = None, **harmless: Unpack[FromPretrainedKwargs]
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
        return cls.from_files(*find_model(call, name_or_path, harmless, cls.from_pretrained))

    @classmethod
    def from_files(cls, files: ModelFiles, options: LoadOptions | None = None, **more: Any) -> Self:
        """Load a model from located files; `more` are further options, which override `options`."""
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
        return cls(
            weights,
            ops,
            output_hidden_states=asked.output_hidden_states,
            output_attentions=asked.output_attentions,
            return_dict=asked.return_dict,
        )

    def num_parameters(self) -> int:
        """Count the trained numbers of the model; a tied decoder's weight is counted once."""
        config, head = self.config, self.weights.head
        rows = [*EMBEDDING_ROWS, *LAYER_ROWS * config.num_hidden_layers, *(POOLER_ROWS if self.weights.pooler else ())]
        rows += HEADS[self._head].rows if self._head is not None else ()
        tied = head is not None and head.predictions is not None and head.predictions.tied
        has_tied = tied and any(row.field == "decoder" for row in rows)
        count = sum(math.prod(row.sizes(config)) + row.bias * row.sizes(config)[0] for row in rows)
        return count - has_tied * self.weights.word_embeddings.size

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
        save_model(call, save_directory, self.weights, harmless, head=self._head)

    def get_input_embeddings(self) -> Embedding:
        """Return the word embeddings; ``model.get_input_embeddings()(ids)`` looks up ids without a forward."""
        return self.base_model.embeddings.word_embeddings

    def with_ops(self, ops: Ops, dtype: npt.DTypeLike = np.float32) -> Self:
        """Return a model with the same weights and other ops, which compute in `dtype`; this model does not change.

        The ops must be able to use the weights that the ops of this model prepared: a wrapped set of `model.ops`, or
        one that reads ``linear.weight``.
        """
        base = self.base_model
        hidden, attentions = (False if kept is None else kept for kept in (base._hidden_states, base._attentions))
        model = type(self)(
            self.weights, ops, output_hidden_states=hidden, output_attentions=attentions, return_dict=self._return_dict
        )
        model._result_dtype = model.base_model._result_dtype = dtype
        return model

    def _pack(self, inputs: Mapping[str, Any]) -> PackedBatch:
        return pack(self.config, **inputs)

    @property
    def _has_decoder(self) -> bool:
        return self._head is not None and any(row.field == "decoder" for row in HEADS[self._head].rows)

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


@dataclasses.dataclass(frozen=True, eq=False)
class PackedOutput:
    """The result of a forward on a packed batch, before it is padded.

    Parameters
    ----------
    hidden_states : dict of int to ndarray of shape (T, H)
        By index; 0 is the embeddings' output.
    attentions : dict of int to list of B ndarrays of shape (A, S_b, S_b)
        By index; 0 is the first layer.
    pooled : ndarray of shape (sequences whose first token is not masked, H), or None
    """

    hidden_states: dict[int, FloatArray]
    attentions: dict[int, list[FloatArray]]
    pooled: FloatArray | None


class StepHead(Protocol):
    """A head that `BertModel.forward_packed` calls with the last hidden state of each step.

    It keeps the results, because it knows where they belong; `nbytes` is the memory that they take.
    """

    @property
    def nbytes(self) -> int:
        """The size of the results in bytes."""

    def __call__(self, x: FloatArray, step: PackedBatch, tokens: slice) -> None:
        """Take in the last hidden state of a step, of shape (t, H); `tokens` says which of the T tokens these are."""


class BertModel(BertPreTrainedModel[BertModelOutput]):
    """A BERT encoder: ids in, every hidden state out. `from_pretrained` makes it; threads may share it.

    A model does not change after it was made.

    Attributes
    ----------
    config : BertConfig             read-only; the model compares ids with its sizes
    weights : Weights               read-only
    ops : Ops                       read-only; the set of ops that computes, see ops.py
    embeddings : BertEmbeddings     the embedding layer, whole or step by step
    """

    embeddings: BertEmbeddings

    _keeps_hidden_states = True

    def _make_parts(self, hidden_states: Selection, attentions: Selection) -> None:
        vars(self).update(embeddings=BertEmbeddings(self.weights, self.ops), encoder=Encoder())
        num_layers = self.config.num_hidden_layers
        self._hidden_states = _select("output_hidden_states", hidden_states, num_layers + 1)
        self._attentions = _select("output_attentions", attentions, num_layers)

    def _compute(self, inputs: Mapping[str, Any], options: CallOptions) -> BertModelOutput:
        return self.run_packed(self._pack(inputs), options.hidden_states, options.attentions, options.num_layers)

    def run_packed(
        self,
        batch: PackedBatch,
        output_hidden_states: Selection | None = None,
        output_attentions: Selection | None = None,
        num_layers: int | None = None,
        heads: Sequence[StepHead] = (),
    ) -> BertModelOutput:
        """Run the model on a packed batch, and pad the result; the arguments are those of `__call__`.

        With `heads`, last_hidden_state and pooler_output are None, because the heads compute what they need of them.
        """
        depth = self.config.num_hidden_layers
        stop = depth if num_layers is None else check_int("num_layers", num_layers, 0, depth)
        hidden, attentions = self._hidden_states, self._attentions
        if output_hidden_states is not None:
            hidden = _select("output_hidden_states", output_hidden_states, depth + 1, reach=stop)
        if output_attentions is not None:
            attentions = _select("output_attentions", output_attentions, depth, reach=stop - 1)

        whole = stop == depth and not heads
        packed = self.forward_packed(
            batch,
            hidden_states={*(hidden or ()), depth} if whole else hidden or (),
            attentions=attentions or (),
            num_layers=stop,
            pool=whole,
            heads=heads,
        )
        states = {index: batch.pad(state) for index, state in packed.hidden_states.items()}
        num_heads = self.config.num_attention_heads
        probs = {index: batch.pad_pairs(pairs, num_heads) for index, pairs in packed.attentions.items()}
        pooled = None
        if packed.pooled is not None:
            pooled = np.zeros((batch.num_sequences, self.config.hidden_size), dtype=packed.pooled.dtype)
            pooled[batch.shows_first] = packed.pooled
        return BertModelOutput(
            last_hidden_state=states[depth] if whole else None,
            pooler_output=pooled,
            hidden_states=None
            if hidden is None
            else tuple(states.get(i) if i in hidden else None for i in range(depth + 1)),
            attentions=None if attentions is None else tuple(probs.get(i) for i in range(depth)),
        )

    def forward_packed(
        self,
        batch: PackedBatch,
        *,
        hidden_states: Collection[int],
        attentions: Collection[int] = (),
        num_layers: int | None = None,
        pool: bool = False,
        heads: Sequence[StepHead] = (),
    ) -> PackedOutput:
        """Run the encoder on a packed batch in steps of a bounded number of tokens; nothing is padded.

        Parameters
        ----------
        batch : PackedBatch
            It is compared with the model here; see `PackedBatch.check`.
        hidden_states : indices of the hidden states to keep, 0 (the embeddings' output) to L
        attentions : layers whose attention probs are kept, 0 to L - 1
        num_layers : int, optional
            Number of layers to run; default: all.
        pool : bool
            Also run the pooler, if the model has one and all layers run.
        heads : StepHeads
            Each is called with the last hidden state of each step, in the order of the batch.

        Returns
        -------
        PackedOutput

        Raises
        ------
        TypeError, ValueError
            An index is not an int or is out of range, or an id, a token type or a position is not in the model's
            tables. Nothing has been computed then.
        MemoryError
            The result alone does not fit into the memory that this process may use. Nothing has been computed then.

        Notes
        -----
        Memory in bytes, in addition to the weights: the result takes 4 T H for each hidden state that is kept, and
        4 A S^2 for each sequence and layer of attentions. The work of one step takes 4 t (F + 7 H), which minibert's
        kernels keep for the next step. t is 1,024, or the length of the longest sequence if that is larger, but at most
        T. `__call__` needs memory for the result a second time if the batch has padding.
        """
        depth = self.config.num_hidden_layers
        stop = depth if num_layers is None else check_int("num_layers", num_layers, 0, depth)
        hidden_states = _check_indices("hidden_states", hidden_states, depth + 1)
        attentions = _check_indices("attentions", attentions, depth)
        pooler = self.weights.pooler if pool else None
        self._check_memory(batch, len(hidden_states), len(attentions), sum(head.nbytes for head in heads))
        kept = [i for i in sorted(hidden_states) if i <= stop]
        hidden_size = self.config.hidden_size
        states: dict[int, FloatArray] = {}
        probs: dict[int, list[FloatArray]] = {i: [] for i in sorted(attentions) if i < stop}
        pooled: list[FloatArray] = []
        for tokens, step, i, (x, layer_probs) in self._run(batch, stop, probs):
            if i in kept and step.num_tokens == batch.num_tokens:
                states[i] = x
            elif i in kept:
                states.setdefault(i, np.empty((batch.num_tokens, hidden_size), dtype=x.dtype))[tokens] = x
            if i - 1 in probs:
                probs[i - 1].extend(layer_probs or ())
            if i == stop and pooler is not None:
                pooled.append(encoder.pooler(x, pooler, step, self.ops))
            if i == depth:
                for head in heads:
                    head(x, step, tokens)
        nothing = np.zeros((0, hidden_size), dtype=self._result_dtype)
        return PackedOutput(
            hidden_states={i: states.get(i, nothing) for i in kept},
            attentions=probs,
            pooled=None if pooler is None else np.concatenate([*pooled, nothing]),
        )

    def states(
        self, batch: PackedBatch, layers: Collection[int]
    ) -> Iterator[tuple[PackedBatch, dict[int, FloatArray]]]:
        """Run the encoder step by step, up to the highest of `layers`, and yield the hidden states of each step.

        A caller that pools or writes each step before it asks for the next one needs memory for one step only.

        Parameters
        ----------
        batch : PackedBatch
        layers : indices of hidden states, 0 (the embeddings' output) to L; at least one

        Yields
        ------
        (PackedBatch, dict of int to ndarray of shape (t, H))
            A step of t tokens, about 1,024, and its hidden states by index. The steps are in the order of the batch.

        Raises
        ------
        TypeError, ValueError
            As for `forward_packed`; or `layers` is empty.
        """
        layers = _check_indices("layers", layers, self.config.num_hidden_layers + 1)
        if not layers:
            raise ValueError("layers is empty; expected at least one index of a hidden state.")
        last, found = max(layers), dict[int, FloatArray]()
        for _, step, i, state in self._run(batch, last, ()):
            if i in layers:
                found[i] = state.hidden_state
            if i == last:
                yield step, found
                found = {}

    def _run(
        self, batch: PackedBatch, stop: int, return_probs: Collection[int]
    ) -> Iterator[tuple[slice, PackedBatch, int, encoder.HiddenState]]:
        """Yield the hidden states 0 to `stop` of each step, with the step and its slice of the T tokens.

        Every forward of the model calls this method, so the ids are compared with the model's tables here.
        """
        batch = batch.private()
        batch.check(self.config)
        for tokens, step in self._steps(batch):
            for i, state in enumerate(encoder.forward(self.weights, step, self.ops, probs_layers=return_probs)):
                yield tokens, step, i, state
                if i == stop:
                    break

    def _steps(self, batch: PackedBatch) -> Iterator[tuple[slice, PackedBatch]]:
        return batch.steps(TOKENS_PER_STEP)

    def _after_states(self, x: FloatArray, step: PackedBatch) -> None:
        if self.weights.pooler is not None:
            encoder.pooler(x, self.weights.pooler, step, self.ops)

    def _check_memory(self, batch: PackedBatch, num_states: int, num_attentions: int, logits: int) -> None:
        """Refuse a result that does not fit into memory, because most systems kill a process that needs too much.

        `logits` are the bytes that heads need.
        """
        hidden_size, heads = self.config.hidden_size, self.config.num_attention_heads
        most = 4 * batch.num_tokens * (hidden_size * num_states + heads * batch.max_seqlen * num_attentions)
        if most + logits < 1 << 28:  # asking the system takes longer than a short text
            return
        pairs = heads * float((np.diff(batch.cu_seqlens).astype(np.float64) ** 2).sum())
        needed = 4 * (batch.num_tokens * hidden_size * num_states + pairs * num_attentions) + logits
        result = f"{num_states} hidden states and {num_attentions} attentions of {batch.num_tokens:,} tokens"
        less = "output_hidden_states=False"
        if logits:
            result, less = f"The logits, {result}", f"{less}, or positions= for a masked LM"
        require_memory(needed, result, f"Give fewer texts at once, or keep less: {less}.")


def _select(name: str, selection: Selection, count: int, *, reach: int | None = None) -> frozenset[int] | None:
    """Turn True, False, an index or several indices into the set of indices to keep; False gives None.

    `reach` is the last index that is computed with num_layers=. An explicit index beyond it is refused.
    """
    if isinstance(selection, bool | np.bool_):
        return frozenset(range(count)) if selection else None
    what = name.removeprefix("output_").replace("_", " ")  # "hidden states", "attentions"
    indices = check_indices(name, selection, count, what=what, expected="True, False, an int or several ints")
    for index in indices:
        if reach is not None and index > reach:
            raise ValueError(
                f"{name} names {index}, which is not computed with this num_layers=. Give a larger num_layers."
            )
    return frozenset(indices)


def _check_indices(name: str, asked: Collection[int], count: int) -> frozenset[int]:
    """Check that each index is an int from 0 to count - 1, and return the set of them."""
    return frozenset(check_int(f"an index of {name}", index, 0, count - 1) for index in asked)
