"""The files of a vocabulary -> a tokenizer of the library `tokenizers`. What is too large for it is refused before."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minibert._utils.files import parse_json, read_bytes
from minibert._utils.validation import brief
from minibert.checkpoint.files import ModelFiles
from minibert.errors import ModelFormatError
from minibert.tokenizer.transformers_classes import TokenizerClass

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# The library cannot be stopped, and some sizes let it need minutes or end the process. So they are checked before.
_FILE_LIMIT = 64 * 2**20  # bytes; the largest real file, that of a ModernBERT with Gemma's 256,000 tokens, has 34 MB
_LONGEST_TOKEN = 1000  # characters; its tries recurse once per byte, and its time for a word grows with the cube
_LONGEST_PART = 8192  # characters of a normalizer and so on; the library takes minutes to compile a pattern of 100,000

# Files of SentencePiece, which hold a vocabulary, too.
_SENTENCEPIECE = ("sentencepiece.bpe.model", "spiece.model", "spm.model", "tokenizer.model")


def read_library_tokenizer(
    files: ModelFiles, kind: TokenizerClass, settings: dict[str, Any]
) -> tuple[Path, Tokenizer, dict[str, int], dict[str, Any]]:
    """Read the vocabulary; return its file, the library's tokenizer, the ids and the settings that the file has."""
    if path := files.find("tokenizer.json"):
        return path, *_read_tokenizer_json(path, kind)
    name = {"WordPiece": "vocab.txt", "WordLevel": "vocab.txt", "BPE": "vocab.json"}.get(kind.model)
    if name and (path := files.find(name)):
        with library_errors(ModelFormatError, f"{path} is not a vocabulary that can be read"):
            if name == "vocab.txt":
                return path, *_read_vocab_txt(path, kind, settings), {}
            return path, *_read_vocab_json(path, files.require("merges.txt")), {}
    if name:
        raise files.lacking(f"neither tokenizer.json nor {name}")
    others = [other for other in _SENTENCEPIECE if files.find(other)]
    raise ModelFormatError(
        f"{files.source} has no tokenizer.json; {' and '.join(others) or 'the other files of its tokenizer'} cannot be "
        "read. transformers can write it: AutoTokenizer.from_pretrained(name).save_pretrained(folder)."
    )


def _read_tokenizer_json(path: Path, kind: TokenizerClass) -> tuple[Tokenizer, dict[str, int], dict[str, Any]]:
    """Read a tokenizer.json, but ignore its truncation and padding.

    Returns
    -------
    tokenizer : tokenizers.Tokenizer
    vocab : dict of str to int
    stored : dict
        The settings that transformers takes from truncation and padding.
    """
    from tokenizers import Tokenizer

    content = read_bytes(path, limit=_FILE_LIMIT)
    with library_errors(ModelFormatError, f"{path} is not a tokenizer that can be read"):
        _check_sizes(parsed := parse_json(content, str(path)))
        model = parsed.get("model") or {}
        vocab = model.get("vocab")
        if kind.model == "Unigram" and isinstance(vocab, list):
            tokenizer = _with_model(parsed, vocab[:1], _unigram)
        elif model.get("type") == "WordPiece" and isinstance(vocab, dict) and _are_ids(vocab.values()):
            tokenizer = _with_model(parsed, {}, _word_piece)
        else:
            tokenizer = Tokenizer.from_buffer(content)
        if not isinstance(vocab, dict):
            vocab = tokenizer.get_vocab(with_added_tokens=False)
        truncation, padding = tokenizer.truncation or {}, tokenizer.padding or {}
        tokenizer.no_truncation()
        tokenizer.no_padding()
        stored = {"truncation_side": truncation.get("direction"), "padding_side": padding.get("direction")}
        if padding and tokenizer.token_to_id(padding["pad_token"]) is not None:
            stored["pad_token"] = padding["pad_token"]
    return tokenizer, vocab, {name: value for name, value in stored.items() if value is not None}


def _are_ids(values: Collection[object]) -> bool:
    """Return whether all values are ids for the library, 32-bit integers."""
    return {*map(type, values)} == {int} and 0 <= min(values) <= max(values) < 2**32  # type: ignore[type-var,operator]


def _with_model(content: dict[str, Any], few: list[Any] | dict[str, int], make: Callable[..., Any]) -> Tokenizer:
    """Make a tokenizer from a file with a vocabulary of `few` tokens, then `make` its model from the parsed one."""
    from tokenizers import Tokenizer

    model = content["model"]
    small = content | {"model": model | {"vocab": few} | ({"unk_id": None} if "unk_id" in model else {})}
    added = Tokenizer.from_str(json.dumps(small)).get_added_tokens_decoder()
    tokenizer = Tokenizer.from_str(json.dumps(small | {"added_tokens": []}))
    tokenizer.model = make(model, tokenizer.model)
    tokenizer.add_tokens([added[place] for place in sorted(added)])
    return tokenizer


