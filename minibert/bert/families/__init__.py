"""BERT and the models after it: what differs from BERT in their forward, checkpoints, ids and heads.

==================  =============================================================================================
bert                Devlin et al. 2018 (arXiv 1810.04805)
roberta             Liu et al. 2019 (arXiv 1907.11692); xlm-roberta and camembert are the same model, other texts
distilbert          Sanh et al. 2019 (arXiv 1910.01108): half of the layers, without token types
mpnet               Song et al. 2020 (arXiv 2004.09297): a bias of the scores for each distance, no token types
electra             Clark et al. 2020 (arXiv 2003.10555): embeddings of another width, then a map to H features
nomic_bert          Nussbaum et al. 2024 (arXiv 2402.01613): rotary positions, gated feed-forward
gte                 Zhang et al. 2024 (arXiv 2407.19669): the same; "new" in older files
jina_embeddings_v3  Sturua et al. 2024 (arXiv 2409.10173): XLM-RoBERTa with rotary positions
albert              Lan et al. 2019 (arXiv 1909.11942): ELECTRA's embeddings, and layers that share their weights
data2vec-text       Baevski et al. 2022 (arXiv 2202.03555): RoBERTa, trained in another way
ernie               Sun et al. 2019 (arXiv 1907.12412): BERT, with a vector of the task in the embeddings
modernbert          Warner et al. 2024 (arXiv 2412.13663): rotary, gated, windows; its forward is in norm_first.py
megatron-bert       Shoeybi et al. 2019 (arXiv 1909.08053): BERT, norm first
xlm-roberta-xl      Goyal et al. 2021 (arXiv 2105.00572): XLM-RoBERTa, norm first
esm                 Lin et al. 2023 (doi 10.1126/science.ade2574), ESM-2: proteins; ModernBERT's forward, without a gate
eurobert            Boizard et al. 2025 (arXiv 2503.05500): ModernBERT's forward, RMSNorm, heads that share their keys
ultrabert           dmis-lab/UltraBERT-150M (2026): EuroBERT with windows and two rotary bases
==================  =============================================================================================

Everywhere else a module has the path that it has in BERT, whatever its family calls it: a checkpoint is renamed while
it is read, and named back when it is saved. A head that reads [CLS] is BERT's, too: a dense map with an activation,
which is the pooler or takes its place, then the classifier.

Source: the files modeling_*.py of https://github.com/huggingface/transformers/tree/v5.24.0/src/transformers/models,
and its conversion_mapping.py for the names in older files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from minibert.bert.families import bert_like, norm_first, rotary
from minibert.bert.families.family import Family as Family

BIASES = ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias", "decoder_bias")
EXTRA = (
    *("rope_parameters", "layer_types", "local_attention", "classifier_pooling", "classifier_activation"),
    *(*BIASES, "num_hidden_groups", "use_task_id", "task_type_vocab_size", "num_key_value_heads"),
    *("token_dropout", "mask_token_id", "prediction_head_size"),
)
"""The fields of `BertConfig` that only some families have."""

FAMILIES = {family.model_type: family for family in (*bert_like.FAMILIES, *rotary.FAMILIES, *norm_first.FAMILIES)}
"""The ``model_type`` of a config.json -> its family."""


NAMES = tuple(
    f"Bert{part}"
    for part in (
        *("Config", "Tokenizer", "TokenizerFast", "Model", "ForMaskedLM", "ForSequenceClassification"),
        *("ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice"),
    )
)
"""The classes of BERT that every family has under a name of its own."""


def family_of_class(name: str) -> Family | None:
    """Return the family that the name of a class begins with, or None; of two the one with the longer name."""
    families = (family for family in FAMILIES.values() if name.startswith(family.class_name))
    return max(families, key=lambda family: len(family.class_name), default=None)


def bert_class(name: str) -> str:
    """Return the name of BERT's class for that of a family: "BertForMaskedLM" for "RobertaForMaskedLM"."""
    family = family_of_class(name)
    return name if family is None else f"Bert{name.removeprefix(family.class_name)}"


def named_classes(settings: Mapping[str, Any]) -> list[str]:
    """Return the ``architectures`` of a config.json; "New", in older files of gte, is "Gte" here."""
    named = settings.get("architectures")
    names = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    return [re.sub("^New(?=Model|For)", "Gte", name) for name in names]


def architectures(settings: Mapping[str, Any]) -> list[str]:
    """Return the classes that the ``architectures`` of a config.json name, as those of BERT."""
    return list(map(bert_class, named_classes(settings)))
