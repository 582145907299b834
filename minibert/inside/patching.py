"""`patch`: parts of a run with one text put into a run with another one."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from minibert._utils.validation import FloatArray, check_choice
from minibert.inside.ablation import input_mask
from minibert.inside.checks import Metric, check_inputs, check_layers, check_model, make_metric
from minibert.inside.resume import run_copies

__all__ = ["Patched", "patch"]


@dataclasses.dataclass(frozen=True, eq=False)
class Patched:
    """The metric of the runs of `patch`.

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
                f"The metric is {self.clean} in both runs, so there is nothing to restore. Choose other texts, or "
                "another metric."
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
        As for `ablate_heads`. A name means the distance to the array of the clean run, which is 0 there.
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

    Raises
    ------
    TypeError, ValueError
    """
    check_choice("over", over, ("tokens", "heads"))
    model = check_model("patch", model)
    sources, given = check_inputs("patch", clean, "clean"), check_inputs("patch", corrupt, "corrupt")
    record = ["hidden_states.*", "*.attention.self"] if over == "heads" else "hidden_states.*"
    from_ = model.trace(**sources, record=record)
    into = model.trace(**given, record="hidden_states.*")
    if from_.mask.shape != into.mask.shape or not np.array_equal(from_.mask, into.mask):
        raise ValueError(
            f"patch needs texts with the same attention mask; clean has {_lengths(from_.mask)} tokens in a batch "
            f"{from_.mask.shape}, corrupt {_lengths(into.mask)} in {into.mask.shape}. Choose texts of as many tokens."
        )
    measure = make_metric("patch", metric, from_.output)
    mask, A = input_mask(given), model.config.num_attention_heads
    D = model.config.hidden_size // A
    rows = []
    for layer in check_layers(into, layers, hidden_states=over == "tokens"):
        state, clean_state = into[f"hidden_states.{layer}"], from_[f"hidden_states.{layer}"]

        def put_token(token: int, states: FloatArray, clean_state: FloatArray = clean_state) -> None:
            states[:, token] = clean_state[:, token]

        def put_head(head: int, sequence: int, context: FloatArray, layer: int = layer) -> None:
            theirs = from_.value_of(f"encoder.layer.{layer}.attention.self", sequence)
            columns = slice(head * D, (head + 1) * D)
            context[:, columns] = np.asarray(theirs)[:, columns]

        if over == "tokens":
            outputs = run_copies(model, layer, state, mask, state.shape[1], change_state=put_token)
        else:
            outputs = run_copies(model, layer, state, mask, A, change_context=put_head)
        rows.append([measure(output) for output in outputs])
    return Patched(np.array(rows, dtype=np.float64), measure(from_.output), measure(into.output))


def _lengths(mask: Any) -> str:
    lengths = mask.sum(axis=1).tolist()
    return ", ".join(map(str, lengths[:4])) + (", ..." if len(lengths) > 4 else "")
