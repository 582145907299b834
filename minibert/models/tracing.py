"""`trace` and `stream` of every model: record or change its intermediate values by name.

A call makes a model with the same weights and wrapped ops (trace/tracer.py), and runs it once. The model itself does
not change, so other threads may use it meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from minibert._utils.system import require_memory
from minibert._utils.validation import brief, check_int, counted
from minibert.bert.packed import PackedBatch
from minibert.bert.weights import HEADS
from minibert.models.inputs import as_numbers, named_inputs, ordered_inputs
from minibert.trace.applied_edits import Edits
from minibert.trace.edits import EditValue
from minibert.trace.names import Names, Record, Sizes
from minibert.trace.trace import Site, Trace, check_tokens
from minibert.trace.tracer import Deliver, Queue, Recorder, Tracer, nbytes_of

if TYPE_CHECKING:
    from minibert.models.bert import BertModel
    from minibert.models.heads import BertHead

    Model: TypeAlias = BertModel | BertHead[Any]


class _Plan(NamedTuple):
    """One checked call of `trace` or `stream`."""

    inputs: dict[str, Any]
    batch: PackedBatch
    names: Names
    record: list[str]
    edits: Edits


@ordered_inputs
def trace(
    model: Model,
    input_ids: npt.ArrayLike | None = None,
    attention_mask: npt.ArrayLike | None = None,
    token_type_ids: npt.ArrayLike | None = None,
    position_ids: npt.ArrayLike | None = None,
    inputs_embeds: npt.ArrayLike | None = None,
    *,
    record: Record = "*",
    edit: Mapping[str, EditValue] | None = None,
    num_layers: int | None = None,
    tokens: Any = None,
    allow_noop: bool = False,
) -> Trace:
    """Run the model and keep its intermediate values by name; they equal those of a plain call, bit for bit.

    Parameters
    ----------
    input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds
        As for a plain call.
    record : str, several str, or function of a name that returns a bool
        Which values to keep: names, aliases or patterns such as "encoder.layer.3.*"; see trace/README.md. () keeps
        none. Default: all.
    edit : mapping, optional
        Names or patterns -> changes: an `Edit`; an array, which replaces the value; or a function of the array of
        one sequence, which returns the new one. Recorded values are those after the change.
    num_layers : int, optional
        Stop after this number of layers; models with a head do not have it.
    tokens : tokenizer, or list of B lists of str, optional
        The texts' tokens, for `Trace.tokens`.
    allow_noop : bool
        Accept edits that change nothing.

    Returns
    -------
    Trace

    Raises
    ------
    TypeError, ValueError
        An input is wrong; a name or pattern means no value of this model; an edit does not fit, or changes nothing.
    MemoryError
        The recorded values do not fit into the memory that this process may use. Nothing has been computed then.
    """
    inputs = named_inputs(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
    plan = _plan(model, inputs, record, edit, num_layers)
    words = _words(tokens, plan)
    _check_memory(model, plan)
    recorder = Recorder(plan.names, plan.batch, plan.record, model._result_dtype)
    traced = _traced(model, plan, recorder)
    stop = {} if num_layers is None else {"num_layers": num_layers}
    output: Any = traced(**plan.inputs, **stop, return_dict=True)
    for name, value in (*recorder.values.items(), *output.items()):
        for array in value if isinstance(value, list | tuple) else (value,):
            if array is not None:
                plan.edits.check_after(name, array)
    reports = plan.edits.reports(allow_noop=allow_noop)
    output = model._finish(output, True, inputs)
    kept = {"output": output, "tokens": words, "edits": reports, "weights": model.weights}
    return Trace(plan.names, plan.batch, recorder.values, **kept)


@ordered_inputs
def stream(
    model: Model,
    input_ids: npt.ArrayLike | None = None,
    attention_mask: npt.ArrayLike | None = None,
    token_type_ids: npt.ArrayLike | None = None,
    position_ids: npt.ArrayLike | None = None,
    inputs_embeds: npt.ArrayLike | None = None,
    *,
    record: Record = "*",
    edit: Mapping[str, EditValue] | None = None,
    num_layers: int | None = None,
    allow_noop: bool = False,
) -> Iterator[Site]:
    """Run the model and yield each intermediate value as soon as it is computed; nothing is kept.

    The arguments and errors are those of `trace`. It needs the memory of one layer of one step, about 1,024 tokens,
    for any number of texts. The inputs are checked at once; the model runs while the values are taken.

    Yields
    ------
    Site
        A value of one sequence without padding: name, layer, sequence, columns, array. The values of a sequence
        come in the order of the forward pass. The array is read-only.
    """
    inputs = named_inputs(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
    return _streamed(model, _plan(model, inputs, record, edit, num_layers), allow_noop)


def value_names(model: Model, num_layers: int | None = None) -> Names:
    """Return the names of all values that a forward pass computes; with `num_layers` it stops after that layer."""
    pooler = model.weights.pooler is not None if model._head is None else HEADS[model._head].pooled
    return Names.of(Sizes.of(model.config, pooler=pooler, head=model._head, num_layers=num_layers))


# --- one call ---


def _plan(model: Model, inputs: Mapping[str, Any], record: Record, edit: Any, num_layers: int | None) -> _Plan:
    """Check the arguments; the arrays are copies, because they are read twice."""
    given = {}
    for key, value in inputs.items():
        if value is not None:
            array = np.array(as_numbers(key, value))
            # A list without values is float64 for NumPy, but pack() takes an empty list for ids.
            given[key] = array if array.size or not isinstance(value, list) else value
    batch = model._pack(given)
    depth = model.config.num_hidden_layers
    if num_layers is not None and model._head is not None:
        raise ValueError(f"num_layers={brief(num_layers)}; {type(model).__name__} has a head, which needs all layers.")
    stop = depth if num_layers is None else check_int("num_layers", num_layers, 0, depth)
    names = model.value_names(stop)
    return _Plan(given, batch, names, names.select(record), Edits(edit, names, batch))


def _traced(model: Model, plan: _Plan, deliver: Deliver) -> Any:
    """Return a model that delivers and edits the values of one forward."""
    steps = model.base_model._steps(plan.batch)
    tracer = Tracer(model.ops, plan.names, steps, {*plan.record}, plan.edits, deliver, model._result_dtype)
    traced: Any = model.with_ops(tracer.ops, model._result_dtype)
    # An edit gets all tokens of a sequence, so the head must not compute them in several parts.
    traced._whole_steps = any(
        name in plan.edits for name in plan.names.specs if name.startswith(("cls.", "classifier", "qa_outputs"))
    )
    return traced


def _streamed(model: Model, plan: _Plan, allow_noop: bool) -> Iterator[Site]:
    queue = Queue(plan.names)
    traced = _traced(model, plan, queue)
    stop = plan.names.sizes.num_layers
    for _, step, i, state in traced.base_model._run(plan.batch, stop, ()):
        if i == model.config.num_hidden_layers:
            traced._after_states(state.hidden_state, step)
        for site in queue.take():
            plan.edits.check_after(site.name, site.array)
            yield site
    plan.edits.reports(allow_noop=allow_noop)


def _words(tokens: Any, plan: _Plan) -> list[list[str]] | None:
    """Return the tokens of each sequence, or None."""
    if tokens is None:
        return None
    batch = plan.batch
    lengths = np.diff(batch.cu_seqlens)
    if not hasattr(tokens, "convert_ids_to_tokens"):
        rows = tokens if isinstance(tokens, list | tuple) else brief(tokens)
        check_tokens(rows, lengths)
        return [list(row) for row in tokens]
    if batch.inputs_embeds is not None:
        raise ValueError("tokens= is a tokenizer, but inputs_embeds has no ids. Give a list of tokens for each text.")
    flat = tokens.convert_ids_to_tokens(batch.token_ids.tolist())
    return [flat[start:end] for start, end in pairwise(batch.cu_seqlens.tolist())]


def _check_memory(model: Model, plan: _Plan) -> None:
    """Refuse a trace that does not fit into memory, before anything is computed."""
    sizes = nbytes_of(plan.names, plan.batch, plan.record, np.dtype(model._result_dtype).itemsize)
    recorded = sum(sizes.values())
    base, batch, config = model.base_model, plan.batch, model.config
    states = max(1, len(base._hidden_states or ())) * config.hidden_size
    pairs = len(base._attentions or ()) * config.num_attention_heads * batch.mask.shape[1]
    output = np.dtype(model._result_dtype).itemsize * batch.mask.size * (states + pairs)
    logits: Any = () if base is model else model._logits_of(batch, None)  # type: ignore[union-attr]
    output += sum(one.nbytes for one in logits)
    largest = max(sizes, key=lambda name: sizes[name], default="")
    require_memory(
        recorded + output,
        f"{counted(len(sizes), 'name')} of {plan.batch.num_tokens:,} tokens (the largest one, {largest}, has "
        f"{sizes.get(largest, 0) / 2**30:,.1f} GiB) and the output",
        "Record less, such as record='hidden_states.*', give fewer texts at once, or use stream(), which keeps "
        "nothing.",
    )
