"""`BertModel`: runs the forward pass on padded arrays and returns padded arrays."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Protocol, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from minibert.base.arrays import FloatArray
from minibert.base.checks import brief, check_indices, check_int, is_cpu
from minibert.base.machine import available_memory
from minibert.bert import encoder
from minibert.bert.config import BertConfig
from minibert.bert.ops import LayerNorm, Ops
from minibert.bert.packed import PackedBatch
from minibert.bert.weights import HEADS, Weights
from minibert.checkpoint.hub import ModelFiles, check_files, locate
from minibert.models.backend import choose_ops
from minibert.models.embeddings import BertEmbeddings, Embedding
from minibert.models.inputs import pack
from minibert.models.loading import load_weights
from minibert.models.outputs import BertModelOutput

__all__ = ["TOKENS_PER_STEP", "BertModel", "BertPreTrainedModel", "PackedOutput", "Selection", "StepHead"]

Selection: TypeAlias = bool | int | Iterable[int]
"""Which layers to keep: True all, False none, one or several ints these layers (negative ints count from the end)."""

# Tokens that go through the encoder together. They are enough for fast matrix products, and so few that the arrays
# between two products stay in cache. The number also limits the memory of a forward beyond its result. Callers that
# pool each step before the next one is computed do not need memory for the full result either.
TOKENS_PER_STEP = 1024

# Results of fewer bytes skip the memory check, because asking the system takes longer than a short text.
_NEVER_TOO_MUCH = 1 << 28


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
        """The bytes of its results."""

    def __call__(self, x: FloatArray, step: PackedBatch, tokens: slice) -> None:
        """Take in the last hidden state of a step, of shape (t, H); `tokens` says which of the T tokens these are."""


class BertPreTrainedModel:
    """What `BertModel` and the models with heads share: loading, weights and ops, and methods known from torch."""

    _head: ClassVar[str | None] = None  # a class in HEADS
    _keeps_hidden_states: ClassVar[bool] = False

    def __init__(self, weights: Weights | None, ops: Ops | None) -> None:
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

    @property
    def config(self) -> BertConfig:
        """The config of the weights. To use another one, load the model with ``config=``."""
        return self._weights.config

    @property
    def weights(self) -> Weights:
        """The weights; ``BertModel(weights, ops)`` makes a model with other weights."""
        return self._weights

    @property
    def ops(self) -> Ops:
        """The set of ops that computes; ``BertModel(model.weights, ops)`` makes a model with other ops."""
        return self._ops

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | os.PathLike[str],
        *,
        config: BertConfig | None = None,
        revision: str | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        token: str | bool | None = None,
        local_files_only: bool = False,
        subfolder: str = "",
        output_hidden_states: Selection | None = None,
        output_attentions: Selection = False,
        add_pooling_layer: bool = True,
        backend: str | None = None,
        num_threads: int | None = None,
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
        backend : {"numba", "numba-blas", "numpy"}, optional
            minibert's kernels; the same, but with the matrix products of NumPy's BLAS; NumPy alone. Default:
            MINIBERT_BACKEND, else "numba" if it can be imported. With "numba", the result of a text is the same bit for
            bit in any batch, with any number of threads and on every processor. With the other two it is not.
        num_threads : int, optional
            Threads of minibert's kernels, 1 to 1,024. Default: MINIBERT_NUM_THREADS, else the cores that this process
            may use, but at most OMP_NUM_THREADS. A BLAS reads its number of threads from its own variables
            (OPENBLAS_NUM_THREADS).

        Raises
        ------
        ModelFormatError
            A file is missing or damaged, or minibert does not implement the model.
        DownloadError
            The model is not on this machine and could not be downloaded.
        """
        files = locate(
            name_or_path,
            revision=revision,
            cache_dir=cache_dir,
            token=token,
            local_files_only=local_files_only,
            subfolder=subfolder,
        )
        return cls.from_files(
            files,
            config=config,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            add_pooling_layer=add_pooling_layer,
            backend=backend,
            num_threads=num_threads,
        )

    @classmethod
    def from_files(
        cls,
        files: ModelFiles,
        *,
        config: BertConfig | None = None,
        output_hidden_states: Selection | None = None,
        output_attentions: Selection = False,
        add_pooling_layer: bool = True,
        backend: str | None = None,
        num_threads: int | None = None,
    ) -> Self:
        """Load a model from files that were located already. The other arguments are those of `from_pretrained`."""
        if config is not None and not isinstance(config, BertConfig):
            raise TypeError(f"config is a {type(config).__name__}; expected a minibert.BertConfig.")
        check_files(files)
        if cls._head is not None and HEADS[cls._head].pooled and not add_pooling_layer:
            raise ValueError(f"add_pooling_layer=False, but the head of {cls.__name__} reads the pooler. Leave it out.")
        ops = choose_ops(backend, num_threads)
        weights = load_weights(
            files,
            config or BertConfig.from_files(files),
            ops.prepare,
            add_pooling_layer=add_pooling_layer,
            head=cls._head,
        )
        kept = cls._keeps_hidden_states if output_hidden_states is None else output_hidden_states
        return cls(weights, ops, output_hidden_states=kept, output_attentions=output_attentions)  # type: ignore[call-arg]

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

    def eval(self) -> Self:
        """Return the model itself, because it is always in inference mode."""
        return self

    def train(self, mode: bool = True) -> Self:
        """Refuse to train; ``train(False)`` returns the model itself."""
        if mode:
            raise ValueError(
                "train() was called, but minibert only runs trained models. Train the model with transformers, then "
                "load it here."
            )
        return self

    def to(self, device: object) -> Self:
        """Return the model itself for "cpu"; refuse any other device."""
        if not is_cpu(device):
            raise ValueError(
                f".to({brief(device)}) is not possible, because minibert runs on the CPU in float32. Use .to('cpu')."
            )
        return self

    def __repr__(self) -> str:
        config = self.config
        return (
            f"{type(self).__name__}({config.num_hidden_layers} layers, hidden_size={config.hidden_size}, "
            f"{config.num_attention_heads} heads, {self.num_parameters():,} parameters)"
        )


