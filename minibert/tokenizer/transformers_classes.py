"""What a tokenizer class of transformers makes of a vocabulary: special tokens, normalizer, splitting, layout, decoder.

=======================================  =========  ================================  ================================
class                                    model      one text, and a pair              its vocabulary file
=======================================  =========  ================================  ================================
BertTokenizer, ElectraTokenizer          WordPiece  [CLS] A [SEP], then B [SEP]       vocab.txt
DistilBertTokenizer                      WordPiece  the same, without token types     vocab.txt
MPNetTokenizer                           WordPiece  <s> A </s>, then </s> B </s>      vocab.txt
RobertaTokenizer                         BPE        <s> A </s>, then </s> B </s>      vocab.json and merges.txt
XLMRobertaTokenizer, CamembertTokenizer  Unigram    <s> A </s>, then </s> B </s>      a file of SentencePiece; not read
AlbertTokenizer                          Unigram    [CLS] A [SEP], then B [SEP]       the same
EsmTokenizer                             WordLevel  <cls> A <eos>, then B <eos>       vocab.txt
=======================================  =========  ================================  ================================

Source: the files tokenization_*.py of https://github.com/huggingface/transformers/tree/v5.23.0/src/transformers/models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from minibert.errors import ModelFormatError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


SPECIAL_TOKEN_NAMES = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_BERT_TOKENS = dict(zip(SPECIAL_TOKEN_NAMES[2:], ("[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"), strict=True))
_ROBERTA_TOKENS = dict(
    zip(SPECIAL_TOKEN_NAMES, ("<s>", "</s>", "<unk>", "</s>", "<pad>", "<s>", "<mask>"), strict=True)
)
_ALBERT_TOKENS = _BERT_TOKENS | {"bos_token": "[CLS]", "eos_token": "[SEP]", "unk_token": "<unk>", "pad_token": "<pad>"}
_MPNET_TOKENS = _ROBERTA_TOKENS | {"unk_token": "[UNK]"}
_ESM_TOKENS = {f"{name}_token": f"<{name}>" for name in ("eos", "unk", "pad", "cls", "mask")}
_SPACES = {"add_prefix_space": False, "trim_offsets": True}
_NORMALIZER = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}
INPUT_NAMES = ("input_ids", "token_type_ids", "attention_mask")

_GROW = "a model must be trained with new tokens: add them in transformers, and load what it saves"
_CALL = "call the tokenizer itself, with the texts"
_FILES = "save_pretrained(folder) writes vocab.txt, and a tokenizer.json for tokenizers.Tokenizer.from_file"
INSTEAD = {
    **dict.fromkeys(("add_tokens", "add_special_tokens", "train_new_from_iterator"), _GROW),
    **dict.fromkeys(("encode_plus", "batch_encode_plus", "build_inputs_with_special_tokens"), _CALL),
    **dict.fromkeys(("save_vocabulary", "vocab_file"), _FILES),
    **dict.fromkeys(("apply_chat_template", "chat_template"), "the models of BERT's family do not chat"),
    "create_token_type_ids_from_sequences": f"{_CALL} and return_token_type_ids=True",
    "set_truncation_and_padding": "give truncation= and padding= to a call",
    "clean_up_tokenization": "call decode(ids, clean_up_tokenization_spaces=True)",
    "push_to_hub": "save into a folder, then run `hf upload`",
}
"""Names that the tokenizers of transformers have, and what to do instead."""


@dataclass(frozen=True, eq=False)
class TokenizerClass:
    """One class of transformers.

    Parameters
    ----------
    name : str
        The class that tokenizer_config.json names; "" for every class that is not here.
    model : str
        The class of the library's model that it has; another model in tokenizer.json is used as it is.
    special_tokens : mapping of str to str
        The special tokens by name, if the files do not name them.
    extra_special_tokens : sequence of str
        More special tokens, if the files do not name any and the vocabulary has them.
    settings : mapping of str
        The settings in tokenizer_config.json that change tokens or offsets, and their defaults.
    has_token_types : bool
        A call returns "token_type_ids" unless it says otherwise.
    mask_takes_space : bool
        The mask token takes the space before it.
    """

    name: str = ""
    model: str = ""
    special_tokens: Mapping[str, str] = field(default_factory=lambda: _BERT_TOKENS)
    extra_special_tokens: Sequence[str] = ()
    settings: Mapping[str, bool | None] = field(default_factory=dict)
    has_token_types: bool = False
    mask_takes_space: bool = False

    def stated(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of this class that tokenizer_config.json states, checked, with transformers' defaults."""
        stated = {name: settings.get(name, default) for name, default in self.settings.items()}
        for name, value in stated.items():
            if not isinstance(value, bool) and (value is not None or self.settings[name] is not None):
                raise ModelFormatError(f"tokenizer_config.json has {name} {value!r}; expected true or false.")
        return stated


