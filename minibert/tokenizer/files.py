"""Read, check and write a tokenizer: the settings and tokens that its files add to the vocabulary."""

from __future__ import annotations

import dataclasses
import operator
import os
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minibert._utils.files import make_folder, write_json, write_whole
from minibert._utils.keywords import SAVING_KEYWORDS, check_keywords
from minibert._utils.reporting import warn_caller
from minibert._utils.validation import brief
from minibert.bert.families import FAMILIES
from minibert.checkpoint.files import ModelFiles
from minibert.errors import ModelFormatError
from minibert.tokenizer.library_files import check_lengths, library_errors, read_library_tokenizer, token_content
from minibert.tokenizer.transformers_classes import (
    GENERIC,
    INPUT_NAMES,
    SPECIAL_TOKEN_NAMES,
    TokenizerClass,
    class_of,
    make_layout,
    make_parts,
)

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer


SIDES = ("right", "left")
_FLAGS = ("lstrip", "normalized", "rstrip", "single_word", "special")  # of a token

# transformers writes larger values of model_max_length, such as 1e30, for "not known".
_LARGEST_MODEL_MAX_LENGTH = 10**9

_BERT_TYPE_VOCAB_SIZE = 2  # if config.json does not say it
_LARGEST_TYPE_VOCAB_SIZE = 2**31 - 1  # types are computed as 32-bit integers

EXTRA_NAMES = ("extra_special_tokens", "additional_special_tokens")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadedTokenizer:
    """The library's tokenizer, without truncation and padding, and the settings that transformers adds to it.

    Parameters
    ----------
    tokenizer : tokenizers.Tokenizer
    vocab : dict of str to int                  in the order of the ids
    special_tokens : dict of str to str         by name, such as "cls_token"
    extra_special_tokens : sequence of str
    model_max_length : int or None
    padding_side, truncation_side : {"right", "left"}
    clean_up_tokenization_spaces : bool
    kind : TokenizerClass                       what the class of transformers says
    settings : dict of str to bool or None      of the class, by their names in tokenizer_config.json
    model_input_names : sequence of str         the names that a call returns unless it says otherwise
    source : str                                where the files are, in words
    """

    tokenizer: Tokenizer
    vocab: dict[str, int]
    special_tokens: dict[str, str]
    extra_special_tokens: Sequence[str] = ()
    model_max_length: int | None = None
    padding_side: str = "right"
    truncation_side: str = "right"
    clean_up_tokenization_spaces: bool = False
    kind: TokenizerClass = GENERIC
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    model_input_names: Sequence[str] = INPUT_NAMES
    source: str


def load_tokenizer(files: ModelFiles, changed: Mapping[str, Any] | None = None, called: str = "") -> LoadedTokenizer:
    """Read the vocabulary and the settings; see BertTokenizer.from_pretrained for rules and errors.

    Parameters
    ----------
    files : ModelFiles
    changed : mapping of str, optional
        Settings that are used instead of those in tokenizer_config.json.
    called : str
        The class, if the files name neither it nor the type of the model. "" is the one that tokenizer.json describes,
        and BERT's if there is none.
    """
    config = files.settings("config.json")
    settings = {**_read_settings(files, config), **(changed or {})}
    called = called or ("" if files.find("tokenizer.json") else "BertTokenizer")
    kind = class_of(settings, config.get("model_type"), called)
    path, tokenizer, vocab, stored = read_library_tokenizer(files, kind, settings)
    settings = stored | settings
    if type(tokenizer.model).__name__ != kind.model:  # the files may contradict each other
        kind = GENERIC
    stated, of_file = kind.stated(settings), _normalized(tokenizer)
    tokenizer.encode_special_tokens = settings.get("split_special_tokens") is True
    with library_errors(ModelFormatError, f"{path} does not work"):
        if kind.model == "WordPiece":  # a damaged file is refused, although the class replaces its parts
            _check_special_tokens(tokenizer, path, config)
        special_tokens = _special_tokens(tokenizer, settings, kind)
        named = {name: token.content for name, token in special_tokens.items()}
        if kind is not GENERIC:
            make_parts(kind, tokenizer, stated, named.get("unk_token"))
        extra = _extra_special_tokens(tokenizer, settings, kind)
        _add_tokens(tokenizer, _declared_tokens(files, settings), [*special_tokens.values(), *extra])
        if kind is not GENERIC:
            make_layout(kind, tokenizer, named, stated)
        vocab = checked_vocab(tokenizer, vocab, path, config)
        _check_special_tokens(tokenizer, path, config)
    if "do_lower_case" not in settings:
        if path.name == "tokenizer.json" and _normalized(tokenizer) != of_file:
            _warn_of_normalizer(path, kind)
        if stated.get("do_lower_case"):
            _warn_of_capitals(files, path, vocab)
    return LoadedTokenizer(
        tokenizer=tokenizer,
        vocab=vocab,
        special_tokens=named,
        extra_special_tokens=[token.content for token in extra],
        model_max_length=_model_max_length(settings, config),
        padding_side=_checked_side(settings, "padding_side"),
        truncation_side=_checked_side(settings, "truncation_side"),
        clean_up_tokenization_spaces=bool(settings.get("clean_up_tokenization_spaces", False)),
        kind=kind,
        settings=stated,
        model_input_names=_input_names(settings, kind, config),
        source=files.source,
    )