class BertModel(BertPreTrainedModel):
    """A BERT encoder: ids in, every hidden state out. `from_pretrained` makes it; threads may share it.

    A model does not change after it was made.

    Attributes
    ----------
    config : BertConfig             read-only; the model compares ids with its sizes
    weights : Weights               read-only
    ops : Ops                       read-only; the set of ops that computes, see ops.py
    embeddings : BertEmbeddings     the embedding layer, whole or step by step
    """

    _keeps_hidden_states = True

    def __init__(
        self,
        weights: Weights | None = None,
        ops: Ops | None = None,
        *,
        output_hidden_states: Selection = True,
        output_attentions: Selection = False,
    ) -> None:
        super().__init__(weights, ops)
        self.embeddings = BertEmbeddings(self.weights, self.ops)
        num_layers = self.config.num_hidden_layers
        self._hidden_states = _select("output_hidden_states", output_hidden_states, num_layers + 1)
        self._attentions = _select("output_attentions", output_attentions, num_layers)

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
    ) -> BertModelOutput:
        """Run the model on B sequences of S token positions; masked tokens are not computed.

        Parameters
        ----------
        input_ids : int array of shape (B, S), in [0, vocab_size)
        attention_mask : bool or 0/1 int array of shape (B, S), optional
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
            Stop after this number of layers, 0 to L. Below L, last_hidden_state and pooler_output are None.

        Returns
        -------
        BertModelOutput
            New float32 arrays with zeros for masked tokens. B = 0 and S = 0 give empty arrays.

        Raises
        ------
        TypeError, ValueError
            An input has the wrong kind, shape or range; the message names row, column and value.
        """
        batch = pack(self.config, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        return self.run_packed(batch, output_hidden_states, output_attentions, num_layers)

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
            pooled = np.zeros((batch.num_sequences, self.config.hidden_size), dtype=np.float32)
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
                states.setdefault(i, np.empty((batch.num_tokens, hidden_size), dtype=np.float32))[tokens] = x
            if i - 1 in probs:
                probs[i - 1].extend(layer_probs or ())
            if i == stop and pooler is not None:
                pooled.append(encoder.pooler(x, pooler, step, self.ops))
            if i == depth:
                for head in heads:
                    head(x, step, tokens)
        nothing = np.zeros((0, hidden_size), dtype=np.float32)
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
        for tokens, step in batch.steps(TOKENS_PER_STEP):
            for i, state in enumerate(encoder.forward(self.weights, step, self.ops, probs_layers=return_probs)):
                yield tokens, step, i, state
                if i == stop:
                    break

    def _check_memory(self, batch: PackedBatch, num_states: int, num_attentions: int, logits: int) -> None:
        """Refuse a result that does not fit into memory, because most systems kill a process that needs too much.

        `logits` are the bytes that heads need.
        """
        hidden_size, heads = self.config.hidden_size, self.config.num_attention_heads
        most = 4 * batch.num_tokens * (hidden_size * num_states + heads * batch.max_seqlen * num_attentions)
        if most + logits < _NEVER_TOO_MUCH:
            return
        limit = available_memory()
        pairs = heads * float((np.diff(batch.cu_seqlens).astype(np.float64) ** 2).sum())
        needed = 4 * (batch.num_tokens * hidden_size * num_states + pairs * num_attentions) + logits
        if limit is not None and needed > limit:
            result = f"{num_states} hidden states and {num_attentions} attentions of {batch.num_tokens:,} tokens"
            less = "output_hidden_states=False"
            if logits:
                result, less = f"The logits, {result}", f"{less}, or positions= for a masked LM"
            raise MemoryError(
                f"{result} take {needed / 2**30:,.1f} GiB; this process may use {limit / 2**30:,.1f}. Give fewer texts "
                f"at once, or keep less: {less}."
            )

    def get_input_embeddings(self) -> Embedding:
        """Return the word embeddings; ``model.get_input_embeddings()(ids)`` looks up ids without a forward."""
        return self.embeddings.word_embeddings


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
