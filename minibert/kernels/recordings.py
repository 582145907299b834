"""The forwards of short texts: their tasks are written down once, and computed for every text of the same length.

What        A forward of 8 tokens has a task for each op. Python takes about as long to describe a task as the threads
            to compute it. But the tasks of two texts with the same lengths differ in nothing but their words. So
            `Recordings.states` runs the forward of the encoder with ops that only write down their tasks, and keeps
            them with the arrays that they read and write, a `Recording`. For the next text, the vectors of its words
            are copied into the recording, and the threads compute its tasks again
Memory      The tasks are computed in their order, so the results of a layer that the next layers do not read are
            overwritten by the next layer. `MOST_TOKENS` limits the tokens of the recordings that are kept: MiniLM takes
            20 KB for a token, bert-base 40 KB
Contract    A caller takes a recording out before it computes with it, and puts it back. So two threads never share one;
            one that is interrupted loses it. There is no lock. The key says all that the tasks depend on. What a
            forward reads of a batch beside its words is in `PackedBatch.layout`
"""

from __future__ import annotations

import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.kernels.buffers import Buffers, aligned_empty
from minibert.kernels.threads import Task, Team

MOST_TOKENS = 256  # of the recordings of a model
LONGEST = 32  # tokens of a recording that is kept. With more, Python's share of a forward is small


class Recording:
    """The tasks of a forward from the vectors of `words` on, the memory of their results, the `states` among these."""

    def __init__(self, new: Callable[..., FloatArray], words: FloatArray) -> None:
        self.words, self.states = words, dict[int, FloatArray]()
        self._new = new  # makes an array
        self._tasks: list[Task] = []
        self._written: tuple[Any, ...] = (None,)
        self._of_layer: list[FloatArray] = []  # the results since the last hidden state
        self._free: dict[tuple[int, ...], list[FloatArray]] = defaultdict(list)

    def run(self, task: Task) -> None:
        """Add a task, with all that it refers to."""
        self._tasks.append(task)

    def empty(self, *shape: int) -> FloatArray:
        """Return an array for a result: one that no later task reads, if there is one."""
        result = self._free[shape].pop() if self._free[shape] else self._new(*shape)
        self._of_layer.append(result)
        return result

    def record(self, states: Iterator[FloatArray], wanted: Collection[int]) -> None:
        """Run a forward whose ops use this recording."""
        before: list[FloatArray] = []  # the hidden state that this layer reads, and later ones do not
        for i, state in enumerate(states):
            of_layer, self._of_layer = self._of_layer, []
            holds_state = [np.may_share_memory(result, state) for result in of_layer]
            for result in before + [result for result, holds in zip(of_layer, holds_state, strict=True) if not holds]:
                self._free[result.shape].append(result)
            before = [result for result, holds in zip(of_layer, holds_state, strict=True) if holds]
            if i in wanted:
                self.states[i], before = state, []

    def compute(self, team: Team) -> None:
        """Compute the tasks, in their order. They are written once for the helpers of a process."""
        helpers = team.helpers()
        if self._written[0] is not helpers:  # they are others after a fork or a release
            self._written = helpers, *team.write(self._tasks, helpers, once=False)
        team.start(helpers, self._written[1])


class Recordings:
    """The recordings of the models that share ops, by all that their tasks depend on. They do not refer to a team."""

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._kept: OrderedDict[Any, tuple[Recording, weakref.ref[Any]]] = OrderedDict()

    def clear(self) -> None:
        """Forget all of them."""
        self._kept.clear()

    def states(
        self,
        team: Team,
        forward: Callable[[Recording], Iterator[FloatArray]],
        words: FloatArray,
        key: Any,
        wanted: Collection[int],
        owner: object,
    ) -> dict[int, FloatArray]:
        """Compute the hidden states that are `wanted`, by number, of the vectors of words, (T, E).

        `forward` has ops that use the recording, and reads the weights of `owner`. The key has the id of this object,
        which another one may get when it is gone.
        """
        short, is_new = len(words) <= LONGEST, False
        recording, of = self._kept.pop(key, (None, None))
        if recording is None or of is None or of() is not owner:
            recording, is_new = Recording(aligned_empty if short else self._buffers.empty, words), True
            recording.record(forward(recording), wanted)
        recording.words[...] = words
        recording.compute(team)
        if not short:
            return recording.states
        states = {i: state.copy() for i, state in recording.states.items()}
        if is_new:
            self._make_room(len(words))
        self._kept[key] = recording, weakref.ref(owner)
        return states

    def _make_room(self, num_tokens: int) -> None:
        """Forget the recordings of weights that are gone, and those that were used longest ago, for a new one."""
        entries = [*self._kept.items()]
        for key, (recording, owner) in reversed(entries):
            num_tokens += len(recording.words)
            if owner() is None or num_tokens > MOST_TOKENS:
                self._kept.pop(key, None)
