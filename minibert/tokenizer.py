"""Text -> token ids, offsets and word ids.

The tokens come from the `tokenizers` library, which this module alone imports. The library's tokenizer is set up once,
while loading, and never told to cut or pad: encodings.py does that with the whole encoding. So threads can share it.
"""

from __future__ import annotations

import contextlib
import operator
import re
import reprlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from minibert.encodings import Encoding, NoRoomError, TokenizedBatch, cut, padded_array
from minibert.errors import ModelFormatError
from minibert.hub import ModelFiles, locate, read_json_object
from minibert.texts import Texts, as_batch, refuse_lone_surrogate, shown, strings

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer
    from tokenizers import Encoding as RawEncoding

__all__ = ["BertTokenizer"]

IntArray = npt.NDArray[np.int64]
PADDING = ("longest", "max_length", "do_not_pad")
TRUNCATION = ("longest_first", "only_first", "only_second", "do_not_truncate")
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


# ---------------------------------------------------------------------------------------------------------------------
# The tokenizer
# ---------------------------------------------------------------------------------------------------------------------


def _special_token(name: str) -> property:
    def token(self: BertTokenizer) -> str | None:
        return self._special_tokens.get(name)

    return property(token, doc=f"The tokenizer's {name}; None if it has none.")


def _special_token_id(name: str) -> property:
    def token_id(self: BertTokenizer) -> int | None:
        token = self._special_tokens.get(name)
        return None if token is None else self._vocab[token]

    return property(token_id, doc=f"Id of the tokenizer's {name}; None if it has none.")


