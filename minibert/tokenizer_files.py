"""The files of a tokenizer -> the library's tokenizer, set up once and checked. The only import of `tokenizers`."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import reprlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minibert.errors import ModelFormatError
from minibert.files import read_json_object
from minibert.hub import ModelFiles

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

__all__ = ["SIDES", "LoadedTokenizer", "is_library_error", "library_errors", "load_tokenizer"]

SIDES = ("right", "left")

BERT_SPECIAL_TOKENS = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", *BERT_SPECIAL_TOKENS)
# The values of tokenizer_class with which transformers takes tokenizer.json as it stands.
GENERIC_TOKENIZER_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")
# Larger values of model_max_length, such as 1e30, are transformers' way to write "not known".
LARGEST_MODEL_MAX_LENGTH = 10**9


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadedTokenizer:
    """What the files say: the library's tokenizer, neither cutting nor padding, and what transformers keeps beside it.

    Parameters
    ----------
    tokenizer : tokenizers.Tokenizer
    vocab : dict of str to int                  in the order of the ids
    special_tokens : dict of str to str         by name, such as "cls_token"
    extra_special_tokens : sequence of str
    model_max_length : int or None
    padding_side, truncation_side : {"right", "left"}
    clean_up_tokenization_spaces : bool
    """

    tokenizer: Tokenizer
    vocab: dict[str, int]
    special_tokens: dict[str, str]
    extra_special_tokens: Sequence[str]
    model_max_length: int | None
    padding_side: str
    truncation_side: str
    clean_up_tokenization_spaces: bool


def load_tokenizer(files: ModelFiles) -> LoadedTokenizer:
    """Read tokenizer.json or vocab.txt with the settings beside it; rules and errors: BertTokenizer.from_pretrained."""
    config = _find_json(files, "config.json")
    settings = _find_json(files, "tokenizer_config.json")
    if "added_tokens_decoder" not in settings:
        # What transformers wrote before it had added_tokens_decoder.
        settings = settings | _find_json(files, "special_tokens_map.json")
    settings.setdefault("tokenizer_class", config.get("tokenizer_class"))

    path = files.find("tokenizer.json") or files.find("vocab.txt")
    if path is None:
        raise ModelFormatError(f"{files.source} has neither tokenizer.json nor vocab.txt, one of which must be there")
    if path.suffix == ".json":
        tokenizer, stored = _read_tokenizer_json(path, settings)
        settings = stored | settings
    else:
        tokenizer = _read_vocab_txt(path, settings)
    with library_errors(ModelFormatError, f"{path} does not work"):
        special_tokens = _special_tokens(tokenizer, settings)
        extra_special_tokens = _extra_special_tokens(settings)
        _add_tokens(tokenizer, _declared_tokens(files, settings), [*special_tokens.values(), *extra_special_tokens])
        _complete_bert(tokenizer, path, special_tokens)
        vocab = _checked_vocab(tokenizer, path, config)
        _check_special_tokens(tokenizer, path, vocab)
    return LoadedTokenizer(
        tokenizer=tokenizer,
        vocab=vocab,
        special_tokens={name: token.content for name, token in special_tokens.items()},
        extra_special_tokens=[token.content for token in extra_special_tokens],
        model_max_length=_model_max_length(settings, config),
        padding_side=_checked_side(settings, "padding_side"),
        truncation_side=_checked_side(settings, "truncation_side"),
        clean_up_tokenization_spaces=bool(settings.get("clean_up_tokenization_spaces", False)),
    )


def _find_json(files: ModelFiles, filename: str) -> dict[str, Any]:
    path = files.find(filename)
    return {} if path is None else read_json_object(path)


def _read_tokenizer_json(path: Path, settings: dict[str, Any]) -> tuple[Tokenizer, dict[str, Any]]:
    """Read a tokenizer.json, without the truncation and padding in it; what transformers takes from those, apart."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.normalizers import BertNormalizer

    with library_errors(ModelFormatError, f"{path} is not a tokenizer that can be read"):
        tokenizer = Tokenizer.from_file(str(path))
        truncation, padding = tokenizer.truncation or {}, tokenizer.padding or {}
        tokenizer.no_truncation()
        tokenizer.no_padding()
        normalizer = tokenizer.normalizer
        if (
            isinstance(tokenizer.model, WordPiece)
            and isinstance(normalizer, BertNormalizer)
            and settings["tokenizer_class"] not in GENERIC_TOKENIZER_CLASSES
        ):
            tokenizer.normalizer = BertNormalizer(clean_text=normalizer.clean_text, **_normalizer_settings(settings))
        stored = {"truncation_side": truncation.get("direction"), "padding_side": padding.get("direction")}
        if tokenizer.token_to_id(padding.get("pad_token", "")) is not None:
            stored["pad_token"] = padding["pad_token"]
    return tokenizer, {name: value for name, value in stored.items() if value is not None}


