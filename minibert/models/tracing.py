"""`trace` and `stream` of every model: its intermediate values by name, recorded or changed.

A call makes a model with the same weights and wrapped ops (trace/tracer.py), and runs it once. The model itself does
not change, so other threads may use it meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from minibert._utils.system import require_memory
from minibert._utils.validation import FloatArray, brief, check_int, counted
from minibert.bert.config import BertConfig
from minibert.bert.ops import Ops
from minibert.bert.packed import PackedBatch
from minibert.bert.weights import HEADS, Weights
from minibert.models.inputs import as_numbers, pack
from minibert.trace.edits import Edits, EditValue
from minibert.trace.names import Names, Record, Sizes
from minibert.trace.trace import Site, Trace, check_tokens
from minibert.trace.tracer import Deliver, Queue, Recorder, Tracer, nbytes_of


class _Plan(NamedTuple):
    """One checked call of `trace` or `stream`."""

    inputs: dict[str, Any]
    batch: PackedBatch
    names: Names
    record: list[str]
    edits: Edits


class Traceable:
    """The part of a model that records and changes its intermediate values.

    A model has these attributes and methods too, which `BertPreTrainedModel` declares.
    """

    _head: ClassVar[str | None]
    _result_dtype: npt.DTypeLike = np.float32
    config: BertConfig
    weights: Weights
    ops: Ops

    def trace(
        self,
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
        """Run the model, and keep its intermediate values by name; the numbers are those of a plain call, bit for bit.

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
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        plan = self._plan(inputs, record, edit, num_layers)
        words = self._words(tokens, plan)
        self._check_trace_memory(plan)
        recorder = Recorder(plan.names, plan.batch, plan.record, self._result_dtype)
        model = self._traced(plan, recorder)
        stop = {} if num_layers is None else {"num_layers": num_layers}
        output = model(**plan.inputs, **stop, return_dict=True)  # type: ignore[operator]
        for name, value in (*recorder.values.items(), *output.items()):
            for array in value if isinstance(value, list | tuple) else (value,):
                if array is not None:
                    plan.edits.check_after(name, array)
        reports = plan.edits.reports(allow_noop=allow_noop)
        output = self._finish(output, True, *inputs)
        kept = {"output": output, "tokens": words, "edits": reports, "weights": self.weights}
        kept["activation"] = self.config.activation
        return Trace(plan.names, plan.batch, recorder.values, **kept)

    def stream(
        self,
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
        """Run the model, and yield its intermediate values as soon as they are computed; nothing is kept.

        The arguments and errors are those of `trace`. It needs the memory of one layer of one step, about 1,024 tokens,
        for any number of texts. The inputs are checked at once; the model runs while the values are taken.

        Yields
        ------
        Site
            A value of one sequence without padding: name, layer, sequence, columns, array. The values of a sequence
            come in the order of the forward pass. The array is read-only.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        plan = self._plan(inputs, record, edit, num_layers)
        return self._streamed(plan, allow_noop)

    def value_names(self, num_layers: int | None = None) -> Names:
        """Return the names of all values that a forward computes; with `num_layers` it stops after that layer."""
        pooler = self.weights.pooler is not None if self._head is None else HEADS[self._head].pooled
        return Names.of(Sizes.of(self.config, pooler=pooler, head=self._head, num_layers=num_layers))

    def with_ops(self, ops: Ops, dtype: npt.DTypeLike = np.float32) -> Self:
        """Return a model with the same weights and other ops, which compute in `dtype`; this one does not change.

        The ops must be able to use the weights that the ops of this model prepared: a wrapped set of `model.ops`, or
        one that reads ``linear.weight``.
        """
        raise NotImplementedError

    # --- what the classes have ----------------------------------------------------------------------------------------

    def _pack(self, inputs: Mapping[str, Any]) -> PackedBatch:
        return pack(self.config, **inputs)

    def _packed_states(self, batch: PackedBatch, stop: int) -> Iterator[tuple[PackedBatch, int, FloatArray]]:
        """Yield each hidden state of each step, with its step and index."""
        raise NotImplementedError

    def _steps(self, batch: PackedBatch) -> Iterator[tuple[slice, PackedBatch]]:
        raise NotImplementedError

    def _after_states(self, x: FloatArray, step: PackedBatch) -> None:
        """Compute what follows the last hidden state of a step, and drop it."""
        raise NotImplementedError

    def _output_nbytes(self, batch: PackedBatch) -> int:
        """Return the bytes of the output of a plain call."""
        raise NotImplementedError

    def _finish(self, output: Any, return_dict: bool | None, *inputs: object) -> Any:
        raise NotImplementedError

    # --- one call -----------------------------------------------------------------------------------------------------

    def _plan(
        self, inputs: Sequence[object], record: Record, edit: Mapping[str, EditValue] | None, num_layers: int | None
    ) -> _Plan:
        """Check the arguments; the arrays are copies, because they are read twice."""
        keys = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds")
        arrays = {
            key: None if value is None else np.array(as_numbers(key, value))
            for key, value in zip(keys, inputs, strict=True)
        }
        # A list without values is float64 for NumPy, but pack() takes an empty list for ids.
        given = {
            key: value if array is not None and not array.size and isinstance(value, list) else array
            for (key, array), value in zip(arrays.items(), inputs, strict=True)
        }
        batch = self._pack(given)
        depth = self.config.num_hidden_layers
        if num_layers is not None and self._head is not None:
            raise ValueError(
                f"num_layers={brief(num_layers)}; {type(self).__name__} has a head, which needs all layers."
            )
        stop = depth if num_layers is None else check_int("num_layers", num_layers, 0, depth)
        names = self.value_names(stop)
        return _Plan(given, batch, names, names.select(record), Edits(edit, names, batch))

    def _traced(self, plan: _Plan, deliver: Deliver) -> Self:
        """Return a model that delivers and edits the values of one forward."""
        steps = self._steps(plan.batch)
        tracer = Tracer(self.ops, plan.names, steps, plan.record, plan.edits, deliver, self._result_dtype)
        model = self.with_ops(tracer.ops, self._result_dtype)
        # An edit gets all tokens of a sequence, so the head must not compute them in several parts.
        model._whole_steps = any(  # type: ignore[attr-defined]
            name in plan.edits for name in plan.names.specs if name.startswith(("cls.", "classifier", "qa_outputs"))
        )
        return model

    def _streamed(self, plan: _Plan, allow_noop: bool) -> Iterator[Site]:
        queue = Queue(plan.names)
        model = self._traced(plan, queue)
        stop = plan.names.sizes.num_layers
        for step, i, x in model._packed_states(plan.batch, stop):
            if i == self.config.num_hidden_layers:
                model._after_states(x, step)
            for site in queue.take():
                plan.edits.check_after(site.name, site.array)
                yield site
        plan.edits.reports(allow_noop=allow_noop)

    def _words(self, tokens: Any, plan: _Plan) -> list[list[str]] | None:
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
            raise ValueError(
                "tokens= is a tokenizer, but inputs_embeds has no ids. Give a list of tokens for each text."
            )
        flat = tokens.convert_ids_to_tokens(batch.token_ids.tolist())
        bounds = batch.cu_seqlens.tolist()
        return [flat[start:end] for start, end in pairwise(bounds)]

    def _check_trace_memory(self, plan: _Plan) -> None:
        """Refuse a trace that does not fit into memory, before anything is computed."""
        sizes = nbytes_of(plan.names, plan.batch, plan.record, np.dtype(self._result_dtype).itemsize)
        recorded = sum(sizes.values())
        needed = recorded + self._output_nbytes(plan.batch)
        largest = max(sizes, key=lambda name: sizes[name], default="")
        require_memory(
            needed,
            f"{counted(len(sizes), 'name')} of {plan.batch.num_tokens:,} tokens (the largest one, {largest}, has "
            f"{sizes.get(largest, 0) / 2**30:,.1f} GiB) and the output",
            "Record less, such as record='hidden_states.*', give fewer texts at once, or use stream(), which keeps "
            "nothing.",
        )
