"""Analyses of a model, computed from forward passes alone: `minibert.inside`. See README.md in this folder.

Each function names its paper. A function takes a model and inputs, or a `Trace`, and returns arrays.
"""

from __future__ import annotations

import difflib
from typing import NoReturn

from minibert._utils.foreign import refuse_name
from minibert.inside.attention import HeadKinds, heads, norms, rollout
from minibert.inside.interventions import Patched, ablate_heads, patch, value_zeroing
from minibert.inside.representations import LayerSimilarity, LogitLens, compare_layers, logit_lens
from minibert.inside.sentences import LeftOut, SimilarityParts, explain_similarity, leave_one_out

__all__ = [
    "HeadKinds",
    "LayerSimilarity",
    "LeftOut",
    "LogitLens",
    "Patched",
    "SimilarityParts",
    "ablate_heads",
    "compare_layers",
    "explain_similarity",
    "heads",
    "leave_one_out",
    "logit_lens",
    "norms",
    "patch",
    "rollout",
    "value_zeroing",
]

_CAPTUM = (
    "minibert computes no gradients. captum has it, for the model in transformers (torch); "
    "torch.from_numpy(trace[name]) gives it the values of minibert. Without gradients there are "
)
_TEXTS = "leave_one_out, ablate_heads and patch"
_MAPS = "norms, value_zeroing and rollout"
_TRAINED = (
    "it must be trained, and minibert does not train. Train it on hidden states: model.trace(...)['hidden_states.6']. "
)

# Analyses that need gradients or training -> why, and what to use instead.
_REFUSED = {
    **dict.fromkeys(
        (
            *("integrated_gradients", "layer_integrated_gradients", "IntegratedGradients", "LayerIntegratedGradients"),
            *("saliency", "gradients", "input_x_gradient", "gradient_x_input", "smooth_grad", "deep_lift"),
            *("guided_backprop", "gradient_shap", "attributions", "attribution", "explain_attributions"),
        ),
        f"{_CAPTUM}{_TEXTS}.",
    ),
    **dict.fromkeys(("attribution_patching", "edge_attribution_patching", "head_importance"), f"{_CAPTUM}{_TEXTS}."),
    **dict.fromkeys(("lrp", "layerwise_relevance_propagation", "chefer", "attention_grad_cam"), f"{_CAPTUM}{_MAPS}."),
    **dict.fromkeys(("generic_attention_explainability", "transformer_attribution"), f"{_CAPTUM}{_MAPS}."),
    "tuned_lens": f"{_TRAINED}Without training there is logit_lens.",
    **dict.fromkeys(("probe", "probing", "linear_probe"), f"{_TRAINED}scikit-learn fits a linear probe."),
}

# Names that people look for -> the function that does it.
_CALLED_HERE = {
    **dict.fromkeys(("cka", "linear_cka", "CKA", "similarity", "anisotropy", "layer_similarity"), "compare_layers"),
    **dict.fromkeys(("activation_patching", "causal_tracing", "causal_mediation", "patching"), "patch"),
    **dict.fromkeys(("head_ablation", "ablate", "ablation", "prune_heads", "mask_heads"), "ablate_heads"),
    **dict.fromkeys(("occlusion", "erasure", "loo"), "leave_one_out"),
    **dict.fromkeys(("entropy", "attention_entropy", "head_kinds"), "heads"),
    "attention_norms": "norms",
}


def __getattr__(name: str) -> NoReturn:
    """Refuse an analysis that minibert does not have, by name and with the remedy."""
    if name in _REFUSED:
        refuse_name(__name__, f"minibert.inside has no {name}: {_REFUSED[name]}")
    if name in _CALLED_HERE:
        refuse_name(__name__, f"minibert.inside has no {name}: it is {_CALLED_HERE[name]} here.")
    nearest = difflib.get_close_matches(name, __all__, 3, 0.5)
    there = f"The nearest names are {', '.join(nearest)}." if nearest else f"It has {', '.join(__all__)}."
    refuse_name(__name__, f"minibert.inside has no {name}. {there}")