def _read_vocab_txt(path: Path, settings: dict[str, Any]) -> Tokenizer:
    """Make a BERT tokenizer of a vocab.txt, which lists one token per line in the order of the ids."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import BertPreTokenizer

    with library_errors(ModelFormatError, f"{path} is not a vocabulary that can be read"):
        vocab = WordPiece.read_file(str(path))
    tokens = {name: _token_content(settings.get(name) or token, name) for name, token in BERT_SPECIAL_TOKENS.items()}
    for name, token in tokens.items():
        if token not in vocab and name != "mask_token":
            raise ModelFormatError(f"{path} ({len(vocab)} tokens) lacks {token!r}, the {name}; is it BERT's vocab.txt?")
    tokenizer = Tokenizer(WordPiece(vocab, unk_token=tokens["unk_token"]))
    tokenizer.normalizer = BertNormalizer(clean_text=True, **_normalizer_settings(settings))
    tokenizer.pre_tokenizer = BertPreTokenizer()
    return tokenizer


def _normalizer_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """What tokenizer_config.json says about BERT's normalizer, with transformers' defaults."""
    lowercase = settings.get("do_lower_case", True)
    strip_accents = settings.get("strip_accents")
    handle_chinese_chars = settings.get("tokenize_chinese_chars", True)
    for name, value in ("do_lower_case", lowercase), ("tokenize_chinese_chars", handle_chinese_chars):
        if not isinstance(value, bool):
            raise ModelFormatError(f"tokenizer_config.json has {name} {value!r}; expected true or false")
    if not isinstance(strip_accents, bool | None):
        raise ModelFormatError(
            f"tokenizer_config.json has strip_accents {strip_accents!r}; expected true, false or null"
        )
    return {"lowercase": lowercase, "strip_accents": strip_accents, "handle_chinese_chars": handle_chinese_chars}


def _special_tokens(tokenizer: Tokenizer, settings: dict[str, Any]) -> dict[str, AddedToken]:
    """The special tokens by name: those that the files name, and BERT's where a WordPiece vocabulary has them."""
    from tokenizers.models import WordPiece

    special_tokens = {}
    for name in SPECIAL_TOKEN_NAMES:
        entry = settings.get(name)
        default = BERT_SPECIAL_TOKENS.get(name)
        if entry is None and default is not None and isinstance(tokenizer.model, WordPiece):
            entry = default if tokenizer.token_to_id(default) is not None else None
        if entry is not None:
            special_tokens[name] = _added_token(entry, name, special=True)
    return special_tokens


def _extra_special_tokens(settings: dict[str, Any]) -> list[AddedToken]:
    name = "extra_special_tokens" if settings.get("extra_special_tokens") else "additional_special_tokens"
    entries = settings.get(name) or []
    if isinstance(entries, dict):
        entries = list(entries.values())
    if not isinstance(entries, list):
        raise ModelFormatError(f"tokenizer_config.json has {name} {reprlib.repr(entries)}; expected a list of tokens")
    return [_added_token(entry, name, special=True) for entry in entries]


def _declared_tokens(files: ModelFiles, settings: dict[str, Any]) -> dict[int, AddedToken]:
    """Added tokens with the ids that tokenizer_config.json, or the older added_tokens.json, gives them."""
    if "added_tokens_decoder" in settings:
        where = "tokenizer_config.json: added_tokens_decoder"
        if not isinstance(settings["added_tokens_decoder"], dict):
            raise ModelFormatError(f"{where} is {reprlib.repr(settings['added_tokens_decoder'])}; expected an object")
        pairs = [(key, _added_token(entry, where)) for key, entry in settings["added_tokens_decoder"].items()]
    else:
        where = "added_tokens.json"
        pairs = [(key, _added_token(token, where)) for token, key in _find_json(files, where).items()]
    if not all(re.fullmatch("[0-9]{1,9}", str(key)) for key, _ in pairs):
        raise ModelFormatError(f"{where} has {reprlib.repr([key for key, _ in pairs])} for ids; expected integers")
    return {int(key): token for key, token in sorted(pairs, key=lambda pair: int(pair[0]))}


def _token_content(entry: object, where: str) -> str:
    """The text of a token as JSON has it: a string, or an object with "content"."""
    content = entry.get("content") if isinstance(entry, dict) else entry
    if isinstance(content, str):
        return content
    raise ModelFormatError(f"{where} is {reprlib.repr(entry)}; expected a token")


def _added_token(entry: object, where: str, special: bool = False) -> AddedToken:
    """One token as JSON has it, with its flags."""
    from tokenizers import AddedToken

    flags = {"special": special}
    if isinstance(entry, dict):
        names = ("single_word", "lstrip", "rstrip", "normalized", "special")
        flags = {name: entry[name] for name in names if name in entry} | ({"special": True} if special else {})
    with library_errors(ModelFormatError, f"{where} has {reprlib.repr(entry)} for a token"):
        return AddedToken(_token_content(entry, where), **flags)


def _add_tokens(tokenizer: Tokenizer, declared: dict[int, AddedToken], special_tokens: list[AddedToken]) -> None:
    """Add the tokens that the vocabulary lacks, and mark those that it has, so that no text is split inside one."""
    special = {token.content for token in special_tokens}
    for token_id, token in declared.items():
        token.special = token.special or token.content in special
        tokenizer.add_tokens([token])
        found = tokenizer.token_to_id(token.content)
        if found != token_id:
            raise ModelFormatError(
                f"added token {token.content!r} is declared to have id {token_id}, its id is {found}"
            )
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    tokenizer.add_tokens([token for token in special_tokens if token.content not in known])


