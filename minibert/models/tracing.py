"""`trace` and `stream` of every model: record or change its intermediate values by name.

A call makes a model with the same weights and wrapped ops (trace/tracer.py), and runs it once. The model itself does
not change, so other threads may use it meanwhile.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from minibert._utils.system import require_memory
from minibert._utils.validation import brief, counted
from minibert.bert.packed import PackedBatch
from minibert.models.base import ModelBase
from minibert.models.inputs import named_inputs, ordered_inputs
from minibert.trace.applied_edits import Edits
from minibert.trace.edits import EditValue
from minibert.trace.layout import Sizes
from minibert.trace.names import Names, Record
from minibert.trace.trace import Site, Trace, check_tokens
from minibert.trace.tracer import Deliver, Queue, Recorder, Tracer, nbytes_of


class _Plan(NamedTuple):
    """One checked call of `trace` or `stream`."""

    batch: PackedBatch
    names: Names
    record: list[str]
    edits: Edits


@ordered_inputs
def trace(
    model: ModelBase[Any],
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
    """Run the model and keep its intermediate values by name, with the bits of a plain call.

    Parameters
    ----------
    input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds
        As for a plain call.
    record : str, several str, or function of a name that returns a bool
        Which values to keep: names, aliases or patterns such as "encoder.layer.3.*"; see trace/README.md. () keeps
        none. Default: all.
    edit : mapping, optional
        Names or patterns -> changes: an `Edit`; an array that replaces the value; or a function that gets the array
        of one sequence and returns the new one. Values are recorded after the change.
    num_layers : int, optional
        Stop after this number of layers; models with a head do not have it.
    tokens : tokenizer, or list of B lists of str, optional
        The texts' tokens, for `Trace.tokens`.
    allow_noop : bool
        Accept edits that change nothing.

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
    recorder = Recorder(plan.names, plan.batch, plan.record, model.ops.dtype)
    # An edit gets all tokens of a sequence, so the head must not compute them in several parts.
    edits_head = any(
        name in plan.edits for name in plan.names.specs if name.startswith(("cls.", "classifier", "qa_outputs"))
    )
    output = _traced(model, plan, recorder).run_packed(
        plan.batch, num_layers=num_layers, slice_bytes=sys.maxsize if edits_head else None
    )
    for name, value in (*recorder.values.items(), *output.items()):
        for array in value if isinstance(value, list | tuple) else (value,):
            if array is not None:
                plan.edits.check_after(name, array)
    reports = plan.edits.reports(allow_noop=allow_noop)
    kept = {"output": model.finish(output, inputs, True), "tokens": words, "edits": reports, "weights": model.weights}
    return Trace(plan.names, plan.batch, recorder.values, **kept)


@ordered_inputs
def stream(
    model: ModelBase[Any],
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

    The arguments and errors are as for `trace`. It needs the memory of one layer of one step, about 1,024 tokens,
    for any number of texts. The inputs are checked at once; the model runs while the values are taken.

    Yields
    ------
    Site
        A value of one sequence without padding: name, layer, sequence, columns, array. The values of a sequence
        come in the order of the forward pass. The array is read-only.
    """
    inputs = named_inputs(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
    return _streamed(model, _plan(model, inputs, record, edit, num_layers), allow_noop)


def value_names(model: ModelBase[Any], num_layers: int | None = None) -> Names:
    """Return the names of all values that a forward pass computes; with `num_layers` it stops after that layer."""
    pooler = model.weights.pooler is not None and bool({"pooler", "sequences"} & {*model.result_kinds})
    return Names.of(Sizes.of(model.config, pooler=pooler, head=model.head_name, num_layers=num_layers))


# --- one call ---


def _plan(model: ModelBase[Any], inputs: Mapping[str, Any], record: Record, edit: Any, num_layers: int | None) -> _Plan:
    """Check the arguments."""
    batch, names = model.pack(inputs), value_names(model, model.stop_of(num_layers))
    return _Plan(batch, names, names.select(record), Edits(edit, names, batch))


def _traced(model: ModelBase[Any], plan: _Plan, deliver: Deliver) -> ModelBase[Any]:
    """Return a model that delivers and edits the values of one forward."""
    tracer = Tracer(model.ops, plan.names, model.steps(plan.batch), {*plan.record}, plan.edits, deliver)
    return model.with_ops(tracer.ops)


def _streamed(model: ModelBase[Any], plan: _Plan, allow_noop: bool) -> Iterator[Site]:
    queue = Queue(plan.names)
    traced = _traced(model, plan, queue)
    stop = plan.names.sizes.num_layers
    for _, step, i, x in traced.run_steps(plan.batch, stop):
        for kind in traced.result_kinds if i == model.config.num_hidden_layers else ():
            traced.compute(kind, x, step)
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


def _check_memory(model: ModelBase[Any], plan: _Plan) -> None:
    """Refuse a trace that does not fit into memory, before anything is computed."""
    sizes = nbytes_of(plan.names, plan.batch, plan.record, np.dtype(model.ops.dtype).itemsize)
    recorded = sum(sizes.values())
    states, attentions = (len(kept or ()) for kept in model.kept.values())
    output = model.output_bytes(plan.batch, max(1, states), attentions)
    output += sum(result.nbytes for result in model.results(plan.batch))
    largest = max(sizes, key=lambda name: sizes[name], default="")
    require_memory(
        recorded + output,
        f"{counted(len(sizes), 'name')} of {plan.batch.num_tokens:,} tokens (the largest one, {largest}, has "
        f"{sizes.get(largest, 0) / 2**30:,.1f} GiB) and the output",
        "Record less, such as record='hidden_states.*', give fewer texts at once, or use stream(), which keeps "
        "nothing.",
    )
