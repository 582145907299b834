"""The forwards of short texts: their tasks are written down once, and computed for every text of the same length.

What        A forward of 8 tokens has a task for each op. Python takes about as long to describe a task as the threads
            to compute it. But the tasks of two texts with the same lengths differ in nothing but their words. So
            `Recordings.states` runs the forward of the encoder with ops that only write down their tasks, and keeps
            them with the arrays that they read and write, a `Recording`. For the next text, the vectors of its words
            are copied into the recording, and the threads compute its tasks again
Memory      The tasks are computed in their order, so the results of a layer that the next layers do not read are
            overwritten by the next layer. `MOST_TOKENS` limits the tokens of the recordings that are kept: MiniLM takes
            22 KB for a token, bert-base 44 KB. Scratch memory is the team's
Contract    A caller takes a recording out before it computes with it, and puts it back. So two threads never share one;
            one that is interrupted loses it. There is no lock: each step on the dict is one that Python does not
            interrupt. The key says all that the tasks depend on. What a forward reads of a batch beside its words is in
            `PackedBatch.layout`
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np

from minibert._utils.validation import FloatArray
from minibert.kernels.buffers import Buffers, aligned_empty
from minibert.kernels.threads import Task, Team

MOST_TOKENS = 256  # of the recordings of a model
LONGEST = 32  # tokens of a recording that is kept. With more, Python's share of a forward is small (models/steps.py)


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
        """Run a forward whose ops use this recording.

        When a layer has yielded its hidden state, its other results are free, and so is the hidden state before, which
        only this layer has read.
        """
        before: list[FloatArray] = []  # the hidden state that this layer reads, and later ones do not
        for i, state in enumerate(states):
            of_layer, self._of_layer = self._of_layer, []
            own = [result for result in of_layer if np.may_share_memory(result, state)]
            for result in before + [result for result in of_layer if not np.may_share_memory(result, state)]:
                self._free[result.shape].append(result)
            before = own
            if i in wanted:
                self.states[i], before = state, []

    def compute(self, team: Team) -> None:
        """Compute the tasks, in their order. They are written once for the helpers of a process."""
        if self._written[0] is not team.helpers():  # they are others after a fork or a release
            self._written = team.write(self._tasks, once=False)
        team.start(*self._written)


class Recordings:
    """The recordings of the models that share ops, by all that their tasks depend on. They do not refer to a team."""

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._kept: dict[Any, tuple[Recording, weakref.ref[Any]]] = {}  # the one used last is the last one

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
        short, is_new = 0 < len(words) <= LONGEST, False
        recording, owner_ref = self._kept.pop(key, (None, None))
        if recording is None or owner_ref is None or owner_ref() is not owner:
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
        for key, (recording, owner_ref) in reversed(self._kept.copy().items()):
            num_tokens += len(recording.words)
            if owner_ref() is None or num_tokens > MOST_TOKENS:
                self._kept.pop(key, None)