def _complete_bert(tokenizer: Tokenizer, path: Path, special_tokens: dict[str, AddedToken]) -> None:
    """Give a WordPiece tokenizer BERT's layout [CLS] A [SEP] B [SEP] and its decoder, unless its file gives others."""
    from tokenizers.decoders import WordPiece as WordPieceDecoder
    from tokenizers.models import WordPiece
    from tokenizers.processors import TemplateProcessing

    if not isinstance(tokenizer.model, WordPiece):
        return
    if tokenizer.decoder is None:
        tokenizer.decoder = WordPieceDecoder(prefix="##")
    if tokenizer.post_processor is None:
        missing = [name for name in ("cls_token", "sep_token") if name not in special_tokens]
        if missing:
            raise ModelFormatError(f"{path} has no post_processor, and there is no {' and no '.join(missing)}")
        cls, sep = special_tokens["cls_token"].content, special_tokens["sep_token"].content
        tokenizer.post_processor = TemplateProcessing(
            single=[f"{cls}:0", "$A:0", f"{sep}:0"],
            pair=[f"{cls}:0", "$A:0", f"{sep}:0", "$B:1", f"{sep}:1"],
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in (cls, sep)],
        )


def _checked_vocab(tokenizer: Tokenizer, path: Path, config: dict[str, Any]) -> dict[str, int]:
    """The vocabulary in the order of its ids: each used once, all of them rows of the model's word embeddings."""
    vocab = dict(sorted(tokenizer.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1]))
    if not vocab:
        raise ModelFormatError(f"{path} holds no tokens")
    token, largest = next(reversed(vocab.items()))
    vocab_size = config.get("vocab_size")
    if isinstance(vocab_size, int) and largest >= vocab_size:
        raise ModelFormatError(
            f"{path} gives token {token!r} the id {largest}, but config.json has vocab_size {vocab_size}; "
            "do the tokenizer and the model belong together?"
        )
    tokens: dict[int, str] = {}
    for token, token_id in vocab.items():
        if tokens.setdefault(token_id, token) != token:
            raise ModelFormatError(f"{path} gives the id {token_id} to two tokens, {tokens[token_id]!r} and {token!r}")
    return vocab


def _check_special_tokens(tokenizer: Tokenizer, path: Path, vocab: dict[str, int]) -> None:
    """Try the tokenizer on a text and a pair, and see that the tokens it adds are those of the vocabulary."""
    unk_token = getattr(tokenizer.model, "unk_token", None)
    if unk_token is not None and unk_token not in vocab:
        raise ModelFormatError(f"{path} names {unk_token!r} for unknown words, which is not in its vocabulary")
    for pair in (None, "a"):
        encoding = tokenizer.encode("a", pair)
        num_special = tokenizer.num_special_tokens_to_add(pair is not None)
        tokens, ids, sequences = encoding.tokens, encoding.ids, encoding.sequence_ids
        texts = {0} if pair is None else {0, 1}
        if len(tokens) != len(ids) or sequences.count(None) != num_special or not texts <= set(sequences):
            raise ModelFormatError(f"{path} does not lay out {len(texts)} texts and {num_special} special tokens")
        for token, token_id, sequence in zip(tokens, ids, sequences, strict=True):
            if sequence is None and vocab.get(token) != token_id:
                raise ModelFormatError(
                    f"{path} has a post_processor that adds {token!r} with id {token_id}; "
                    f"its id in the vocabulary is {vocab.get(token)}"
                )


def _model_max_length(settings: dict[str, Any], config: dict[str, Any]) -> int | None:
    """The smaller of the two limits that the files may give; None if they give none."""
    limits = (
        settings.get("model_max_length", settings.get("max_len")),
        config.get("max_position_embeddings"),
    )
    sane = [limit for limit in limits if type(limit) is int and 0 < limit < LARGEST_MODEL_MAX_LENGTH]
    return min(sane, default=None)


def _checked_side(settings: dict[str, Any], name: str) -> str:
    side = settings.get(name, "right")
    if side not in SIDES:
        raise ModelFormatError(f"tokenizer_config.json has {name} {side!r}; expected 'right' or 'left'")
    return str(side)


def is_library_error(reason: BaseException) -> bool:
    """Whether the library failed, rather than the user interrupting: its panics derive from BaseException."""
    if isinstance(reason, MemoryError):
        return False
    return isinstance(reason, Exception) or type(reason).__name__ == "PanicException"


@contextlib.contextmanager
def library_errors(error: type[ValueError], message: str) -> Iterator[None]:
    """Turn whatever the library raises into `error`, keeping the original as its cause."""
    try:
        yield
    except ModelFormatError:
        raise
    except BaseException as reason:
        if not is_library_error(reason):
            raise
        raise error(f"{message}: {reason}") from reason