GENERIC = TokenizerClass()
_BERT = TokenizerClass("BertTokenizer", "WordPiece", settings=_NORMALIZER, has_token_types=True)
_XLM_ROBERTA = TokenizerClass("XLMRobertaTokenizer", "Unigram", _ROBERTA_TOKENS, settings={"add_prefix_space": True})
_OF_ALBERT = {"do_lower_case": True, "keep_accents": False, "add_prefix_space": True}
_UNUSED = ("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED")
_CLASSES = {
    tokenizer_class.name: tokenizer_class
    for tokenizer_class in (
        _BERT,
        replace(_BERT, name="ElectraTokenizer"),
        replace(_BERT, name="DistilBertTokenizer", has_token_types=False),
        TokenizerClass("MPNetTokenizer", "WordPiece", _MPNET_TOKENS, settings=_NORMALIZER, mask_takes_space=True),
        TokenizerClass("RobertaTokenizer", "BPE", _ROBERTA_TOKENS, settings=_SPACES),
        TokenizerClass("AlbertTokenizer", "Unigram", _ALBERT_TOKENS, settings=_OF_ALBERT, has_token_types=True),
        TokenizerClass("EsmTokenizer", "WordLevel", _ESM_TOKENS),
        _XLM_ROBERTA,
        replace(_XLM_ROBERTA, name="CamembertTokenizer", extra_special_tokens=_UNUSED, mask_takes_space=True),
    )
}
SETTING_NAMES = tuple(dict.fromkeys(name for known in _CLASSES.values() for name in known.settings))
_OF_MODELS = {
    "roberta": "RobertaTokenizer",
    "camembert": "CamembertTokenizer",
    "albert": "AlbertTokenizer",
    "data2vec-text": "RobertaTokenizer",
    "mpnet": "MPNetTokenizer",
    **dict.fromkeys(("xlm-roberta", "xlm-roberta-xl", "gte", "jina_embeddings_v3"), "XLMRobertaTokenizer"),
    "esm": "EsmTokenizer",
    **dict.fromkeys(("modernbert", "new", "eurobert", "ultrabert"), GENERIC.name),
}
"""The ``model_type`` of config.json -> the class, if the files do not name one; BERT's for every other type."""


def class_of(settings: Mapping[str, Any], model_type: object, called: str = "BertTokenizer") -> TokenizerClass:
    """Return the class that tokenizer_config.json names, else the model's class; `GENERIC` if it is not known here.

    If the files say neither, it is the class that was called. As in transformers, a class that the files of a
    ModernBERT name does not count.
    """
    named = settings.get("tokenizer_class")
    if not isinstance(named, str) or model_type == "modernbert":
        named = _OF_MODELS.get(model_type, "BertTokenizer") if isinstance(model_type, str) else called
    return _CLASSES.get(named.removesuffix("Fast"), GENERIC)