class BertTokenizer:
    """Text -> token ids, equal to transformers' BertTokenizer; made by `from_pretrained`.

    It may be used by any number of threads at once.

    Attributes
    ----------
    model_max_length : int or None
        Tokens that fit into the model: the smaller of tokenizer_config.json's model_max_length, where it is a sane
        number, and config.json's max_position_embeddings. None where neither is known. ``truncation=True`` cuts to it;
        without truncation a longer text passes here and is refused by the model.
    padding_side, truncation_side : {"right", "left"}
        Where padding goes, and which end of a text is cut off.
    """

    cls_token, cls_token_id = _special_token("cls_token"), _special_token_id("cls_token")
    sep_token, sep_token_id = _special_token("sep_token"), _special_token_id("sep_token")
    pad_token, pad_token_id = _special_token("pad_token"), _special_token_id("pad_token")
    unk_token, unk_token_id = _special_token("unk_token"), _special_token_id("unk_token")
    mask_token, mask_token_id = _special_token("mask_token"), _special_token_id("mask_token")

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        vocab: dict[str, int],
        special_tokens: dict[str, str],
        extra_special_tokens: Sequence[str] = (),
        model_max_length: int | None = None,
        padding_side: str = "right",
        truncation_side: str = "right",
        clean_up_tokenization_spaces: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab = vocab
        self._special_tokens = special_tokens
        self._extra_special_tokens = extra_special_tokens
        self._clean_up_tokenization_spaces = clean_up_tokenization_spaces
        self.model_max_length = model_max_length
        self.padding_side = padding_side
        self.truncation_side = truncation_side

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        *,
        revision: str | None = None,
        cache_dir: str | Path | None = None,
        token: str | bool | None = None,
        local_files_only: bool = False,
        subfolder: str = "",
    ) -> BertTokenizer:
        """Load the tokenizer of a model on the hub, or in a folder.

        tokenizer.json is read where there is one, vocab.txt otherwise. As in transformers, tokenizer_config.json's
        do_lower_case (default true), strip_accents (default: as do_lower_case) and tokenize_chinese_chars (default
        true) decide, even against a tokenizer.json that says otherwise; only if tokenizer_class is
        PreTrainedTokenizerFast or TokenizersBackend, or if tokenizer.json holds another normalizer or model than
        BERT's, is it taken as it stands. Truncation and padding stored in tokenizer.json are dropped.

        Parameters
        ----------
        name_or_path : str or Path
            Hub id, such as "bert-base-uncased", or folder.
        revision : str, optional
            Branch, tag or commit on the hub.
        cache_dir : str or Path, optional
            Folder for downloads instead of the hub's usual cache.
        token : str or bool, optional
            Hub token for private models.
        local_files_only : bool
            Never use the network.
        subfolder : str
            Folder of the files inside the model.

        Raises
        ------
        ModelFormatError
            A file is missing or damaged, a special token is missing, an id is out of the model's vocabulary.
        DownloadError
            The files could not be fetched.
        """
        files = locate(
            name_or_path,
            revision=revision,
            cache_dir=cache_dir,
            token=token,
            local_files_only=local_files_only,
            subfolder=subfolder,
        )
        return cls.from_files(files)

    @classmethod
    def from_files(cls, files: ModelFiles) -> BertTokenizer:
        """Load the tokenizer from files that are already located; the work of `from_pretrained`."""
        config = _find_json(files, "config.json")
        settings = _find_json(files, "tokenizer_config.json")
        if "added_tokens_decoder" not in settings:
            # What transformers wrote before it had added_tokens_decoder.
            settings = settings | _find_json(files, "special_tokens_map.json")
        settings.setdefault("tokenizer_class", config.get("tokenizer_class"))

        path = files.find("tokenizer.json")
        if path is None:
            path = files.require("vocab.txt")
            tokenizer = _read_vocab_txt(path, settings)
        else:
            tokenizer, stored = _read_tokenizer_json(path, settings)
            settings = stored | settings
        special_tokens = _special_tokens(tokenizer, settings)
        extra_special_tokens = _extra_special_tokens(settings)
        _add_tokens(tokenizer, _declared_tokens(files, settings), [*special_tokens.values(), *extra_special_tokens])
        _complete_bert(tokenizer, path, special_tokens)
        vocab = _checked_vocab(tokenizer, path, config)
        _check_special_tokens(tokenizer, path, vocab)
        return cls(
            tokenizer,
            vocab=vocab,
            special_tokens={name: token.content for name, token in special_tokens.items()},
            extra_special_tokens=[token.content for token in extra_special_tokens],
            model_max_length=_model_max_length(settings, config),
            padding_side=_checked_side(settings, "padding_side"),
            truncation_side=_checked_side(settings, "truncation_side"),
            clean_up_tokenization_spaces=bool(settings.get("clean_up_tokenization_spaces", False)),
        )

    # -- Text to ids

    def __call__(
        self,
        text: Texts,
        text_pair: Texts | None = None,
        *,
        add_special_tokens: bool = True,
        padding: bool | str = False,
        truncation: bool | str | None = None,
        max_length: int | None = None,
        stride: int = 0,
        is_split_into_words: bool = False,
        pad_to_multiple_of: int | None = None,
        return_tensors: str | None = None,
        return_token_type_ids: bool = True,
        return_attention_mask: bool = True,
        return_overflowing_tokens: bool = False,
        return_special_tokens_mask: bool = False,
        return_offsets_mapping: bool = False,
        return_length: bool = False,
    ) -> TokenizedBatch:
        """Turn texts, or pairs of texts, into arrays of token ids for a model.

        The names and the results are transformers'; always as NumPy arrays with one row per text, also for a single
        text. An empty text is a text ([CLS] [SEP]), also as `text_pair`; an empty list gives arrays of shape (0, 0).

        Parameters
        ----------
        text, text_pair : str, or list, tuple or array of B str
            With `is_split_into_words`: a list of str, or a list of B such lists. `text_pair` has as many as `text`.
        add_special_tokens : bool
            Put [CLS] in front and [SEP] behind each text.
        padding : bool or {"longest", "max_length", "do_not_pad"}
            Fill rows up to the longest one (True), or to `max_length`. Without it all rows must have one length.
        truncation : bool or {"longest_first", "only_first", "only_second", "do_not_truncate"}, optional
            Cut to `max_length` tokens, special ones included; of a pair the longer text first (True), or one of them
            only. Not given, it is True if `max_length` is given and `padding` is not.
        max_length : int, optional
            In tokens; default `model_max_length`.
        stride : int
            Tokens that a row of overflowing tokens repeats from the row before.
        is_split_into_words : bool
            The texts are lists of words.
        pad_to_multiple_of : int, optional
            Round the padded length up to a multiple of this.
        return_tensors : {None, "np"}
            NumPy arrays in either case.
        return_token_type_ids, return_attention_mask : bool
            Give "token_type_ids", "attention_mask".
        return_overflowing_tokens : bool
            Give what was cut off in rows of its own, and "overflow_to_sample_mapping" of shape (rows,).
        return_special_tokens_mask, return_offsets_mapping, return_length : bool
            Give "special_tokens_mask" (B, S), "offset_mapping" (B, S, 2) in characters, "length" (B,) with padding.

        Returns
        -------
        TokenizedBatch
            "input_ids", "token_type_ids", "attention_mask" of shape (B, S), int64, and what was asked for.

        Raises
        ------
        TypeError
            A text is not a string; the message names its index.
        ValueError
            A text holds a lone surrogate; rows of different length without padding; a `max_length` without room.

        Examples
        --------
        >>> inputs = tokenizer(["first text", "second, longer text"], padding=True)  # doctest: +SKIP
        >>> inputs["input_ids"].shape  # doctest: +SKIP
        (2, 6)
        """
        if return_tensors not in (None, "np"):
            raise ValueError(
                f"return_tensors={return_tensors!r}: minibert's only arrays are NumPy's; give 'np' or None"
            )
        padding = _strategy("padding", padding, PADDING)
        strategy, max_length = self._limit(truncation, max_length, padding)
        parts = self._encode(
            *as_batch(text, text_pair, is_split_into_words),
            strategy=strategy,
            max_length=max_length,
            stride=_integer("stride", stride, minimum=0),
            add_special_tokens=add_special_tokens,
            is_split_into_words=is_split_into_words,
            overflowing=return_overflowing_tokens,
        )
        encodings = [encoding for row in parts for encoding in row]
        places, width = self._places(encodings, padding, strategy, max_length, pad_to_multiple_of)

        def padded(rows: Callable[[Encoding], IntArray], fill: int) -> IntArray:
            return padded_array([rows(encoding) for encoding in encodings], places, width, fill)

        # Ids that nobody reads where no row is padded.
        pad_token_id = 0 if self.pad_token_id is None else self.pad_token_id
        arrays = {"input_ids": padded(lambda encoding: encoding.ids, pad_token_id)}
        if return_token_type_ids:
            arrays["token_type_ids"] = padded(lambda encoding: encoding.token_types, 0)
        if return_attention_mask:
            arrays["attention_mask"] = padded(lambda encoding: np.ones(len(encoding), dtype=np.int64), 0)
        if return_special_tokens_mask:
            arrays["special_tokens_mask"] = padded(lambda encoding: encoding.special_tokens_mask, 1)
        if return_offsets_mapping:
            starts = padded(lambda encoding: encoding.offsets[:, 0], 0)
            arrays["offset_mapping"] = np.stack([starts, padded(lambda encoding: encoding.offsets[:, 1], 0)], axis=-1)
        if return_length:
            arrays["length"] = np.full(len(encodings), width, dtype=np.int64)
        if return_overflowing_tokens:
            arrays["overflow_to_sample_mapping"] = np.repeat(np.arange(len(parts)), [len(row) for row in parts])
        return TokenizedBatch(arrays, encodings, places, self.pad_token)

    def encodings(
        self,
        texts: Texts,
        pairs: Texts | None = None,
        *,
        max_length: int | None = None,
        truncation: bool | str | None = None,
        add_special_tokens: bool = True,
        is_split_into_words: bool = False,
    ) -> list[Encoding]:
        """Tokenize texts for a packed batch: one `Encoding` per text, cut as asked, never padded.

        Parameters are those of `__call__`; each encoding's `n_truncated` counts the tokens that were cut off.
        """
        strategy, max_length = self._limit(truncation, max_length, "do_not_pad")
        parts = self._encode(
            *as_batch(texts, pairs, is_split_into_words),
            strategy=strategy,
            max_length=max_length,
            stride=0,
            add_special_tokens=add_special_tokens,
            is_split_into_words=is_split_into_words,
            overflowing=False,
        )
        return [row[0] for row in parts]

    def tokenize(self, text: str, pair: str | None = None, add_special_tokens: bool = False) -> list[str]:
        """Tokens of one text, without [CLS] and [SEP] unless they are asked for."""
        return self._single(text, pair, add_special_tokens, None, None).tokens

    def encode(
        self,
        text: str,
        text_pair: str | None = None,
        add_special_tokens: bool = True,
        *,
        truncation: bool | str | None = None,
        max_length: int | None = None,
    ) -> list[int]:
        """Ids of one text, with [CLS] and [SEP]."""
        encoding = self._single(text, text_pair, add_special_tokens, truncation, max_length)
        return [int(token_id) for token_id in encoding.ids]

    # -- Ids to text

    def decode(
        self,
        token_ids: int | Sequence[int] | npt.NDArray[np.integer[Any]],
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> str:
        """Text of one sequence of ids, as near to the original as the vocabulary allows.

        Parameters
        ----------
        token_ids : int, or sequence of S int
        skip_special_tokens : bool
            Leave out [CLS], [SEP], [PAD] and their like.
        clean_up_tokenization_spaces : bool, optional
            Also take out the space before punctuation and English contractions; default as in tokenizer_config.json.

        Raises
        ------
        ValueError
            An id is not in the vocabulary; the message names it.
        """
        ids = self._checked_ids([token_ids] if np.ndim(token_ids) == 0 else token_ids)
        text: str = self._tokenizer.decode(ids, skip_special_tokens=bool(skip_special_tokens))
        if clean_up_tokenization_spaces is None:
            clean_up_tokenization_spaces = self._clean_up_tokenization_spaces
        return _clean_up(text) if clean_up_tokenization_spaces else text

    def batch_decode(
        self,
        sequences: Iterable[Sequence[int]] | npt.NDArray[np.integer[Any]],
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> list[str]:
        """Texts of B sequences of ids; see `decode`."""
        return [self.decode(ids, skip_special_tokens, clean_up_tokenization_spaces) for ids in sequences]

    # -- The vocabulary

    @property
    def vocab(self) -> dict[str, int]:
        """Every token, added ones included, with its id; in the order of the ids."""
        return dict(self._vocab)

    def get_vocab(self) -> dict[str, int]:
        """Same as `vocab`, under transformers' other name."""
        return self.vocab

    @property
    def vocab_size(self) -> int:
        """Number of tokens without the added ones; ``len(tokenizer)`` counts those too."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=False))

    def __len__(self) -> int:
        return len(self._vocab)

    def __bool__(self) -> bool:
        # A tokenizer is something, whatever its length.
        return True

    def __repr__(self) -> str:
        return f"BertTokenizer({len(self)} tokens, model_max_length={self.model_max_length})"

    @property
    def do_lower_case(self) -> bool:
        """Whether texts are lowercased."""
        return bool(getattr(self._tokenizer.normalizer, "lowercase", False))

    @property
    def all_special_tokens(self) -> list[str]:
        """Special tokens, each once."""
        return list(dict.fromkeys([*self._special_tokens.values(), *self._extra_special_tokens]))

    @property
    def all_special_ids(self) -> list[int]:
        """Ids of `all_special_tokens`."""
        return [self._vocab[token] for token in self.all_special_tokens]

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        """Tokens that the tokenizer adds to one text, or to a pair: 2 and 3 for BERT."""
        return int(self._tokenizer.num_special_tokens_to_add(bool(pair)))

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> int | list[int]:
        """Id of a token, or ids of a list of tokens; unknown ones get that of the unknown token."""
        if isinstance(tokens, str):
            return self._token_to_id(tokens)
        return [self._token_to_id(token) for token in tokens]

    def convert_ids_to_tokens(
        self, ids: int | Sequence[int] | npt.NDArray[np.integer[Any]], skip_special_tokens: bool = False
    ) -> str | list[str]:
        """Token of an id, or tokens of a sequence of ids; an id that is not in the vocabulary is a ValueError."""
        if np.ndim(ids) == 0:
            return str(self._tokenizer.id_to_token(self._checked_ids([ids])[0]))
        skipped = set(self.all_special_ids) if skip_special_tokens else set()
        return [
            str(self._tokenizer.id_to_token(token_id)) for token_id in self._checked_ids(ids) if token_id not in skipped
        ]

    # -- The work

    def _single(
        self,
        text: str,
        pair: str | None,
        add_special_tokens: bool,
        truncation: bool | str | None,
        max_length: int | None,
    ) -> Encoding:
        """Tokenize one text; a list of them is refused rather than answered with its first."""
        for name, value in ("text", text), ("pair", pair):
            if not isinstance(value, str) and not (name == "pair" and value is None):
                raise TypeError(f"{name} is {shown(value)}; expected one str. For a list call the tokenizer itself")
        return self.encodings(
            [text],
            None if pair is None else [pair],
            truncation=truncation,
            max_length=max_length,
            add_special_tokens=add_special_tokens,
        )[0]

    def _token_to_id(self, token: str) -> int:
        if not isinstance(token, str):
            raise TypeError(f"a token is {shown(token)}; expected str")
        token_id: int | None = self._vocab.get(token, self.unk_token_id)
        if token_id is None:
            raise ValueError(f"token {token!r} is not in the vocabulary, which has no unknown token to stand for it")
        return token_id

    def _checked_ids(self, ids: Any) -> list[int]:
        """Refuse anything but ids of the vocabulary: the library would leave them out without a word."""
        if isinstance(ids, (str, bytes, Mapping)) or not isinstance(ids, (Sequence, np.ndarray)):
            raise TypeError(f"token ids are {shown(ids)}; expected int, or a list or array of them")
        checked = []
        for position, value in enumerate(ids):
            if np.ndim(value) > 0:
                raise TypeError(f"token id {position} is itself a sequence; for several sequences call batch_decode")
            token_id = _integer(f"token id {position}", value)
            if not 0 <= token_id < 2**32 or self._tokenizer.id_to_token(token_id) is None:
                last = next(reversed(self._vocab.values()))
                raise ValueError(f"token id {token_id} at position {position} has no token; ids run from 0 to {last}")
            checked.append(token_id)
        return checked

    def _limit(self, truncation: bool | str | None, max_length: int | None, padding: str) -> tuple[str, int | None]:
        """The strategy and the length that the arguments ask for, with transformers' defaults."""
        if truncation is None:
            truncation = max_length is not None and padding == "do_not_pad"
        strategy = _strategy("truncation", truncation, TRUNCATION)
        needed = strategy != "do_not_truncate" or padding == "max_length"
        if max_length is not None:
            max_length = _integer("max_length", max_length, minimum=1)
            if not needed:
                warnings.warn(
                    f"max_length={max_length} has no effect: add truncation=True to cut texts to it, "
                    "or padding='max_length' to fill them up to it",
                    stacklevel=3,
                )
            return strategy, max_length
        if needed and self.model_max_length is None:
            raise ValueError(
                f"truncation={truncation!r}, padding={padding!r} need max_length=: neither tokenizer_config.json nor "
                "config.json says how many tokens this model takes"
            )
        return strategy, self.model_max_length

    def _encode(
        self,
        texts: list[Any],
        pairs: list[Any] | None,
        *,
        strategy: str,
        max_length: int | None,
        stride: int,
        add_special_tokens: bool,
        is_split_into_words: bool,
        overflowing: bool,
    ) -> list[list[Encoding]]:
        """Tokenize checked texts; each gives its encoding and, if `overflowing`, those of what was cut off."""
        if strategy == "only_second" and pairs is None:
            raise ValueError("truncation='only_second' needs text_pair=; for single texts use truncation=True")
        inputs = texts if pairs is None else list(zip(texts, pairs, strict=True))
        raw_encodings = self._encode_whole(inputs, add_special_tokens, is_split_into_words)
        if strategy == "do_not_truncate" or max_length is None:
            return [[Encoding(raw)] for raw in raw_encodings]
        num_special = self.num_special_tokens_to_add(pair=pairs is not None) if add_special_tokens else 0
        if max_length < num_special:
            raise ValueError(f"max_length={max_length} has no room for the {num_special} special tokens of each row")
        side = _choice("truncation_side", self.truncation_side, SIDES)
        parts = []
        for index, raw in enumerate(raw_encodings):
            try:
                parts.append(cut(raw, max_length, strategy, side, stride, overflowing))
            except NoRoomError as reason:
                raise ValueError(f"text {index} cannot be cut to max_length={max_length}: {reason}") from None
        return parts

    def _encode_whole(
        self, inputs: list[Any], add_special_tokens: bool, is_split_into_words: bool
    ) -> list[RawEncoding]:
        """Let the library tokenize; where it fails, say at which text."""

        def encode(some: list[Any]) -> list[RawEncoding]:
            return self._tokenizer.encode_batch(
                some, is_pretokenized=bool(is_split_into_words), add_special_tokens=bool(add_special_tokens)
            )

        try:
            return encode(inputs)
        except BaseException as reason:
            if not _is_library_error(reason):
                raise
        # The library does not tell which text it was: try them one by one.
        raw_encodings = []
        for index, one in enumerate(inputs):
            for text in strings(one):
                refuse_lone_surrogate(text, f"text {index}")
            with _library_errors(ValueError, f"text {index} cannot be tokenized"):
                raw_encodings += encode([one])
        return raw_encodings

    def _places(
        self, encodings: list[Encoding], padding: str, strategy: str, max_length: int | None, multiple: int | None
    ) -> tuple[list[slice], int]:
        """Where each row's tokens stand, and the rows' common width."""
        lengths = [len(encoding) for encoding in encodings]
        width = max(lengths, default=0)
        if padding != "do_not_pad":
            if self.pad_token_id is None:
                raise ValueError("this tokenizer has no padding token; tokenize without padding=")
            if padding == "max_length" and max_length is not None and lengths:
                if width > max_length:
                    row = lengths.index(width)
                    raise ValueError(f"row {row} has {width} tokens, max_length={max_length}; add truncation=True")
                width = max_length
            if multiple is not None:
                multiple = _integer("pad_to_multiple_of", multiple, minimum=1)
                if strategy != "do_not_truncate" and max_length is not None and max_length % multiple:
                    raise ValueError(f"max_length={max_length} is not a multiple of pad_to_multiple_of={multiple}")
                width = -(-width // multiple) * multiple
        elif min(lengths, default=0) < width:
            shortest = lengths.index(min(lengths))
            raise ValueError(
                f"rows of different length do not make an array: row {shortest} has {lengths[shortest]} tokens, "
                f"row {lengths.index(width)} has {width}; add padding=True"
            )
        if _choice("padding_side", self.padding_side, SIDES) == "right":
            return [slice(0, length) for length in lengths], width
        return [slice(width - length, width) for length in lengths], width


# ---------------------------------------------------------------------------------------------------------------------
# Loading
# ---------------------------------------------------------------------------------------------------------------------


def _find_json(files: ModelFiles, filename: str) -> dict[str, Any]:
    path = files.find(filename)
    return {} if path is None else read_json_object(path)


def _read_tokenizer_json(path: Path, settings: dict[str, Any]) -> tuple[Tokenizer, dict[str, Any]]:
    """Read a tokenizer.json, without the truncation and padding in it; what transformers takes from those, apart."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.normalizers import BertNormalizer

    with _library_errors(ModelFormatError, f"{path} is not a tokenizer that can be read"):
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

    with _library_errors(ModelFormatError, f"{path} is not a vocabulary that can be read"):
        vocab = WordPiece.read_file(str(path))
    tokens = {name: _token_content(settings.get(name), name) or token for name, token in BERT_SPECIAL_TOKENS.items()}
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


def _token_content(entry: object, where: str) -> str | None:
    """The text of a token as JSON has it: a string, or an object with "content"."""
    content = entry.get("content") if isinstance(entry, dict) else entry
    if isinstance(content, str):
        return content
    if entry is None:
        return None
    raise ModelFormatError(f"{where} is {reprlib.repr(entry)}; expected a token")


def _added_token(entry: object, where: str, special: bool = False) -> AddedToken:
    """One token as JSON has it, with its flags."""
    from tokenizers import AddedToken

    flags = {"special": special}
    if isinstance(entry, dict):
        names = ("single_word", "lstrip", "rstrip", "normalized", "special")
        flags = {name: entry[name] for name in names if name in entry} | ({"special": True} if special else {})
    with _library_errors(ModelFormatError, f"{where} has {reprlib.repr(entry)} for a token"):
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
        with _library_errors(ModelFormatError, f"{path} does not work"):
            encoding = tokenizer.encode("a", pair)
            expected = tokenizer.num_special_tokens_to_add(pair is not None)
        added = [position for position, sequence in enumerate(encoding.sequence_ids) if sequence is None]
        if len(added) != expected:
            raise ModelFormatError(f"{path} has a post_processor that does not keep to {expected} special tokens")
        for position in added:
            token, token_id = encoding.tokens[position], encoding.ids[position]
            if vocab.get(token) != token_id:
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


# ---------------------------------------------------------------------------------------------------------------------
# Arguments
# ---------------------------------------------------------------------------------------------------------------------


def _integer(name: str, value: Any, minimum: int | None = None) -> int:
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} is {value}; expected an integer")
    try:
        integer = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {shown(value)}; expected an integer") from None
    if minimum is not None and integer < minimum:
        raise ValueError(f"{name} is {integer}; expected at least {minimum}")
    return integer


def _strategy(name: str, value: bool | str, choices: tuple[str, ...]) -> str:
    """A strategy by its name; True means the first, False the last."""
    if isinstance(value, bool):
        return choices[0] if value else choices[-1]
    return _choice(name, value, choices)


def _choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; expected one of {', '.join(map(repr, choices))}")
    return value


def _clean_up(text: str) -> str:
    """Take out the spaces that WordPiece leaves before punctuation, as transformers' clean_up_tokenization does."""
    for ending in (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're"):
        text = text.replace(ending, ending.strip())
    return text


# ---------------------------------------------------------------------------------------------------------------------
# The library's errors
# ---------------------------------------------------------------------------------------------------------------------


def _is_library_error(reason: BaseException) -> bool:
    """Whether the library failed, rather than the user interrupting: its panics derive from BaseException."""
    if isinstance(reason, MemoryError):
        return False
    return isinstance(reason, Exception) or type(reason).__name__ == "PanicException"


@contextlib.contextmanager
def _library_errors(error: type[ValueError], message: str) -> Iterator[None]:
    """Turn whatever the library raises into `error`, keeping the original as its cause."""
    try:
        yield
    except ModelFormatError:
        raise
    except BaseException as reason:
        if not _is_library_error(reason):
            raise
        raise error(f"{message}: {reason}") from reason
