"""feature-extraction: the last hidden state of each token."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from minibert._utils.torch_interop import to_tensor
from minibert._utils.validation import FloatArray, brief, check_return_tensors
from minibert.tasks.base import TaskPipeline, TextOptions
from minibert.tokenizer.encodings import Encoding


@dataclasses.dataclass(kw_only=True)
class FeatureExtractionOptions(TextOptions):
    """The arguments of feature-extraction.

    Parameters
    ----------
    return_tensors : bool or {"np", "pt"}, optional
        None or False: nested lists. True or "pt": tensors of torch. "np": NumPy arrays.
    tokenize_kwargs : mapping, optional
        `truncation` and `max_length`, as transformers takes them.
    """

    return_tensors: bool | str | None = None
    tokenize_kwargs: Any = None
    mapping = "tokenize_kwargs"

    def __post_init__(self) -> None:
        super().__post_init__()
        value: Any = self.return_tensors
        if isinstance(value, bool):
            value = "pt" if value else None
        elif value is not None and not isinstance(value, str):
            raise TypeError(f"return_tensors={brief(value)}; expected True, False, 'np' or 'pt'.")
        self.return_tensors = check_return_tensors(value)


class FeatureExtractionPipeline(TaskPipeline):
    """Texts -> the last hidden state, one vector for each token, [CLS] and [SEP] included.

    An answer has the shape (1, tokens, hidden_size), as in transformers: nested lists, or with `return_tensors` an
    array or a tensor. A tensor raises an ImportError without torch.
    """

    task = "feature-extraction"
    options = FeatureExtractionOptions

    def _compute(self, windows: Sequence[Encoding]) -> list[FloatArray]:
        states = self.model(**self._inputs(windows), output_hidden_states=False, return_dict=True).last_hidden_state
        return [state[: len(window)] for state, window in zip(states, windows, strict=True)]

    def _answer(
        self, value: str, windows: list[Encoding], logits: list[FloatArray], options: FeatureExtractionOptions
    ) -> Any:
        state = logits[0][None].copy()  # so that it does not keep the batch in memory
        if options.return_tensors is None:
            return state.tolist()
        return to_tensor(state) if options.return_tensors == "pt" else state