def _read_settings(files: ModelFiles, config: dict[str, Any]) -> dict[str, Any]:
    settings = files.settings("tokenizer_config.json")
    if "added_tokens_decoder" not in settings:
        # transformers wrote this file before it had added_tokens_decoder.
        settings = settings | files.settings("special_tokens_map.json")
    settings.setdefault("tokenizer_class", config.get("tokenizer_class"))
    return settings


def _warn_of_normalizer(path: Path, kind: TokenizerClass) -> None:
    warn_caller(
        f"{path}: {kind.name} replaces the normalizer of this file, as in transformers 5. If the model was trained "
        "with the file as it is, write the tokenizer_class PreTrainedTokenizerFast into tokenizer_config.json."
    )


def _warn_of_capitals(files: ModelFiles, path: Path, vocab: dict[str, int]) -> None:
    """Warn if texts are lower-cased by default, and Google's vocabulary has capital letters."""
    config = files.find("config.json")
    of_google = config is not None and config.name == "bert_config.json"
    if of_google and any(re.match("(##)?[A-Z]", word) for word in vocab):
        warn_caller(
            f"{path} has words with capital letters, and no file says do_lower_case: texts are lower-cased. For a "
            'cased model write {"do_lower_case": false} into tokenizer_config.json beside it.'
        )


def _input_names(settings: dict[str, Any], kind: TokenizerClass, config: dict[str, Any]) -> list[str]:
    """Return the names that a call returns: those of the settings, else those that the class or the family has."""
    has_types = kind.has_token_types
    if kind is GENERIC:
        family = FAMILIES.get(str(config.get("model_type")), FAMILIES["bert"])
        has_types = family.has_token_types and class_of({}, config.get("model_type")).has_token_types
    names = settings.get("model_input_names") or [name for name in INPUT_NAMES if has_types or "type" not in name]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ModelFormatError(f"tokenizer_config.json has model_input_names {brief(names)}, not a list of str.")
    return names


def _normalized(tokenizer: Tokenizer, text: str = "Á①中") -> str:
    """Normalize a text with a case, an accent, a compatible character and a Chinese one, to compare normalizers."""
    return str(tokenizer.normalizer.normalize_str(text)) if tokenizer.normalizer else text


def _special_tokens(tokenizer: Tokenizer, settings: dict[str, Any], kind: TokenizerClass) -> dict[str, AddedToken]:
    """Return the special tokens by name: those of the files, and those of the class that the vocabulary has."""
    special_tokens = {}
    for name in SPECIAL_TOKEN_NAMES:
        entry = settings.get(name)
        default = kind.special_tokens.get(name)
        if entry is None and default is not None and tokenizer.token_to_id(default) is not None:
            entry = default
        if isinstance(entry, str) and name == "mask_token" and kind.mask_takes_space:
            entry = {"content": entry, "lstrip": True}
        if entry is not None:
            special_tokens[name] = _added_token(entry, name, special=True)
    return special_tokens


def _extra_special_tokens(tokenizer: Tokenizer, settings: dict[str, Any], kind: TokenizerClass) -> list[AddedToken]:
    """Return the special tokens without a name that the files name; else those of the class in the vocabulary."""
    known = [token for token in kind.extra_special_tokens if tokenizer.token_to_id(token) is not None]
    name = "extra_special_tokens" if settings.get("extra_special_tokens") else "additional_special_tokens"
    entries = settings.get(name) or known
    if isinstance(entries, dict):
        entries = list(entries.values())
    if not isinstance(entries, list):
        raise ModelFormatError(f"tokenizer_config.json has {name} {brief(entries)}; expected a list of tokens.")
    # transformers takes a token from each other name with this end, too, such as "image_token".
    named = {key: entry for key, entry in settings.items() if key.endswith("_token") and key not in SPECIAL_TOKEN_NAMES}
    named |= settings.get("model_specific_special_tokens") or {}
    more = [
        entry for entry in named.values() if isinstance(entry, str) or (isinstance(entry, dict) and "__type" in entry)
    ]
    return [_added_token(entry, name, special=True) for entry in (*entries, *more)]


