"""Tokenizers of each family, trained by the tokenizers library on some texts, as files of transformers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

BERT_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA_TOKENS = ["<s>", "<pad>", "</s>", "<unk>"]

# The family -> the class that its checkpoints name.
CLASSES = {
    "bert": "BertTokenizer",
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
    "distilbert": "DistilBertTokenizer",
    "mpnet": "MPNetTokenizer",
    "electra": "ElectraTokenizer",
}
SUCCESSORS = {
    "nomic_bert": "BertTokenizer",
    "gte": "XLMRobertaTokenizer",
    "jina_embeddings_v3": "XLMRobertaTokenizer",
    "modernbert": "PreTrainedTokenizerFast",
}
"""The same for BERT's successors."""
WITH_VOCABULARY = ("roberta", "distilbert", "mpnet", "electra")
"""The families whose vocabulary has a file of its own."""


def train(family: str, texts: Sequence[str], size: int) -> Tokenizer:
    """Train the library's tokenizer; what a class of transformers adds is not there yet."""
    options: dict[str, Any] = {"vocab_size": size, "show_progress": False}
    if family == "roberta":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer: Any = trainers.BpeTrainer(
            special_tokens=[*ROBERTA_TOKENS, "<mask>"], initial_alphabet=alphabet, **options
        )
    elif family == "modernbert":
        return _train_modernbert(texts, size)
    elif _class_name(family) in ("XLMRobertaTokenizer", "CamembertTokenizer"):
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(
            special_tokens=ROBERTA_TOKENS, unk_token="<unk>", **options | {"vocab_size": 3 * size}
        )
    else:
        special = [*ROBERTA_TOKENS, "[UNK]", "<mask>"] if family == "mpnet" else BERT_TOKENS
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


def _class_name(family: str) -> str:
    return (CLASSES | SUCCESSORS)[family]


def family_folder(folder: Path, family: str, trained: Tokenizer, *, vocabulary: bool = False, **settings: Any) -> Path:
    """Write a folder of a family: tokenizer.json as transformers saves it, or the files of the vocabulary alone."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    name = _class_name(family)
    config = {"model_type": family, "max_position_embeddings": 514, "type_vocab_size": 2, "pad_token_id": 1}
    (folder / "config.json").write_text(json.dumps(config))
    if vocabulary:
        trained.model.save(str(folder))
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name} | settings))
        return folder
    if family == "modernbert":
        named = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
        named |= {"mask_token": "[MASK]", "clean_up_tokenization_spaces": True} | settings
        transformers.PreTrainedTokenizerFast(tokenizer_object=trained, **named).save_pretrained(folder)
        return folder
    model = json.loads(trained.to_str())["model"]
    parts: dict[str, Any] = {"vocab": model["vocab"]}
    if family == "roberta":
        parts["merges"] = [tuple(merge) for merge in model["merges"]]
    elif isinstance(model["vocab"], list):
        parts["vocab"] = [tuple(piece) for piece in model["vocab"]]
    getattr(transformers, name)(**parts, **settings).save_pretrained(folder)
    return folder
