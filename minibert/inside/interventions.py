"""Change one part inside a model and measure the effect: leave out heads or tokens, patch states or heads.

The layers below the changed one are not computed again: a copy begins with the hidden state that the clean run had
there. The copies lie in one packed batch, as many as fit. A copy that is not changed gives the bits of the clean run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np

from minibert._utils.validation import FloatArray, IntArray, check_choice
from minibert.bert.ops import AttentionInput, AttentionOutput, Ops, WrappedOps
from minibert.bert.packed import PackedBatch
from minibert.inside.validation import Metric, check_inputs, check_layers, check_model, make_metric, pad_maps, shares
from minibert.models.outputs import BertModelOutput
from minibert.models.steps import TOKENS_PER_STEP
from minibert.trace.trace import Trace
from minibert.vectors.similarity import normalize_embeddings

# Copies are run together up to this number of tokens: more do not get faster, and take more memory.
_TOKENS_AT_ONCE = 8 * TOKENS_PER_STEP

# The numbers of an output that several copies may have together; the logits of words are many.
_NUMBERS_AT_ONCE = 1 << 24


CopyEdit: TypeAlias = Callable[[int, int, FloatArray], None]
"""A function of the number of the copy, the row of the sequence, and its array. It changes the array in place."""


def run_copies(
    model: Any,
    trace: Trace,
    first: int,
    copies: int,
    *,
    last: int | None = None,
    change_state: Callable[[int, FloatArray], None] = lambda number, state: None,
    value: CopyEdit | None = None,
    context: CopyEdit | None = None,
) -> Iterator[Any]:
    """Yield the output of each copy of a traced batch, computed from hidden state `first` on.

    Parameters
    ----------
    model : BertModel, or a model with a head
    trace : Trace
        The clean run, with hidden state `first`; of a multiple choice it has one row for each choice.
    first : int
        0 to L; the hidden state goes into the layer of this number.
    copies : int
    last : int, optional
        Stop after this number of layers, counted from `first`; default: run all, and the head.
    change_state : called with the number of the copy and its hidden state (B, S, H)
    value : called with the value vectors (S, H) of each sequence in layer `first`, before attention
    context : called with the result of attention (S, H) of each sequence in layer `first`

    Yields
    ------
    The output that the model gives for the whole batch
    """
    state, visible = trace[f"hidden_states.{first}"], trace.mask
    tokens = max(1, int(np.count_nonzero(visible)))
    head = model.weights.head
    width = model.config.hidden_size if head is None or head.decoder is None else model.config.vocab_size
    most = max(1, min(_TOKENS_AT_ONCE // tokens, _NUMBERS_AT_ONCE // (width * max(1, visible.size))))
    rows, path = len(state), f"encoder.layer.{first}.attention.self"
    stop = None if last is None else first + last
    for start in range(0, copies, most):
        count = min(most, copies - start)
        states = np.repeat(state[None], count, axis=0)
        for i in range(count):
            change_state(start + i, states[i])
        # Only the embeddings use ids; rotary positions are used by the attention of each layer.
        batch = PackedBatch.from_mask(np.concatenate([visible] * count))
        batch = dataclasses.replace(batch, positions=np.tile(trace.batch.positions, count))
        changed = model.with_ops(_ChangedAttention(model.ops, path, start * rows, rows, value, context).ops)
        kept = False if stop is None else [stop]
        packed = np.concatenate([copy[visible] for copy in states])
        output = changed.run_packed(batch, kept, False, stop, start=(first, packed))
        if stop is not None:
            output = BertModelOutput(output.hidden_states[stop])
        elif hasattr(output, "logits"):  # of a multiple choice they are not (B, choices) yet
            output = dataclasses.replace(output, logits=output.logits.reshape(-1, *trace.output.logits.shape[1:]))
        parts = {key: np.split(array, count) for key, array in output.items()}
        yield from (dataclasses.replace(output, **{key: part[i] for key, part in parts.items()}) for i in range(count))


@dataclasses.dataclass(eq=False)
class _ChangedAttention(WrappedOps):
    """Ops that change the attention of one layer.

    Parameters
    ----------
    inner : Ops
    path : str                      the module of the attention that is changed
    next : int                      the number of the next sequence, counted through all copies
    rows : int                      sequences of one copy
    value, context : the changes    of the value vectors and of the context, or None
    """

    inner: Ops
    path: str
    next: int
    rows: int
    value: CopyEdit | None
    context: CopyEdit | None

    def attention(self, inputs: AttentionInput, **options: bool) -> AttentionOutput:
        """Compute attention, with the changes in the one layer."""
        if inputs.path != self.path:
            return self.inner.attention(inputs, **options)
        if self.value is not None:
            inputs = inputs._replace(value=inputs.value.copy())
            self._apply(self.value, inputs.value, inputs.cu_seqlens)
        output = self.inner.attention(inputs, **options)
        if self.context is not None:
            self._apply(self.context, output.context, inputs.cu_seqlens)
        self.next += len(inputs.cu_seqlens) - 1
        return output

    def _apply(self, change: CopyEdit, array: FloatArray, cu_seqlens: IntArray) -> None:
        for j in range(len(cu_seqlens) - 1):
            copy, sequence = divmod(self.next + j, self.rows)
            change(copy, sequence, array[cu_seqlens[j] : cu_seqlens[j + 1]])


def ablate_heads(model: Any, inputs: Any, metric: Metric = None, *, layers: Any = None) -> FloatArray:
    """Remove each attention head in turn, and return how much the metric changes.

    Michel et al. 2019, "Are Sixteen Heads Really Better than One?" (arXiv 1905.10650), section 2.3: the head's result
    is set to 0. Head a owns the columns a D to (a + 1) D - 1 of the context. The layers below are computed once.

    Parameters
    ----------
    model : BertModel, or a model with a head
    inputs : mapping, as the tokenizer gives it
    metric : function, str, or None
        A function of the model's output for these inputs that returns one number, such as
        ``lambda output: float(output.logits[0, 1])``; the output has no hidden_states or attentions. Or the name of an
        array of the output, such as "pooler_output": the RMS of its change divided by its RMS. None: the first array,
        last_hidden_state or the logits.
    layers : int or ints, optional
        Default: all.

    Returns
    -------
    ndarray of shape (layers, A), float64
        The metric without the head, minus the metric of the whole model; for a name, the change itself, at least 0.
    """
    model, arrays = check_model("ablate_heads", model), check_inputs("ablate_heads", inputs)
    trace = model.trace(**arrays, record="hidden_states.*")
    chosen = check_layers(trace, layers)
    measure = make_metric("ablate_heads", metric, trace.output)
    whole = measure(trace.output)
    A = model.config.num_attention_heads
    D = model.config.hidden_size // A

    def remove(head: int, sequence: int, context: FloatArray) -> None:
        context[:, head * D : (head + 1) * D] = 0

    changes = np.empty((len(chosen), A))
    for row, layer in zip(changes, chosen, strict=True):
        outputs = run_copies(model, trace, layer, A, context=remove)
        row[:] = [measure(output) - whole for output in outputs]
    return changes


def value_zeroing(model: Any, inputs: Any, *, layers: Any = None) -> FloatArray:
    """Set the value vector of each token to zero in turn, and return how much each token of that layer changes.

    Mohebbi et al. 2023, "Quantifying Context Mixing in Transformers" (arXiv 2301.12971), section 3: in one layer, token
    j's value vectors are 0 in all heads; the score is 1 - cos of the layer's output for token i with and without that.
    The layer gets the same input as in the whole model.

    Parameters
    ----------
    model : BertModel, or a model with a head
    inputs : mapping, as the tokenizer gives it
    layers : int or ints, optional
        Default: all.

    Returns
    -------
    ndarray of shape (layers, B, S, S), float64
        ``[l, b, i, j]``: the share of token j among all that token i mixes in; rows have the sum 1. Zeros for
        masked tokens, and for a token that no value vector changes.
    """
    model, arrays = check_model("value_zeroing", model), check_inputs("value_zeroing", inputs)
    bert = model.base_model
    trace = model.trace(**arrays, record="hidden_states.*")
    chosen = check_layers(trace, layers)
    mask = trace.mask
    longest = int(mask.sum(axis=1).max(initial=0))

    def zero(token: int, sequence: int, value: FloatArray) -> None:
        value[token : token + 1] = 0  # a shorter text does not have this token

    maps = []
    for layer in chosen:
        clean = normalize_embeddings(trace[f"hidden_states.{layer + 1}"].astype(np.float64))
        changed = np.zeros((len(mask), mask.shape[1], longest))
        for token, output in enumerate(run_copies(bert, trace, layer, longest, last=1, value=zero)):
            unit = normalize_embeddings(output.last_hidden_state.astype(np.float64))
            # 1 - cos of vectors of length 1; written so, it is exactly 0 for the same bits.
            changed[:, :, token] = 0.5 * np.square(unit - clean).sum(axis=-1)
        maps.append([shares(changed[b][row][:, : int(row.sum())]) for b, row in enumerate(mask)])
    return pad_maps(trace, maps)


@dataclasses.dataclass(frozen=True, eq=False)
class Patched:
    """The metric of each run of `patch`.

    Parameters
    ----------
    values : ndarray of shape (L + 1, S) or (layers, A), float64     with one part patched
    clean : float                                                    of the clean run
    corrupt : float                                                  of the corrupt run, without a patch
    """

    values: FloatArray
    clean: float
    corrupt: float

    @property
    def restored(self) -> FloatArray:
        """The share of the difference that a patch restores: 0 for none, 1 for all; same shape as `values`.

        Raises
        ------
        ValueError
            The metric does not differ between the two runs.
        """
        if self.clean == self.corrupt:
            raise ValueError(
                f"The metric is {self.clean} in both runs, so there is nothing to restore. Choose another."
            )
        return (self.values - self.corrupt) / (self.clean - self.corrupt)


def patch(
    model: Any, clean: Any, corrupt: Any, metric: Metric = None, over: str = "tokens", *, layers: Any = None
) -> Patched:
    """Run the corrupt texts with one part taken from the clean run, for each part in turn, and measure.

    Vig et al. 2020, "Investigating Gender Bias in Language Models Using Causal Mediation Analysis" (NeurIPS 2020),
    section 3; Meng et al. 2022, "Locating and Editing Factual Associations in GPT" (arXiv 2202.05262), section 2.1.
    Layers below the patched part are computed once. For any other part use ``edit=`` and `Edit.patch`.

    Parameters
    ----------
    model : BertModel, or a model with a head
    clean, corrupt : mappings, as the tokenizer gives them
        Texts with the same attention mask.
    metric : function, str, or None
        As for `ablate_heads`. A name means the distance to the array of the clean run; it is 0 for the clean run.
    over : {"tokens", "heads"}
        "tokens": one token (a column of the batch) of one hidden state. "heads": the result of one attention head, for
        all tokens.
    layers : int or ints, optional
        With "tokens" hidden states, 0 to L; with "heads" layers. Default: all.

    Returns
    -------
    Patched
        `values` has a row for each layer and a column for each token or head. A column that is masked in all texts has
        the metric of the corrupt run.
    """
    check_choice("over", over, ("tokens", "heads"))
    model = check_model("patch", model)
    sources, corrupted = check_inputs("patch", clean, "clean"), check_inputs("patch", corrupt, "corrupt")
    record = ["hidden_states.*", "*.attention.self"] if over == "heads" else "hidden_states.*"
    from_ = model.trace(**sources, record=record)
    into = model.trace(**corrupted, record="hidden_states.*")
    if from_.mask.shape != into.mask.shape or not np.array_equal(from_.mask, into.mask):
        raise ValueError(
            f"patch needs texts with the same attention mask; clean is a batch {from_.mask.shape} with "
            f"{int(from_.mask.sum())} tokens, corrupt {into.mask.shape} with {int(into.mask.sum())}. Choose others."
        )
    measure = make_metric("patch", metric, from_.output)
    A = model.config.num_attention_heads
    D = model.config.hidden_size // A
    rows = []
    for layer in check_layers(into, layers, hidden_states=over == "tokens"):
        clean_state = from_[f"hidden_states.{layer}"]

        def put_token(token: int, states: FloatArray, clean_state: FloatArray = clean_state) -> None:
            states[:, token] = clean_state[:, token]

        def put_head(head: int, sequence: int, context: FloatArray, layer: int = layer) -> None:
            theirs = from_.value_of(f"encoder.layer.{layer}.attention.self", sequence)
            columns = slice(head * D, (head + 1) * D)
            context[:, columns] = np.asarray(theirs)[:, columns]

        change: Any = {"change_state": put_token} if over == "tokens" else {"context": put_head}
        outputs = run_copies(model, into, layer, into.mask.shape[1] if over == "tokens" else A, **change)
        rows.append([measure(output) for output in outputs])
    return Patched(np.array(rows, dtype=np.float64), measure(from_.output), measure(into.output))
