"""Which known mistakes some inputs cannot show: those with the mask, the windows, the positions, the ids and the types.

A mistake with a formula or a weight shows in any text. A mistake that reads the inputs shows only if a row has what it
needs: padding, a second text, two tokens that are farther apart than a window. Nothing here depends on the weights.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from minibert.bert.ops import RelativeBias
from minibert.parity.diagnosis.catalogue import MISTAKES
from minibert.parity.diagnosis.forward import Forward, Here
from minibert.parity.diagnosis.mistake import READ_INPUTS, Mistake
from minibert.parity.truth import InapplicableError, Model, Padded


@np.errstate(all="ignore")  # a row whose keys are all masked
def unseen(model: Model, inputs: Padded, *, vectors: bool = True) -> list[str]:
    """Return the ids of the mistakes that a port of a model can have, and that these inputs cannot show.

    `vectors` says whether mistakes with the vector of a text count.
    """
    right = list(_numbers(Forward(model, inputs), inputs))
    return [
        id
        for id, mistake in MISTAKES.items()
        if mistake.is_for(model)
        and not mistake.is_harmless(model.config)
        and (vectors or mistake.vector is None)
        and not _shows(model, inputs, mistake, right)
    ]


def _shows(model: Model, inputs: Padded, mistake: Mistake, right: list[np.ndarray]) -> bool:
    if mistake.needs is not None:
        return bool(mistake.needs(inputs))
    if mistake.inputs is None and not mistake.parts.keys() & READ_INPUTS:
        return True
    try:
        made = list(_numbers(Forward(model, inputs, [mistake]), inputs))
    except InapplicableError:
        return False
    return not all(np.array_equal(own, true, equal_nan=True) for own, true in zip(made, right, strict=True))


def _numbers(forward: Forward, inputs: Padded) -> Iterator[np.ndarray]:
    """Yield what a forward reads of the inputs at visible places, and what it makes of them without the weights."""
    mask, batch, layers = inputs.mask, forward.inputs.packed, forward.weights.layers
    yield from (array[mask] for array in (forward.inputs.ids, forward.inputs.types, forward.inputs.positions))
    farthest = int((inputs.ends - 1 - mask.argmax(axis=1)).max(initial=0))
    scores = np.random.default_rng(0).standard_normal((len(mask), 1, 1, mask.shape[1]))
    kinds = {(id(layer.rotary), layer.window): i for i, layer in enumerate(layers)}
    for i in kinds.values():
        path = f"encoder.layer.{i}.attention.self"
        at = Here(f"{path}.probs", i, forward)
        yield forward.part("softmax", at, forward.part("mask", at, scores, forward.visible))[mask.any(axis=1)]
        at = at._replace(name=f"{path}.scores")
        size = forward.part("window", at, layers[i].window)
        yield np.minimum(farthest, farthest if size is None else size)
        if (table := layers[i].relative_bias) is not None:
            yield forward.part("bias", at, RelativeBias(table, batch.columns))[:, : farthest + 1, : farthest + 1]
        if (rotary := layers[i].rotation_of(batch)) is not None:
            rotation = forward.part("rotation", at._replace(name=f"{path}.query.rotated"), rotary)
            yield rotation.table[rotation.positions][mask.ravel()]
