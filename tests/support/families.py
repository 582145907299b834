"""What the tests know of each family beside its record in minibert.bert.families: its random models, its tokenizer."""

from __future__ import annotations

import ast
import copy
import dataclasses
import functools
import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from minibert.bert.families import FAMILIES
from minibert.bert.reference import ACTIVATIONS
from tests.support.json_files import write_json
from tests.support.marks import by_default

SIZES: dict[str, Any] = {
    **{"vocab_size": 199, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3},
    **{"intermediate_size": 40, "max_position_embeddings": 40},
}
KINDS = (
    *("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"),
    *("ForQuestionAnswering", "ForMultipleChoice"),
)
Values = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Sample:
    """What the tests need of a family.

    Parameters
    ----------
    config : mapping
        The fields of its random models that `SIZES` does not have.
    kinds : sequence of str
        The classes that transformers has of it, by the last part of their names.
    tokenizer : str
        The class that its checkpoints name.
    has_vocabulary : bool
        Its vocabulary has a file of its own, beside which tokenizer.json is not needed.
    changing : mapping
        Fields of config.json that change numbers in this family and not in BERT -> values.
    of_heads : mapping
        The same for fields that decide which tensors there are, or what a head computes.
    refused : sequence
        Fields that minibert refuses by name where transformers may run them: (class, field, values).
    telling : mapping
        The fields of a model in which every mistake of a port shows: scaled angles, windows, two rotary bases.
    """

    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    kinds: Sequence[str] = KINDS
    tokenizer: str = "BertTokenizer"
    has_vocabulary: bool = False
    changing: Mapping[str, Values] = dataclasses.field(default_factory=dict)
    of_heads: Mapping[str, Values] = dataclasses.field(default_factory=dict)
    refused: Sequence[tuple[str, str, Values]] = ()
    telling: Mapping[str, Any] = dataclasses.field(default_factory=dict)


_ACTIVATION = ("Model", "hidden_act", ("quick_gelu", "mish"))
_NO_PADDING = ("Model", "pad_token_id", (None, -1, 39))
_HEAD_DIM = ("Model", "head_dim", (4, 16))
_IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_ROPE: dict[str, Values] = {
    "rope_parameters": (
        *({"rope_type": "linear", "factor": 2.0}, {"rope_theta": 50.0}, {"partial_rotary_factor": 0.5}),
    ),
    **{"rope_theta": (77.0,), "rope_scaling": ({"type": "linear", "factor": 3.0}, {"rope_theta": 9.0})},
}
_HEAD_SIZES = {"head_dim": (8, 16)}
_ROBERTA = Sample({"type_vocab_size": 1, "layer_norm_eps": 1e-5}, tokenizer="RobertaTokenizer", has_vocabulary=True)
_ROTARY = Sample(
    _IDS,
    tokenizer="XLMRobertaTokenizer",
    changing=_ROPE | _HEAD_SIZES,
    refused=(_HEAD_DIM, _ACTIVATION),
    telling={"rope_parameters": {"rope_theta": 300.0, "rope_type": "linear", "factor": 1.2}},
)