def make_parts(kind: TokenizerClass, tokenizer: Tokenizer, settings: Mapping[str, Any], unk_token: str | None) -> None:
    """Give the library's tokenizer what the class has beside the vocabulary, but for the layout of special tokens."""
    from tokenizers import Regex, decoders, normalizers, pre_tokenizers

    parts: dict[str, Any]
    of_model: dict[str, Any] = {}
    if kind.model == "WordPiece":
        of_model = {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
        of_model |= {"unk_token": unk_token} if unk_token else {}
        parts = {
            "normalizer": normalizers.BertNormalizer(
                clean_text=True,
                handle_chinese_chars=settings["tokenize_chinese_chars"],
                strip_accents=settings["strip_accents"],
                lowercase=settings["do_lower_case"],
            ),
            "pre_tokenizer": pre_tokenizers.BertPreTokenizer(),
            "decoder": decoders.WordPiece(prefix="##"),
        }
    elif kind.model == "BPE":
        of_model = {"dropout": None, "unk_token": None, "fuse_unk": False, "byte_fallback": False}
        parts = {
            "normalizer": None,
            "pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=settings["add_prefix_space"]),
            "decoder": decoders.ByteLevel(),
        }
    elif kind.model == "WordLevel":  # each token of the vocabulary is found in the text, as a part of a word too
        tokens = sorted(filter(None, tokenizer.get_vocab()), key=len, reverse=True)
        found = pre_tokenizers.Split(Regex("|".join(map(re.escape, tokens))), "isolated")
        parts = {
            "normalizer": None,
            "pre_tokenizer": pre_tokenizers.Sequence([found, pre_tokenizers.WhitespaceSplit()]),
            "decoder": None,
        }
    else:
        space: Any = {"replacement": "▁", "prepend_scheme": "always" if settings["add_prefix_space"] else "never"}
        normalizer = tokenizer.normalizer
        steps: list[Any] = list(normalizer) if isinstance(normalizer, normalizers.Sequence) else [normalizer]  # type: ignore[call-overload]
        precompiled = [step for step in steps if isinstance(step, normalizers.Precompiled)]
        parts = {
            "normalizer": _albert_normalizer(settings, precompiled)
            if "keep_accents" in kind.settings
            else next(iter(precompiled), None),
            "pre_tokenizer": pre_tokenizers.Sequence(
                [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(**space)]
            ),
            "decoder": decoders.Metaspace(**space),
        }
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    for name, value in of_model.items():
        setattr(tokenizer.model, name, value)


def _albert_normalizer(settings: Mapping[str, Any], last: Sequence[Any]) -> Any:
    from tokenizers import normalizers

    steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    steps += [] if settings["keep_accents"] else [normalizers.NFKD(), normalizers.StripAccents()]
    steps += [normalizers.Lowercase()] if settings["do_lower_case"] else []
    return normalizers.Sequence([*steps, *last[:1]])


def make_layout(
    kind: TokenizerClass, tokenizer: Tokenizer, special_tokens: Mapping[str, str], settings: Mapping[str, Any]
) -> None:
    """Give the library's tokenizer the layout of special tokens that the class has.

    Raises
    ------
    ModelFormatError
        The files do not name the special tokens of the layout.
    """
    from tokenizers import processors

    names = ("bos_token", "eos_token") if kind.model == "Unigram" else ("cls_token", "sep_token")
    names = ("cls_token", "eos_token") if kind.model == "WordLevel" else names
    missing = [name for name in names if name not in special_tokens]
    if missing:
        raise ModelFormatError(f"the tokenizer has no post_processor, and the files lack {' and '.join(missing)}.")
    first, last = ((token, int(tokenizer.token_to_id(token) or 0)) for token in map(special_tokens.__getitem__, names))
    of_bert = kind.special_tokens is _BERT_TOKENS or kind.special_tokens is _ALBERT_TOKENS
    if of_bert or kind.model in ("Unigram", "WordLevel"):
        single = f"{first[0]}:0 $A:0 {last[0]}:0"
        other = f"$B:1 {last[0]}:1" if of_bert else f"{last[0]}:0 $B:0 {last[0]}:0"
        other = f"$B:0 {last[0]}:0" if kind.model == "WordLevel" else other
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single.split(), pair=f"{single} {other}".split(), special_tokens=[first, last]
        )
    else:
        tokenizer.post_processor = processors.RobertaProcessing(
            last, first, settings.get("trim_offsets", True), settings.get("add_prefix_space", False)
        )
