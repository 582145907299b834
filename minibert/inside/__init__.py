"""Analyses of a model, computed from forward passes alone: `minibert.inside`. See README.md in this folder.

Each function names its paper. A function takes a model and inputs, or a `Trace`, and returns arrays. A wrong argument
raises a TypeError or a ValueError.
"""

from __future__ import annotations

from minibert._utils.foreign import missing_names
from minibert.inside.attention import HeadKinds, heads, norms, rollout
from minibert.inside.contacts import contacts
from minibert.inside.interventions import Patched, ablate_heads, patch, value_zeroing
from minibert.inside.late_interaction import TokenMatches, token_matches
from minibert.inside.representations import LayerSimilarity, LogitLens, compare_layers, logit_lens
from minibert.inside.sentences import LeftOut, SimilarityParts, explain_similarity, leave_one_out

__all__ = ["HeadKinds", "LayerSimilarity", "LeftOut", "LogitLens", "Patched", "SimilarityParts", "ablate_heads"]
__all__ += ["compare_layers", "contacts", "explain_similarity", "heads", "leave_one_out", "logit_lens", "norms"]
__all__ += ["TokenMatches", "patch", "rollout", "token_matches", "value_zeroing"]

__getattr__ = missing_names("minibert.inside", __all__)
