"""Limits of a tokenizer.json: files for which the `tokenizers` library could need too much time or memory are refused.

The library cannot be stopped, and it ends the process if it runs out of memory. So the file is checked before the
library reads it.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable
from typing import Any

from minibert._utils.validation import brief

__all__ = ["FILE_LIMIT", "GROWTH", "check_added_tokens", "check_content"]

FILE_LIMIT = 32 * 2**20
"""Most bytes of a file; the largest real one of a BERT, multilingual-e5-small's, has 17 MB."""

MOST_STEPS = 16  # of a normalizer, pre_tokenizer, post_processor or decoder; also pieces of a template, ids of a token
MOST_GROWTH = 2048  # growth of a text; NFKC and XLM-R's table of characters turn one character into up to 18
LONGEST_PATTERN = 4096  # characters; the library takes minutes to compile 100,000
# Characters of a token, or of a word. The library's tries recurse once per byte; WordPiece's time for a word grows with
# the cube of its length.
LONGEST_TOKEN = 1000
MOST_PIECE_BYTES = 4 * 2**20  # of all pieces of a Unigram vocabulary: a byte takes 350 in its trie; XLM-R has 2.5 MB
MOST_ADDED_CHARACTERS = 2**24  # of all added tokens, normalized

GROWTH = {
    **dict.fromkeys(("Sequence", "Strip", "StripAccents", "Nmt"), 1),
    **dict.fromkeys(("BertNormalizer", "ByteLevel", "NFC", "NFD"), 4),
    **dict.fromkeys(("NFKC", "NFKD"), 18),
}
"""The most characters that a step makes from one character. Steps that are not listed make at most two."""


def check_content(content: Any) -> int:
    """Refuse a tokenizer.json for which the library could need too much time or memory.

    Returns
    -------
    int
        The most characters that its normalizer makes from one character.
    """
    if not isinstance(content, dict):
        raise ValueError("it does not hold a JSON object")
    growth = {name: _checked_growth(name, content.get(name)) for name in ("normalizer", "pre_tokenizer", "decoder")}
    _checked_growth("post_processor", content.get("post_processor"))
    if isinstance(content.get("model"), dict):
        _check_model(content["model"])
    if isinstance(content.get("added_tokens"), list):
        contents = [token.get("content") for token in content["added_tokens"] if isinstance(token, dict)]
        check_added_tokens([text for text in contents if isinstance(text, str)], growth["normalizer"])
    return growth["normalizer"]


def _checked_growth(name: str, root: Any) -> int:
    """Check the steps of a normalizer, or another part; return the most characters that they make from one."""
    growth, steps, waiting = 1, 0, [] if root is None else [root]
    while waiting:
        step = waiting.pop()
        steps += 1
        if not isinstance(step, dict) or not isinstance(step.get("type"), str):
            raise ValueError(f"its {name} has {brief(step)}; expected an object with a type")
        nested = [step.get(key) for key in ("normalizers", "pretokenizers", "processors", "decoders")]
        waiting += [inner for items in nested if isinstance(items, list) for inner in items[: MOST_STEPS + 1]]
        if steps + len(waiting) > MOST_STEPS:
            raise ValueError(f"its {name} has more than {MOST_STEPS} steps")
        growth *= _growth_of(step)
        if growth > MOST_GROWTH:
            raise ValueError(f"its {name} can make a text more than {MOST_GROWTH} times as long")
        if name == "post_processor":
            _check_template(step)
    return growth


def _growth_of(step: dict[str, Any]) -> int:
    """Return the most characters that a step makes from one; a regular expression may match the empty string."""
    pattern = step.get("pattern")
    text = pattern.get("String", pattern.get("Regex")) if isinstance(pattern, dict) else pattern
    if isinstance(text, str) and len(text) > LONGEST_PATTERN:
        raise ValueError(f"a pattern has {len(text)} characters, more than {LONGEST_PATTERN}")
    content = step.get("content")
    if isinstance(text, str) and isinstance(content, str):
        is_literal = isinstance(pattern, dict) and "Regex" not in pattern and text
        return max(1, math.ceil(len(content) / len(text))) if is_literal else 1 + len(content)
    if isinstance(step.get("prepend"), str):
        return 1 + len(step["prepend"])
    if isinstance(step.get("precompiled_charsmap"), str):
        return _growth_of_charsmap(step["precompiled_charsmap"])
    return GROWTH.get(step["type"], 2)


def _growth_of_charsmap(encoded: str) -> int:
    """Return the length of the longest text in SentencePiece's table.

    The table holds the size of a trie, the trie, and texts that end with a zero byte.
    """
    table = base64.b64decode(encoded, validate=True)
    size = int.from_bytes(table[:4], "little")
    if len(table) < 4 or size > len(table) - 4:
        raise ValueError(f"its precompiled_charsmap has {len(table)} bytes, and should hold a trie of {size}")
    return max(1, *(len(text.decode(errors="replace")) for text in table[4 + size :].split(b"\0")))


def _check_template(step: dict[str, Any]) -> None:
    """Refuse a template with more than 16 pieces, or a token with more ids; no layout of two texts needs more."""
    tokens = step.get("special_tokens")
    described = [token for token in tokens.values() if isinstance(token, dict)] if isinstance(tokens, dict) else []
    lists = [
        step.get("single"),
        step.get("pair"),
        *(token.get(key) for token in described for key in ("ids", "tokens")),
    ]
    longest = max((len(items) for items in lists if isinstance(items, list | str)), default=0)
    if longest > MOST_STEPS:
        raise ValueError(f"its post_processor has a list of {longest} pieces or ids; at most {MOST_STEPS} are allowed")


def _check_model(model: dict[str, Any]) -> None:
    """Refuse tokens and words that are too long, and pieces that are too large for the library's trie."""
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        if isinstance(model.get(name), str) and len(model[name]) > MOST_STEPS:
            raise ValueError(f"its {name} has {len(model[name])} characters; at most {MOST_STEPS} are allowed")
    longest = model.get("max_input_chars_per_word")
    if isinstance(longest, int) and longest > LONGEST_TOKEN:
        raise ValueError(f"its max_input_chars_per_word is {longest}; at most {LONGEST_TOKEN} are allowed")
    vocab = model.get("vocab")
    if isinstance(vocab, dict):
        _check_lengths(vocab)
    elif isinstance(vocab, list):
        pieces = [entry[0] for entry in vocab if isinstance(entry, list) and entry and isinstance(entry[0], str)]
        _check_lengths(pieces)
        size = len("".join(pieces).encode(errors="replace"))
        if size > MOST_PIECE_BYTES:
            raise ValueError(f"the pieces of its vocabulary have {size} bytes, more than {MOST_PIECE_BYTES}")


def check_added_tokens(contents: list[str], growth: int) -> None:
    """Refuse added tokens if their table could be too large after the normalizer has made them longer."""
    _check_lengths(contents)
    size = growth * sum(map(len, contents))
    if size > MOST_ADDED_CHARACTERS:
        raise ValueError(f"the added tokens may have {size} characters, more than {MOST_ADDED_CHARACTERS}")


def _check_lengths(tokens: Iterable[str]) -> None:
    longest = max(map(len, tokens), default=0)
    if longest > LONGEST_TOKEN:
        raise ValueError(f"it has a token of {longest} characters, more than {LONGEST_TOKEN}")