def _declared_tokens(files: ModelFiles, settings: dict[str, Any]) -> dict[int, AddedToken]:
    """Return the added tokens by id, from tokenizer_config.json or the older added_tokens.json."""
    if "added_tokens_decoder" in settings:
        where = "tokenizer_config.json: added_tokens_decoder"
        if not isinstance(settings["added_tokens_decoder"], dict):
            raise ModelFormatError(f"{where} is {brief(settings['added_tokens_decoder'])}; expected an object.")
        pairs = [(key, _added_token(entry, where)) for key, entry in settings["added_tokens_decoder"].items()]
    else:
        where = "added_tokens.json"
        pairs = [(key, _added_token(token, where)) for token, key in files.settings(where).items()]
    if not all(re.fullmatch("[0-9]{1,9}", str(key)) for key, _ in pairs):
        raise ModelFormatError(f"{where} has {brief([key for key, _ in pairs])} for ids; expected integers.")
    return {int(key): token for key, token in sorted(pairs, key=lambda pair: int(pair[0]))}


def _added_token(entry: object, where: str, special: bool = False) -> AddedToken:
    """Make one token, with its flags, from its JSON."""
    from tokenizers import AddedToken

    flags = {"special": special}
    if isinstance(entry, dict):
        flags = {name: entry[name] for name in _FLAGS if name in entry} | ({"special": True} if special else {})
    with library_errors(ModelFormatError, f"{where} has {brief(entry)} for a token"):
        return AddedToken(token_content(entry, where), **flags)


def _add_tokens(tokenizer: Tokenizer, declared: dict[int, AddedToken], special_tokens: list[AddedToken]) -> None:
    """Add tokens that the vocabulary lacks and mark those that it has, so that no text is split inside a token."""
    check_lengths(token.content for token in (*declared.values(), *special_tokens))
    special = {token.content for token in special_tokens}
    for token in declared.values():
        token.special = token.special or token.content in special
    tokenizer.add_tokens(list(declared.values()))  # one call, because each call builds the library's table again
    for token_id, token in declared.items():
        known_id = tokenizer.token_to_id(token.content)
        if known_id != token_id:
            raise ModelFormatError(f"{token.content!r} is declared to have id {token_id}, its id is {known_id}.")
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    tokenizer.add_tokens([token for token in special_tokens if token.content not in known])


def add_special_token(tokenizer: Tokenizer, token: str) -> None:
    """Make a token of the vocabulary a special one, which the library finds in a text before it changes the text."""
    from tokenizers import AddedToken

    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True)])


def checked_vocab(tokenizer: Tokenizer, vocab: dict[str, int], path: Path, config: dict[str, Any]) -> dict[str, int]:
    """Return the vocabulary, with added tokens, in the order of its ids.

    Each id must be used once, and must be a row of the model's word embeddings.
    """
    added = {token.content: token_id for token_id, token in tokenizer.get_added_tokens_decoder().items()}
    vocab = vocab | added
    if [*vocab.values()] != sorted(vocab.values()):  # the library writes them in order
        vocab = dict(sorted(vocab.items(), key=operator.itemgetter(1)))
    if not vocab:
        raise ModelFormatError(f"{path} does not hold any token.")
    token, largest = next(reversed(vocab.items()))
    vocab_size = config.get("vocab_size")
    if isinstance(vocab_size, int) and largest >= vocab_size:
        raise ModelFormatError(
            f"{path} gives token {token!r} the id {largest}, but config.json has vocab_size {vocab_size}. "
            "Use the tokenizer files of this model."
        )
    if len(set(vocab.values())) < len(vocab):
        first, second = next(pair for pair in pairwise(vocab) if vocab[pair[0]] == vocab[pair[1]])
        raise ModelFormatError(f"{path} gives the id {vocab[first]} to two tokens, {first!r} and {second!r}.")
    return vocab