def _unigram(model: dict[str, Any], small: Any) -> Any:
    """Make a model whose scores are those of the file, as the classes of transformers do.

    The library reads some scores from JSON a rounding off, and then splits "aaa" in another way that is as probable.
    """
    from tokenizers.models import Unigram

    return Unigram([tuple(piece) for piece in model["vocab"]], unk_id=model.get("unk_id"), byte_fallback=False)


def _word_piece(model: dict[str, Any], small: Any) -> Any:
    """Make a model in half the time that the library needs to read the file's vocabulary a second time."""
    from tokenizers.models import WordPiece

    names = ("unk_token", "max_input_chars_per_word", "continuing_subword_prefix")
    return WordPiece(model["vocab"], **{name: getattr(small, name) for name in names})


def _check_sizes(content: Any) -> None:
    """Refuse a tokenizer.json whose parts are too large for the library."""
    if not isinstance(content, dict):
        raise ValueError("it does not hold a JSON object")
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        # A table of characters is data that the library reads at once, and may have some hundred kilobytes.
        text = re.sub('"precompiled_charsmap": "[^"]*"', "", json.dumps(content.get(part)))
        if len(text) > _LONGEST_PART:
            raise ValueError(f"its {part} has {len(text)} characters, more than {_LONGEST_PART}")
    model, added = content.get("model"), content.get("added_tokens")
    if isinstance(model, dict):
        longest = model.get("max_input_chars_per_word")
        if isinstance(longest, int) and longest > _LONGEST_TOKEN:
            raise ValueError(f"its max_input_chars_per_word is {longest}; at most {_LONGEST_TOKEN} are allowed")
        vocab = model.get("vocab")
        entries = vocab if isinstance(vocab, dict | list) else []
        if isinstance(entries, list):
            entries = [entry[0] if isinstance(entry, list) and entry else entry for entry in entries]
        check_lengths(entries)
        check_lengths(model.get(name) for name in ("continuing_subword_prefix", "end_of_word_suffix"))
    if isinstance(added, list):
        check_lengths(token.get("content") for token in added if isinstance(token, dict))


def check_lengths(tokens: Iterable[object]) -> None:
    """Refuse tokens that are too long; what is not a str is refused by the library."""
    texts = tokens if isinstance(tokens, dict) else [token for token in tokens if isinstance(token, str)]
    longest = max(map(len, texts), default=0)
    if longest > _LONGEST_TOKEN:
        raise ValueError(f"it has a token of {longest} characters, more than {_LONGEST_TOKEN}")


def _read_vocab_txt(path: Path, kind: TokenizerClass, settings: dict[str, Any]) -> tuple[Tokenizer, dict[str, int]]:
    """Read a vocab.txt, which lists one token per line in the order of the ids."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel, WordPiece

    # The library does not look at the kind and the size of a file, so it is read here first.
    vocab = WordPiece.read_file(str(path)) if read_bytes(path, limit=_FILE_LIMIT) else {}
    tokens = {name: token_content(settings.get(name) or token, name) for name, token in kind.special_tokens.items()}
    for name, token in tokens.items():
        if token not in vocab and name != "mask_token":
            raise ModelFormatError(
                f"{path} ({len(vocab)} tokens) lacks {token!r}, the {name}; is it a BERT's vocab.txt?"
            )
    model: Any = WordLevel if kind.model == "WordLevel" else WordPiece
    return Tokenizer(model(vocab, unk_token=tokens["unk_token"])), vocab


def _read_vocab_json(path: Path, merges: Path) -> tuple[Tokenizer, dict[str, int]]:
    """Read a vocab.json, the ids by token, and a merges.txt, two parts of a token per line, the first merge first."""
    from tokenizers import Tokenizer
    from tokenizers.models import BPE

    check_lengths(parse_json(read_bytes(path, limit=_FILE_LIMIT), str(path)))
    read_bytes(merges, limit=_FILE_LIMIT)
    vocab, pairs = BPE.read_file(str(path), str(merges))
    return Tokenizer(BPE(vocab, pairs, continuing_subword_prefix="", end_of_word_suffix="")), vocab


def token_content(entry: object, where: str) -> str:
    """Return the text of a token in JSON, which is a string or an object with "content"."""
    content = entry.get("content") if isinstance(entry, dict) else entry
    if isinstance(content, str):
        return content
    raise ModelFormatError(f"{where} is {brief(entry)}; expected a token.")


def is_library_error(reason: BaseException) -> bool:
    """Return whether the library failed; its panics derive from BaseException, as KeyboardInterrupt does."""
    if isinstance(reason, MemoryError):
        return False
    return isinstance(reason, Exception) or type(reason).__name__ == "PanicException"


@contextlib.contextmanager
def library_errors(error: type[ValueError], message: str) -> Iterator[None]:
    """Turn an error of the library into `error`, and keep the original as its cause."""
    try:
        yield
    except ModelFormatError:
        raise
    except BaseException as reason:
        if not is_library_error(reason):
            raise
        raise error(f"{message}: {str(reason).removesuffix('.')}.") from reason
