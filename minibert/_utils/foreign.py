"""Names that other libraries have and minibert does not: the error says what to use instead.

A module calls `missing_names` for its ``__getattr__``. `Finder` sees ``from module import name`` and ``import
module.name``, for which Python would drop the message of an AttributeError.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NoReturn

_OTHER_MODEL = "minibert runs BERT only; BertModel loads a BERT checkpoint for the same use"
_OTHER_TOKENIZER = "use BertTokenizer, for a BERT checkpoint"
_TRAINING = "minibert does not train; train with transformers or sentence-transformers, and load the folder here"
_THEIRS = "sentence-transformers has it"
_TOKENS = "it compares the vectors of all tokens, for models of MultiVectorEncoder, which minibert does not have"
MODULES_ARE_READ = "minibert reads the modules of a model from its files: SentenceTransformer(folder)."
"""Instead of the classes of sentence_transformers.models."""
_CAPTUM = (
    "minibert computes no gradients. captum has it, for the model in transformers (torch); "
    "torch.from_numpy(trace[name]) gives it the values of minibert. Without gradients there are "
)
_TEXTS = f"{_CAPTUM}leave_one_out, ablate_heads and patch"
_MAPS = f"{_CAPTUM}norms, value_zeroing and rollout"
_TRAINED = "it must be trained, which minibert does not do. Train it on model.trace(...)['hidden_states.6']"

# Module -> name -> what to use instead. A name leaves this table when minibert has it.
_INSTEAD: dict[str, dict[str, str]] = {
    "minibert": {
        **dict.fromkeys(("BertLMHeadModel", "AutoModelForCausalLM", "AutoModelForSeq2SeqLM"), _OTHER_MODEL),
        **dict.fromkeys(("DistilBertModel", "RobertaModel", "XLMRobertaModel", "AlbertModel"), _OTHER_MODEL),
        **dict.fromkeys(("ElectraModel", "MPNetModel", "DebertaV2Model", "ModernBertModel", "T5Model"), _OTHER_MODEL),
        **dict.fromkeys(("DistilBertTokenizer", "RobertaTokenizer", "AlbertTokenizer"), _OTHER_TOKENIZER),
        **dict.fromkeys(("DistilBertTokenizerFast", "RobertaTokenizerFast", "MPNetTokenizer"), _OTHER_TOKENIZER),
        **dict.fromkeys(("PreTrainedTokenizerFast", "PreTrainedTokenizer"), "use BertTokenizer; it is as fast"),
        **dict.fromkeys(("Trainer", "TrainingArguments", "SentenceTransformerTrainer", "InputExample"), _TRAINING),
        **dict.fromkeys(("SentenceTransformerTrainingArguments", "losses", "AdamW", "datasets"), _TRAINING),
        **dict.fromkeys(("evaluation", "readers", "SentenceTransformerModelCardData"), _THEIRS),
        **dict.fromkeys(
            ("DPRContextEncoder", "DPRQuestionEncoder"),
            "use SentenceTransformer, with one of the copies such as facebook-dpr-ctx_encoder-single-nq-base",
        ),
        **{
            f"{name}Pipeline": f'use pipeline("{task}", model=model, tokenizer=tokenizer)'
            for name, task in (
                ("TextClassification", "text-classification"),
                ("TokenClassification", "token-classification"),
                ("FillMask", "fill-mask"),
                ("QuestionAnswering", "question-answering"),
                ("FeatureExtraction", "feature-extraction"),
                ("ZeroShotClassification", "zero-shot-classification"),
            )
        },
        "AutoProcessor": "use AutoTokenizer",
        "BatchEncoding": "it is what the tokenizer returns",
        "DataCollatorWithPadding": (
            'give collate_fn=lambda rows: tokenizer.pad(rows, return_tensors="pt"); that of transformers works too'
        ),
        "default_data_collator": "use that of transformers, which works with rows of our tokenizer",
        "MultiVectorEncoder": "use embed_tokens, which gives a vector for each token, without a projection",
        "TextEmbedding": "use SentenceTransformer; its encode gives the vectors",
        "PreTrainedModel": "use BertModel",
        "PretrainedConfig": "use BertConfig",
        "logging": 'use Python\'s: logging.getLogger("minibert")',
        "mine_hard_negatives": "sentence_transformers.util has it, and it works with a model of minibert",
        "set_seed": "leave it out; minibert has no random numbers",
    },
    "minibert.util": {
        **dict.fromkeys(("maxsim", "maxsim_pairwise", "mean_maxsim", "mean_maxsim_pairwise"), _TOKENS),
        "pairwise_angle_sim": "it is the score of a loss; for searching use cos_sim",
        "mine_hard_negatives": "sentence_transformers.util has it, and it works with a model of minibert",
        "http_get": "urllib.request.urlretrieve downloads a file",
    },
    "minibert.models": dict.fromkeys(
        (
            *("Transformer", "Pooling", "Normalize", "Dense", "LayerNorm", "Dropout", "LSTM", "CNN", "BoW", "Router"),
            *("WordEmbeddings", "WordWeights", "WeightedLayerPooling", "StaticEmbedding", "SpladePooling", "Asym"),
            *("CLIPModel", "MLMTransformer"),
        ),
        f"{MODULES_ARE_READ} To build a model from single modules use sentence-transformers, save it with "
        "save_pretrained(folder), and load the folder here",
    ),
    "minibert.inside": {
        **dict.fromkeys(("integrated_gradients", "IntegratedGradients", "LayerIntegratedGradients"), _TEXTS),
        **dict.fromkeys(("saliency", "gradients", "input_x_gradient", "deep_lift", "attributions"), _TEXTS),
        **dict.fromkeys(("attribution_patching", "head_importance", "gradient_shap", "smooth_grad"), _TEXTS),
        **dict.fromkeys(("lrp", "layerwise_relevance_propagation", "transformer_attribution"), _MAPS),
        "tuned_lens": f"{_TRAINED}. Without training there is logit_lens",
        **dict.fromkeys(("probe", "probing", "linear_probe"), f"{_TRAINED}. scikit-learn fits a linear probe"),
        **dict.fromkeys(("cka", "linear_cka", "CKA", "similarity", "anisotropy"), "use compare_layers"),
        **dict.fromkeys(("activation_patching", "causal_tracing", "patching"), "use patch"),
        **dict.fromkeys(("head_ablation", "ablate", "ablation", "prune_heads", "mask_heads"), "use ablate_heads"),
        **dict.fromkeys(("occlusion", "erasure"), "use leave_one_out"),
        **dict.fromkeys(("entropy", "attention_entropy"), "use heads"),
        "attention_norms": "use norms",
    },
}

ALIASES = {
    "minibert.cross_encoder": "minibert.sentence.cross_encoder",
    "minibert.sparse_encoder": "minibert.sentence.sparse_encoder",
    "minibert.sentence_transformer": "minibert.sentence.sentence_transformers",
    "minibert.pipelines": "minibert.tasks.pipelines",
    "minibert.quantization": "minibert.util",
    "minibert.similarity_functions": "minibert.util",
    **{
        f"minibert.util.{name}": "minibert.util"
        for name in ("logging", "quantization", "retrieval", "similarity", "tensor")
    },
}
"""Submodules of transformers and sentence-transformers -> the modules that have their names here."""


def missing_names(module: str, own: Collection[str]) -> Callable[[str], NoReturn]:
    """Return the ``__getattr__`` of a module with these names: its AttributeError says what to use instead."""

    def refuse(name: str) -> NoReturn:
        if message := _message(module, name):
            raise AttributeError(message)
        import difflib

        nearest = difflib.get_close_matches(name, own, 3, 0.5)
        has = f"the nearest names are {', '.join(nearest)}" if nearest else f"it has {', '.join(own)}"
        raise AttributeError(f"module {module!r} has no attribute {name!r}; {has}")

    return refuse


# Classes of other architectures in transformers, such as GPT2Tokenizer or DPRContextEncoder.
_ARCHITECTURE = re.compile(r"[A-Z]\w*?(Tokenizer|TokenizerFast|Config|Model|Encoder|For[A-Z]\w+)")
_HOMES = ("minibert.util", "minibert.cross_encoder", "minibert.sparse_encoder", "minibert.sentence_transformer")
_ELSEWHERE = {f"minibert.{name}" for name in ("backend", "model_card", "SentencesDataset", "training_args", "trainer")}


def _message(module: str, name: str) -> str | None:
    instead = _INSTEAD.get(module, {}).get(name)
    if instead is None and module == "minibert" and (found := _ARCHITECTURE.fullmatch(name)):
        kind = found[1] if found[1] not in ("Encoder", "Model") else "Model"
        instead = f"it has BERT only; for a BERT checkpoint use Bert{kind}"
    return instead and f"{module} has no {name}: {instead}."


class Finder:
    """Finds submodules that other libraries have: at their place here, or with an ImportError that says where."""

    @staticmethod
    def find_spec(fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the spec of an alias; this finder is the last one that is asked."""
        if fullname in ALIASES:
            return ModuleSpec(fullname, Finder, is_package=True)  # type: ignore[arg-type]  # a loader by its methods
        module, _, name = fullname.rpartition(".")
        message = _message(module, name)
        if module in _INSTEAD and name in getattr(sys.modules[module], "__all__", ()):
            message = f"{fullname} is not a module. Write: from {module} import {name}"
        if not message and (module in _HOMES or fullname in _ELSEWHERE) and not name.startswith("_"):
            message = f"{fullname} is a module of sentence-transformers; minibert has its functions in minibert.util"
        if message:
            raise ImportError(message, name=module)
        return None

    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        """Let Python make the module."""

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """Give a module the names of the one that it stands for."""
        home = import_module(ALIASES[module.__name__])
        module.__dict__.update(__getattr__=partial(getattr, home), __dir__=partial(dir, home))
