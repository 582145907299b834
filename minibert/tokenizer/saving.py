"""A tokenizer -> a folder that minibert and transformers load: tokenizer.json, tokenizer_config.json, vocab.txt."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from minibert._utils.files import make_folder, write_json, write_whole
from minibert._utils.keywords import SAVING_KEYWORDS, check_keywords
from minibert.tokenizer.files import GENERIC_TOKENIZER_CLASSES, is_wordpiece
from minibert.tokenizer.vocabulary import Vocabulary

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

__all__ = ["save_tokenizer"]


def save_tokenizer(
    tokenizer: Vocabulary,
    folder: str | os.PathLike[str],
    settings: Mapping[str, Any],
    keywords: Mapping[str, Any],
    templates: Mapping[str, str],
) -> tuple[str, ...]:
    """Write the files of a tokenizer into a folder, and return their paths.

    Parameters
    ----------
    tokenizer : Vocabulary
    folder : str or path
        Made if it does not exist.
    settings : mapping of str
        Fields of tokenizer_config.json.
    keywords : mapping of str
        The keywords that the caller itself does not have.
    templates : mapping of str to str
        Files of chat templates: path below the folder -> content.
    """
    check_keywords("BertTokenizer.save_pretrained", keywords, SAVING_KEYWORDS)
    path = make_folder(folder)
    library = tokenizer.backend_tokenizer
    content = library.to_str(pretty=True).encode()
    lines = _vocab_lines(library)
    # With added_tokens_decoder nobody reads added_tokens.json and special_tokens_map.json, perhaps another model's.
    added = {str(token_id): _fields(token) for token_id, token in tokenizer.added_tokens_decoder.items()}
    config = {"tokenizer_class": _class_name(tokenizer), **settings, "added_tokens_decoder": added}
    names = ["tokenizer.json", *(["vocab.txt"] if lines else ()), "tokenizer_config.json"]
    files = [os.path.join(path, name) for name in names]
    write_whole(files[0], lambda file: file.write(content))
    if lines:
        write_whole(files[1], lambda file: file.write(lines.encode()))
    write_json(files[-1], config)
    for name, text in templates.items():
        make_folder(os.path.dirname(os.path.join(path, name)))
        files.append(os.path.join(path, name))
        write_whole(files[-1], lambda file, text=text: file.write(text.encode()))  # type: ignore[misc]
    return tuple(files)


def _class_name(tokenizer: Vocabulary) -> str:
    """Return the class that transformers loads the files with."""
    stored = tokenizer._loaded.tokenizer_class
    if stored is not None and (stored in GENERIC_TOKENIZER_CLASSES or not stored.startswith("Bert")):
        return stored
    return "BertTokenizer" if is_wordpiece(tokenizer._tokenizer) else GENERIC_TOKENIZER_CLASSES[0]


def _vocab_lines(library: Tokenizer) -> str:
    """Return the lines of vocab.txt; "" if the vocabulary cannot be written as lines in the order of the ids."""
    vocab = library.get_vocab(with_added_tokens=False)
    tokens = sorted(vocab, key=vocab.__getitem__)
    numbered = [vocab[token] for token in tokens] == list(range(len(tokens)))
    if not is_wordpiece(library) or not numbered or any(token != token.strip() or "\n" in token for token in tokens):
        return ""
    return "".join(f"{token}\n" for token in tokens)


def _fields(token: AddedToken) -> dict[str, Any]:
    names = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
    return {name: getattr(token, name) for name in names}