SAMPLES = {
    "bert": Sample(
        kinds=(*KINDS, "ForPreTraining", "ForNextSentencePrediction"),
        changing={"hidden_act": tuple(ACTIVATIONS), "position_embedding_type": (None, "absolute")},
        refused=(
            ("Model", "hidden_act", ("gelu_10", "quick_gelu", "mish", "GELU", "", None, ["gelu"])),
            ("Model", "model_type", ("deberta", "deberta-v2", "t5", None, ["bert"], "BERT")),
        ),
    ),
    "roberta": dataclasses.replace(_ROBERTA, refused=(_NO_PADDING, _ACTIVATION)),
    "xlm-roberta": Sample(
        {"type_vocab_size": 1, "hidden_act": "relu"}, tokenizer="XLMRobertaTokenizer", refused=(_NO_PADDING,)
    ),
    "camembert": Sample(tokenizer="CamembertTokenizer", refused=(_NO_PADDING,)),
    "data2vec-text": dataclasses.replace(_ROBERTA, refused=(_NO_PADDING, _ACTIVATION)),
    "ernie": Sample(
        refused=(("Model", "use_task_id", ("x", None)), ("Model", "task_type_vocab_size", (0, "3"))),
    ),
    "distilbert": Sample(
        tokenizer="DistilBertTokenizer", has_vocabulary=True, refused=(("Model", "activation", ("quick_gelu", "mish")),)
    ),
    "mpnet": Sample(
        tokenizer="MPNetTokenizer",
        has_vocabulary=True,
        refused=(_ACTIVATION, ("Model", "relative_attention_num_buckets", (16, 64))),
    ),
    "electra": Sample(
        {"embedding_size": 16},
        tokenizer="ElectraTokenizer",
        has_vocabulary=True,
        refused=(
            ("ForMultipleChoice", "summary_type", ("last", "mean")),
            ("ForMultipleChoice", "summary_use_proj", (False,)),
            ("ForMultipleChoice", "summary_activation", ("tanh",)),
        ),
    ),
    "albert": Sample(
        {"embedding_size": 16, "hidden_act": "gelu"},
        tokenizer="AlbertTokenizer",
        of_heads={"num_hidden_groups": (2, 3)},
        refused=(("Model", "inner_group_num", (2,)), ("Model", "num_hidden_groups", (0, "2", None, 4)), _ACTIVATION),
    ),
    "nomic_bert": dataclasses.replace(_ROTARY, kinds=KINDS[:4], tokenizer="BertTokenizer"),
    "gte": dataclasses.replace(_ROTARY, kinds=KINDS[:4]),
    "jina_embeddings_v3": dataclasses.replace(_ROTARY, kinds=KINDS[:5]),
    "modernbert": Sample(
        {**_IDS, "cls_token_id": 1, "sep_token_id": 2, "local_attention": 8},
        tokenizer="PreTrainedTokenizerFast",
        changing={
            **{name: tuple({"full_attention": rope} for rope in ropes) for name, ropes in _ROPE.items()},
            "layer_types": (["sliding_attention"] * 3, ["full_attention", "full_attention", "sliding_attention"]),
            **{"local_attention": (2, 7), "sliding_window": (0, 5), **_HEAD_SIZES},
            **{"norm_eps": (1e-3, 1.0), "hidden_activation": ("relu", "silu")},
        },
        of_heads={
            **dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias"), (True, False)),
            **dict.fromkeys(("classifier_bias", "decoder_bias"), (True, False)),
            **{"classifier_activation": ("relu", "gelu"), "classifier_pooling": ("cls", "mean")},
        },
        refused=(
            *(_HEAD_DIM, ("Model", "hidden_activation", ("quick_gelu", "mish"))),
            *(("Model", "classifier_activation", ("quick_gelu", 3)), ("Model", "classifier_pooling", ("max", None))),
            *(("Model", "norm_bias", ("x", 2)), ("Model", "sliding_window", ("7", -1, 2.5))),
            ("Model", "tie_last_hidden_states", (False,)),
        ),
        telling={
            **{"num_hidden_layers": 4, "local_attention": 6},
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {"full_attention": {"rope_theta": 500.0}, "sliding_attention": {"rope_theta": 50.0}},
        },
    ),
}
SAMPLES["eurobert"] = Sample(
    {**_IDS, "mask_token_id": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 24},
    kinds=KINDS[:4],
    tokenizer="PreTrainedTokenizerFast",
    changing={**_ROPE, "rms_norm_eps": (1e-3, 1.0)},
    of_heads={
        **dict.fromkeys(("attention_bias", "mlp_bias", "tie_word_embeddings"), (True, False)),
        **{"classifier_pooling": ("bos", "mean", "late"), "num_key_value_heads": (1, 4), "head_dim": (None, 6)},
    },
    refused=(
        *(_HEAD_DIM, _ACTIVATION, ("Model", "num_key_value_heads", (3, 0, "2"))),
        *(("Model", "classifier_pooling", ("cls", None)), ("Model", "mlp_bias", ("x", 2))),
        ("ForSequenceClassification", "clf_pooling", ("mean", "bos")),
    ),
    telling={"num_hidden_layers": 4, "rope_parameters": {"rope_theta": 300.0, "rope_type": "linear", "factor": 1.2}},
)
_BOTH_ROPES = {
    "full_attention": {"rope_type": "linear", "factor": 1.2, "rope_theta": 500.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
}
_BASES = {name: {"rope_type": "default", "rope_theta": 77.0} for name in _BOTH_ROPES}
SAMPLES["ultrabert"] = Sample(
    {**_IDS, "num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 3, "prediction_head_size": 20},
    kinds=KINDS[:5],
    tokenizer="PreTrainedTokenizerFast",
    changing={
        **{"rope_parameters": (_BOTH_ROPES, _BASES), "rms_norm_eps": (1e-3, 1.0), "sliding_window": (0, 5)},
        "layer_types": (["sliding_attention"] * 3, ["full_attention", "full_attention", "sliding_attention"]),
        "attention_windows": ([2, 0, 2], [None, 4, 4]),
    },
    of_heads={
        **dict.fromkeys(("attention_bias", "mlp_bias", "tie_word_embeddings"), (True, False)),
        **{"classifier_pooling": ("cls", "mean"), "num_key_value_heads": (1, 4), "head_dim": (None, 6)},
        "prediction_head_size": (1, 30),
    },
    refused=(
        *(_HEAD_DIM, _ACTIVATION, ("Model", "num_key_value_heads", (3, 0, "2"))),
        *(("Model", "classifier_pooling", ("late", None)), ("Model", "sliding_window", ("7", -1, 2.5))),
        *(("Model", "attention_windows", ([2, 3, 0], 4)), ("Model", "rope_theta", (77.0, "x"))),
        *(("Model", "rope_scaling", ({"type": "linear", "factor": 3.0},)), ("Model", "prediction_head_size", (0, "3"))),
    ),
    telling={"num_hidden_layers": 6, "rope_parameters": _BOTH_ROPES},
)
SAMPLES["esm"] = Sample(
    {"pad_token_id": 1, "mask_token_id": 150, "token_dropout": True, "position_embedding_type": "rotary"}
    | {"layer_norm_eps": 1e-5, "emb_layer_norm_before": False},
    kinds=KINDS[:4],
    tokenizer="EsmTokenizer",
    has_vocabulary=True,
    changing={"token_dropout": (False, True), "mask_token_id": (7, 150), "rope_theta": (77.0,)},
    refused=(
        ("Model", "position_embedding_type", ("absolute", None, "relative_key")),
        *(("Model", name, (True,)) for name in ("emb_layer_norm_before", "is_folding_model")),
        *(("Model", "token_dropout", ("x", 2)), ("Model", "mask_token_id", (None, -1))),
    ),
)
SAMPLES["megatron-bert"] = Sample()
SAMPLES["xlm-roberta-xl"] = Sample({"type_vocab_size": 1}, tokenizer="XLMRobertaTokenizer", refused=(_NO_PADDING,))
ROTARY = tuple(family for family in FAMILIES if FAMILIES[family].theta)
PAIRS = [(family, kind) for family in FAMILIES for kind in SAMPLES[family].kinds]


def _forward(family: str) -> dict[str, Any]:
    """Return the record of a family without its names and defaults."""
    names = ("model_type", "class_name", "field", "defaults", "inputs")
    return {name: value for name, value in vars(FAMILIES[family]).items() if name not in names}


_FORWARDS = {family: _forward(family) for family in FAMILIES}
OTHER_NAMES = [family for i, family in enumerate(FAMILIES) if _FORWARDS[family] in [*_FORWARDS.values()][:i]]
"""The families that are another name of the forward of one before them."""


def by_forward(cases: Iterable[Any]) -> list[Any]:
    """Return cases, each a family or a tuple that begins with one; those of another name of a forward are slow."""
    found = [*cases]
    return by_default(
        found, *(case for case in found if ([case] if isinstance(case, str) else case)[0] not in OTHER_NAMES)
    )


def make(folder: Path, family: str, kind: str = "Model", **more: Any) -> Any:
    """Save a random model of transformers, the same for the same arguments, and return it."""
    sizes = {FAMILIES[family].own_name(name): value for name, value in SIZES.items()}
    model, made = _made(family, kind, repr({**sizes, **SAMPLES[family].config, **more}))
    shutil.copytree(made, folder, dirs_exist_ok=True)
    torch.manual_seed(1)  # what a test draws does not depend on which one made the model
    return copy.deepcopy(model)


_MADE = tempfile.TemporaryDirectory()


@functools.cache
def _made(family: str, kind: str, fields: str) -> tuple[Any, Path]:
    """Make a model once, because several tests have the same; return it, and the folder of its files."""
    class_name = FAMILIES[family].class_name
    config = getattr(transformers, f"{class_name}Config")(**ast.literal_eval(fields))
    torch.manual_seed(0)
    model = getattr(transformers, f"{class_name}{kind}")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn_like(parameter))
        # transformers ties the two names of this bias while it loads
        for part in ("lm_head", "cls.predictions", "predictions") if kind == "ForMaskedLM" else ():
            if hasattr(model, part.partition(".")[0]):
                head = model.get_submodule(part)
                if getattr(getattr(head, "decoder", None), "bias", None) is not None and hasattr(head, "bias"):
                    head.bias.copy_(head.decoder.bias)
    folder = Path(tempfile.mkdtemp(dir=_MADE.name))
    model.save_pretrained(folder)
    return model, folder


def in_float64(model: Any) -> Any:
    """Return a copy that computes in float64, also the RMSNorms, in which transformers computes in float32."""
    exact = copy.deepcopy(model).double()
    for norm in (module for module in exact.modules() if hasattr(module, "variance_epsilon")):
        norm.forward = lambda x, own=norm: (
            own.weight * x / (x.pow(2).mean(-1, keepdim=True) + own.variance_epsilon).sqrt()
        )
    return exact


def inputs(padding: int, rows: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Return ids and a mask with padding at the right, at the left, inside, and a padding token that is not masked."""
    ids, mask = np.random.default_rng(1).integers(3, 99, (rows, 17)), np.ones((rows, 17), int)
    for row, columns in ((1, slice(9, None)), (3, slice(None, 3)), (2, slice(4, 5))):
        mask[row, columns] = 0
        if row != 2:
            ids[row, columns] = padding
    ids[0, 5] = padding
    return ids, mask


def modules_of(theirs: Any, **given: Any) -> tuple[dict[str, np.ndarray], Any]:
    """Run a model; return the outputs of all modules with weights under their names in the family, and its output.

    Of ALBERT, without the layers, which are one module, and the pooler, which is a dense map there.
    """
    values: dict[str, np.ndarray] = {}
    hooks = [
        module.register_forward_hook(lambda _, given, out, name=name: values.update({name: out.numpy()}))
        for name, module in theirs.named_modules()
        if isinstance(module, torch.nn.Linear | torch.nn.LayerNorm | torch.nn.Embedding) and "relative" not in name
    ]
    with torch.no_grad():
        output = theirs(**{name: torch.as_tensor(array) for name, array in given.items()}, output_hidden_states=True)
    for hook in hooks:
        hook.remove()
    if shared := FAMILIES[theirs.config.model_type].shared_layers:
        values = {name: array for name, array in values.items() if shared not in name and "pooler" not in name}
    return values, output


# --- tokenizers, trained by the tokenizers library on some texts, as files of transformers ----------------------------

BERT_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA_TOKENS = ["<s>", "<pad>", "</s>", "<unk>"]
EUROBERT_TOKENS = {
    **{"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>", "pad_token": "<|end_of_text|>"},
    "mask_token": "<|mask|>",
}
# In the order of ESM's; the residues are lower-case letters here, so that the texts of the tests have them.
ESM_TOKENS = ["<cls>", "<pad>", "<eos>", "<unk>", *"lagvserti", *"dpkqnfymhwcxbuzo", ".", "-", "<null_1>", "<mask>"]
ALBERT_TOKENS = ["<pad>", "<unk>", "[CLS]", "[SEP]"]
WITH_VOCABULARY = tuple(family for family in SAMPLES if SAMPLES[family].has_vocabulary)


def train(family: str, texts: Iterable[str], size: int) -> Tokenizer:
    """Return the library's tokenizer, trained once for all families of its class; what a class adds is not there yet.

    Nobody may change it.
    """
    return _trained(SAMPLES[family].tokenizer, family == "eurobert", tuple(texts), size)


@functools.cache
def _trained(name: str, is_eurobert: bool, texts: tuple[str, ...], size: int) -> Tokenizer:
    options: dict[str, Any] = {"vocab_size": size, "show_progress": False}
    if name == "RobertaTokenizer":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer: Any = trainers.BpeTrainer(
            special_tokens=[*ROBERTA_TOKENS, "<mask>"], initial_alphabet=alphabet, **options
        )
    elif name == "EsmTokenizer":
        return Tokenizer(models.WordLevel({token: i for i, token in enumerate(ESM_TOKENS)}, unk_token="<unk>"))
    elif name == "PreTrainedTokenizerFast":
        return (_train_eurobert if is_eurobert else _train_modernbert)(texts, size)
    elif name in ("XLMRobertaTokenizer", "CamembertTokenizer", "AlbertTokenizer"):
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        special = ALBERT_TOKENS if name == "AlbertTokenizer" else ROBERTA_TOKENS
        trainer = trainers.UnigramTrainer(
            special_tokens=special, unk_token="<unk>", **options | {"vocab_size": 3 * size}
        )
    else:
        special = [*ROBERTA_TOKENS, "[UNK]", "<mask>"] if name == "MPNetTokenizer" else BERT_TOKENS
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(special_tokens=special, **options)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _train_modernbert(texts: Sequence[str], size: int) -> Tokenizer:
    """Train a tokenizer with the parts of ModernBERT's, which come from its file and not from a class."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    first = ["<|endoftext|>", "<|padding|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=first, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(" " * length, normalized=True) for length in range(24, 1, -1)])
    tokenizer.add_tokens([AddedToken("|||IP_ADDRESS|||", normalized=True)])
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    tokenizer.add_special_tokens([AddedToken(token, lstrip=token == "[MASK]", normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(f"[unused{i}]", normalized=True) for i in range(4)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    return tokenizer


def _train_eurobert(texts: Sequence[str], size: int) -> Tokenizer:
    """Train a tokenizer with the parts of EuroBERT's, those of Llama 3; padding is the token that ends a text."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    split = pre_tokenizers.Split(Regex(rf"{words}|\s+(?!\S)|\s+"), "isolated")
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, whole])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    special = [*EUROBERT_TOKENS.values(), "<|reserved_special_token_0|>"]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in dict.fromkeys(special)])
    first, last = EUROBERT_TOKENS["bos_token"], EUROBERT_TOKENS["eos_token"]
    template = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B:1 {last}:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (first, last)],
    )
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return tokenizer


def family_folder(folder: Path, family: str, trained: Tokenizer, *, vocabulary: bool = False, **settings: Any) -> Path:
    """Write a folder of a family: tokenizer.json as transformers saves it, or the files of the vocabulary alone."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    name = SAMPLES[family].tokenizer
    config = {"model_type": family, "max_position_embeddings": 514, "type_vocab_size": 2, "pad_token_id": 1}
    write_json(folder / "config.json", config)
    if name == "EsmTokenizer":
        (folder / "vocab.txt").write_text("\n".join(ESM_TOKENS), encoding="utf-8")
        write_json(folder / "tokenizer_config.json", {"tokenizer_class": name} | settings)
        return folder
    if vocabulary:
        trained.model.save(str(folder))
        write_json(folder / "tokenizer_config.json", {"tokenizer_class": name} | settings)
        return folder
    if name == "PreTrainedTokenizerFast":
        named = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
        named |= {"mask_token": "[MASK]"}
        named = (EUROBERT_TOKENS if family == "eurobert" else named) | {"clean_up_tokenization_spaces": True} | settings
        transformers.PreTrainedTokenizerFast(tokenizer_object=trained, **named).save_pretrained(folder)
        return folder
    model = json.loads(trained.to_str())["model"]
    parts: dict[str, Any] = {"vocab": model["vocab"]}
    if name == "RobertaTokenizer":
        parts["merges"] = [tuple(merge) for merge in model["merges"]]
    elif isinstance(model["vocab"], list):
        parts["vocab"] = [tuple(piece) for piece in model["vocab"]]
    getattr(transformers, name)(**parts, **settings).save_pretrained(folder)
    return folder