def _check_special_tokens(tokenizer: Tokenizer, path: Path, config: dict[str, Any]) -> None:
    """Try the tokenizer on a text and a pair.

    The tokens that it adds must be in the vocabulary, and the model must have their types. A pair may have types that
    the model lacks, because a model of one type refuses pairs when it computes them.
    """
    type_vocab_size = config.get("type_vocab_size", _BERT_TYPE_VOCAB_SIZE)
    if not isinstance(type_vocab_size, int):
        type_vocab_size = _BERT_TYPE_VOCAB_SIZE  # the model's own check names the wrong value
    unk_token = getattr(tokenizer.model, "unk_token", None)
    if unk_token is not None and tokenizer.token_to_id(unk_token) is None:
        raise ModelFormatError(f"{path} names {unk_token!r} for unknown words, but its vocabulary does not have it.")
    for pair in (None, "a"):
        encoding = tokenizer.encode("a", pair)
        num_special = tokenizer.num_special_tokens_to_add(pair is not None)
        tokens, ids, sequences = encoding.tokens, encoding.ids, encoding.sequence_ids
        texts, num_types = ({0}, max(1, type_vocab_size)) if pair is None else ({0, 1}, _LARGEST_TYPE_VOCAB_SIZE)
        if len(tokens) != len(ids) or sequences.count(None) != num_special or not texts <= set(sequences):
            raise ModelFormatError(f"{path} does not lay out {len(texts)} texts and {num_special} special tokens.")
        token_type = max(encoding.type_ids, default=0)
        if token_type >= num_types:
            raise ModelFormatError(
                f"{path} gives {len(texts)} texts the token type {token_type}; the model has {num_types} types "
                "(type_vocab_size in config.json). Use the tokenizer files of this model."
            )
        for token, token_id, sequence in zip(tokens, ids, sequences, strict=True):
            if sequence is None and (known_id := tokenizer.token_to_id(token)) != token_id:
                raise ModelFormatError(f"{path} adds {token!r} with id {token_id}; the vocabulary has {known_id}.")


def _model_max_length(settings: dict[str, Any], config: dict[str, Any]) -> int | None:
    """Return the smaller of the two limits that the files may give; None if they give neither."""
    positions, family = config.get("max_position_embeddings"), FAMILIES.get(str(config.get("model_type")))
    if family is not None and family.counts_tokens and type(positions) is int:
        positions -= 1 + (padding if type(padding := config.get("pad_token_id", 1)) is int else 1)
    limits = (settings.get("model_max_length", settings.get("max_len")), positions)
    sane = [limit for limit in limits if type(limit) is int and 0 < limit < _LARGEST_MODEL_MAX_LENGTH]
    return min(sane, default=None)


def _checked_side(settings: dict[str, Any], name: str) -> str:
    side = settings.get(name, "right")
    if side not in SIDES:
        raise ModelFormatError(f"tokenizer_config.json has {name} {side!r}; expected 'right' or 'left'.")
    return str(side)


# --- the files that are written ---------------------------------------------------------------------------------------


def save_tokenizer(
    loaded: LoadedTokenizer, settings: Mapping[str, Any], folder: str | os.PathLike[str], keywords: Mapping[str, Any]
) -> tuple[str, ...]:
    """Write the files of a tokenizer into a folder, and return their paths.

    Parameters
    ----------
    loaded : LoadedTokenizer
    settings : mapping of str
        Fields of tokenizer_config.json.
    folder : str or path
        Made if it does not exist.
    keywords : mapping of str
        The keywords that the caller itself does not have.
    """
    check_keywords("BertTokenizer.save_pretrained", keywords, SAVING_KEYWORDS)
    path = make_folder(folder)
    library = loaded.tokenizer
    # With added_tokens_decoder nobody reads added_tokens.json and special_tokens_map.json, perhaps another model's.
    added = {
        str(token_id): {name: getattr(token, name) for name in ("content", *_FLAGS)}
        for token_id, token in sorted(library.get_added_tokens_decoder().items())
    }
    contents = {"tokenizer.json": library.to_str(pretty=True), "vocab.txt": _vocab_lines(library)}
    written = {os.path.join(path, name): content.encode() for name, content in contents.items() if content}
    for name, content in written.items():
        write_whole(name, operator.methodcaller("write", content))
    class_name = loaded.kind.name or "PreTrainedTokenizerFast"
    config = os.path.join(path, "tokenizer_config.json")
    write_json(config, {"tokenizer_class": class_name, **settings, "added_tokens_decoder": added})
    return *written, config


def _vocab_lines(library: Tokenizer) -> str:
    """Return the lines of vocab.txt; "" if the vocabulary cannot be written as lines in the order of the ids."""
    vocab = library.get_vocab(with_added_tokens=False)
    tokens = sorted(vocab, key=vocab.__getitem__)
    numbered = [vocab[token] for token in tokens] == list(range(len(tokens)))
    lines = all(token == token.strip() and "\n" not in token for token in tokens)
    is_wordpiece = type(library.model).__name__ in ("WordPiece", "WordLevel")
    return "".join(f"{token}\n" for token in tokens) if is_wordpiece and numbered and lines else ""
