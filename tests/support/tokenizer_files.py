"""Tokenizers as files: small vocabularies, real ones, and tokenizer.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

WORDS = [*"abc", "ab", "##b", "##c", "hello", "Hello", "world", "h", "##e", "##llo", "é", "的", "人", "##人", "!", ","]

VOCABULARIES = {
    "bert-base-cased": {"do_lower_case": False},
    "bert-base-multilingual-cased": {"do_lower_case": False},
    "bert-base-chinese": {"do_lower_case": False},
}

REAL_VOCABULARIES = ["uncased tokenizer.json", *VOCABULARIES]

EVERYTHING = {f"return_{name}": True for name in ("offsets_mapping", "special_tokens_mask", "length")}

# Texts for machines without the data: kinds of text that tokenizers have computed wrongly.
AWKWARD_TEXTS = [
    "",
    " ",
    "\t\n\r  ",
    "a",
    "Hello, world! It's a test.",
    "naïve café Ångström İstanbul ΑΣ ß ﬁ Ⅷ",
    "e\u0301 o\u0308 n\u0303\u0323 \u0301alone",
    "博推zz 人工智能 日本語のテキスト 한국어",
    "的\u200b人\u200d有\ufeff",
    "\x00null \x07bell \x7f \x85 \xa0 \xad soft\xadhyphen",
    "👩‍👩‍👧‍👦 🏳️‍🌈 e\u20dd",
    "[CLS] [SEP] [MASK] [PAD] [UNK] [unused1] [mask]",
    "x[MASK]y [MASK][MASK]",
    "##ing ## # ##",
    "a" * 99,
    "a" * 100,
    "a" * 101,
    "antidisestablishmentarianism " * 40,
    "𝒯𝒽𝑒 𝓺𝓾𝓲𝓬𝓴 \U0010ffff \ufffd \ufffe",
    "مرحبا بالعالم שלום עולם नमस्ते दुनिया สวัสดีชาวโลก",
    "$1,234.56 100% C++ #hashtag @user http://example.com/?q=a&b=c",
    "“quotes” ‘single’ — dash… ¿qué? ¡sí!",
]


def model_folder(folder: Path, **files: Any) -> Path:
    """Make a folder with JSON files by their names, and vocab.txt by its lines."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if name == "vocab":
            (folder / "vocab.txt").write_text("\n".join(content) + "\n", encoding="utf-8")
        else:
            (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


# ---------------------------------------------------------------------------------------------------------------------
# Loading
# ---------------------------------------------------------------------------------------------------------------------


def tokenizer_json(vocab: list[str], **settings: Any) -> dict[str, Any]:
    """Make a small BERT tokenizer.json, with truncation and padding stored as in all-MiniLM-L6-v2."""
    numbered = {token: token_id for token_id, token in enumerate(vocab)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(numbered, unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(**settings)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = tokenizers.decoders.WordPiece(prefix="##")
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", numbered["[CLS]"]), ("[SEP]", numbered["[SEP]"])],
    )
    tokenizer.add_special_tokens([token for token in SPECIALS if token in numbered])
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=6)
    return json.loads(tokenizer.to_str())  # type: ignore[no-any-return]


def flags(**changed: bool) -> dict[str, bool]:
    return {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": False} | changed
