"""Text -> token ids, offsets and word ids.

The tokens come from the `tokenizers` library. Its tokenizer is set up once, by files.py, and never told to
cut or pad: encodings.py does that with the whole encoding. So threads can share it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert.base.arrays import Int64Array
from minibert.base.checks import brief, check_choice, check_int
from minibert.base.warn import warn_caller
from minibert.checkpoint.hub import ModelFiles, check_files, locate
from minibert.tokenizer.encodings import (
    Encoding,
    NoRoomError,
    RawEncoding,
    TokenizedBatch,
    cut,
    cut_windows,
    padded_array,
)
from minibert.tokenizer.files import SIDES, LoadedTokenizer, is_library_error, library_errors, load_tokenizer
from minibert.tokenizer.long_texts import LONG_TEXT, LongTexts
from minibert.tokenizer.texts import Texts, as_batch, refuse_lone_surrogate, shown, strings

__all__ = ["BertTokenizer"]

PADDING = ("longest", "max_length", "do_not_pad")
TRUNCATION = ("longest_first", "only_first", "only_second", "do_not_truncate")

# Sequences of ints that nobody means as ids.
_BUFFERS = (bytes, bytearray, memoryview)


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


# Characters of a text that is tokenized whole: the library takes 80 to 600 bytes for each.
_MOST_CHARACTERS = 2**22


class BertTokenizer:
    """Text -> token ids, equal to transformers' BertTokenizer; made by `from_pretrained`.

    It may be used by any number of threads at once. Where it differs from transformers, it is to avoid a surprise:
    arrays are always 2-D; an empty `text_pair` is a text, for a single text too; a special token that neither the files
    name nor the vocabulary has is None instead of a new id, which the model would not know; files that contradict each
    other about an id are refused.

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

    def __init__(self, loaded: LoadedTokenizer) -> None:
        if not isinstance(loaded, LoadedTokenizer):
            raise TypeError("a BertTokenizer is made by BertTokenizer.from_pretrained(name_or_path)")
        self._tokenizer = loaded.tokenizer
        self._vocab = loaded.vocab
        self._special_tokens = loaded.special_tokens
        self._extra_special_tokens = loaded.extra_special_tokens
        self._clean_up_tokenization_spaces = loaded.clean_up_tokenization_spaces
        self.model_max_length = loaded.model_max_length
        self.padding_side = loaded.padding_side
        self.truncation_side = loaded.truncation_side

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | os.PathLike[str],
        *,
        revision: str | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
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
        name_or_path : str or path
            Hub id, such as "bert-base-uncased", or folder.
        revision : str, optional
            Branch, tag or commit on the hub.
        cache_dir : str or path, optional
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
        return cls(load_tokenizer(check_files(files)))

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
        >>> tokenizer = BertTokenizer.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")
        >>> inputs = tokenizer(["first text", "second, longer text"], padding=True)
        >>> inputs["input_ids"].shape
        (2, 6)
        >>> inputs.tokens(0)
        ['[CLS]', 'first', 'text', '[SEP]', '[PAD]', '[PAD]']
        """
        if return_tensors not in (None, "np"):
            raise ValueError(
                f"return_tensors={brief(return_tensors)}: minibert's only arrays are NumPy's; give 'np' or None"
            )
        padding = _strategy("padding", padding, PADDING)
        strategy, max_length = self._limit(truncation, max_length, padding)
        parts = self._encode(
            *as_batch(text, text_pair, is_split_into_words),
            strategy=strategy,
            max_length=max_length,
            stride=check_int("stride", stride, 0),
            add_special_tokens=add_special_tokens,
            is_split_into_words=is_split_into_words,
            side=self.truncation_side,
            exact=True,
            overflowing=return_overflowing_tokens,
        )
        encodings = [encoding for row in parts for encoding in row]
        places, width = self._places(encodings, padding, strategy, max_length, pad_to_multiple_of)

        def padded(rows: Callable[[Encoding], Int64Array], fill: int) -> Int64Array:
            return padded_array([rows(encoding) for encoding in encodings], places, width, fill)

        # Without a padding token no row is padded, and nobody reads this 0.
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
        truncation_side: str | None = None,
        exact: bool = True,
    ) -> list[Encoding]:
        """Tokenize texts for a packed batch: one `Encoding` per text, cut as asked, never padded.

        Parameters are those of `__call__`; each encoding's `n_truncated` counts the tokens that were cut off.

        Parameters
        ----------
        truncation_side : {"right", "left"}, optional
            Default: the tokenizer's.
        exact : bool
            Count all of the tokens that are cut off. Otherwise a long text is read no further than needed, and
            `n_truncated` says only whether it was cut: it is at least 1 then.
        """
        strategy, max_length = self._limit(truncation, max_length, "do_not_pad")
        parts = self._encode(
            *as_batch(texts, pairs, is_split_into_words),
            strategy=strategy,
            max_length=max_length,
            stride=0,
            add_special_tokens=add_special_tokens,
            is_split_into_words=is_split_into_words,
            side=self.truncation_side if truncation_side is None else truncation_side,
            exact=exact,
            overflowing=False,
        )
        return [row[0] for row in parts]

    def windows(
        self, texts: Sequence[str], *, max_length: int, stride: int = 0, prompt: str = ""
    ) -> list[list[Encoding]]:
        """Tokenize texts into windows of `max_length` tokens that together hold every token of a text.

        Parameters
        ----------
        texts : sequence of B str
        max_length : int
            Of a window, in tokens, special ones and the prompt's included.
        stride : int
            Tokens that a window repeats from the one before.
        prompt : str
            Put before every text; its tokens stand in every window.

        Returns
        -------
        list of B lists of Encoding
            At least one window per text; offsets count from the start of the prompt.

        Raises
        ------
        TypeError, ValueError
            `texts` is one str, or one of them is not a str; the text of a window would have no room, or no more than
            `stride` tokens.
        """
        max_length, stride = check_int("max_length", max_length, 1), check_int("stride", stride, 0)
        if isinstance(texts, str) or not isinstance(prompt, str):
            raise TypeError(f"texts is {shown(texts)}, prompt is {shown(prompt)}; expected a list of str, and a str")
        found = []
        inputs = [prompt + text for text in as_batch(texts, None, False)[0]]
        for index, raw in enumerate(self._encode_raw(inputs, True, False)):
            try:
                found.append(cut_windows(raw, max_length, stride, len(prompt)))
            except NoRoomError as reason:
                raise ValueError(f"text {index} cannot be cut into windows of {max_length} tokens: {reason}") from None
        return found

    def last_cut(self, text: str) -> int | None:
        """Return the last place where a text can be cut, so that the parts have the tokens of the whole.

        That is so whatever follows the text. None: there is no such place near its end, or none is known because the
        tokenizer is not BERT's.
        """
        return self._long_texts.last_place(text)

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
        ids = self._checked_ids([token_ids] if _is_one_id(token_ids) else token_ids)
        with library_errors(ValueError, "the token ids cannot be decoded"):
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
        if isinstance(sequences, (str, *_BUFFERS, Mapping)):
            raise TypeError(f"sequences is {shown(sequences)}; expected a list or array of sequences of ids")
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
        if not isinstance(tokens, (list, tuple)):
            raise TypeError(f"tokens are {shown(tokens)}; expected str, or a list of str")
        return [self._token_to_id(token) for token in tokens]

    def convert_ids_to_tokens(
        self, ids: int | Sequence[int] | npt.NDArray[np.integer[Any]], skip_special_tokens: bool = False
    ) -> str | list[str]:
        """Token of an id, or tokens of a sequence of ids; an id that is not in the vocabulary is a ValueError."""
        if _is_one_id(ids):
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
        if isinstance(ids, (str, *_BUFFERS, Mapping)) or not isinstance(ids, (Sequence, np.ndarray)):
            raise TypeError(f"token ids are {shown(ids)}; expected int, or a list or array of them")
        checked = []
        for position, value in enumerate(ids):
            if isinstance(value, (list, tuple, np.ndarray)) and not _is_one_id(value):
                raise TypeError(f"token id {position} is itself a sequence; for several sequences call batch_decode")
            token_id = check_int(f"token id {position}", value)
            if not 0 <= token_id < 2**32 or self._tokenizer.id_to_token(token_id) is None:
                last = next(reversed(self._vocab.values()))
                raise ValueError(
                    f"token id {brief(token_id)} at position {position} has no token; ids run from 0 to {last}"
                )
            checked.append(token_id)
        return checked

    def _limit(self, truncation: bool | str | None, max_length: int | None, padding: str) -> tuple[str, int | None]:
        """The strategy and the length that the arguments ask for, with transformers' defaults."""
        if truncation is None:
            truncation = max_length is not None and padding == "do_not_pad"
        strategy = _strategy("truncation", truncation, TRUNCATION)
        needed = strategy != "do_not_truncate" or padding == "max_length"
        if max_length is not None:
            max_length = check_int("max_length", max_length, 1)
            if not needed:
                warn_caller(
                    f"max_length={brief(max_length)} has no effect: add truncation=True to cut texts to it, "
                    "or padding='max_length' to fill them up to it",
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
        side: str,
        exact: bool,
        overflowing: bool,
    ) -> list[list[Encoding]]:
        """Tokenize checked texts; each gives its encoding and, if `overflowing`, those of what was cut off."""
        if strategy == "only_second" and pairs is None:
            raise ValueError("truncation='only_second' needs text_pair=; for single texts use truncation=True")
        inputs = texts if pairs is None else list(zip(texts, pairs, strict=True))
        if strategy == "do_not_truncate" or max_length is None:
            raw_encodings = self._encode_raw(inputs, add_special_tokens, is_split_into_words)
            return [[Encoding(raw)] for raw in raw_encodings]
        num_special = self.num_special_tokens_to_add(pair=pairs is not None) if add_special_tokens else 0
        if max_length < num_special:
            raise ValueError(f"max_length={max_length} has no room for the {num_special} special tokens of each row")
        check_choice("truncation_side", side, SIDES)
        most = None if overflowing else max_length - num_special
        parts = []
        raw_encodings = self._encode_raw(inputs, add_special_tokens, is_split_into_words, most, side, exact)
        for index, raw in enumerate(raw_encodings):
            try:
                parts.append(cut(raw, max_length, strategy, side, stride, overflowing))
            except NoRoomError as reason:
                raise ValueError(f"text {index} cannot be cut to max_length={brief(max_length)}: {reason}") from None
        return parts

    def _encode_raw(
        self,
        inputs: list[Any],
        add_special_tokens: bool,
        is_split_into_words: bool,
        most: int | None = None,
        side: str = "right",
        exact: bool = True,
    ) -> Sequence[RawEncoding]:
        """Let the library tokenize; where it fails, say at which text. Of a long text only `most` tokens are kept."""

        def encode(some: list[Any]) -> Sequence[RawEncoding]:
            return self._tokenizer.encode_batch(
                some, is_pretokenized=bool(is_split_into_words), add_special_tokens=bool(add_special_tokens)
            )

        def encode_long(text: str) -> RawEncoding:
            refuse_lone_surrogate(text, "the text")  # it may be in what is not read
            return self._long_texts.encode(
                text, add_special_tokens=bool(add_special_tokens), most=most, side=side, exact=exact
            )

        def encode_all(some: list[Any]) -> Sequence[RawEncoding]:
            long = {i for i, one in enumerate(some) if not isinstance(one, str) or len(one) > LONG_TEXT}
            if not long:
                return encode(some)
            if is_split_into_words or not isinstance(some[0], str) or not self._long_texts.possible:
                for one in some:
                    _refuse_huge(one)
                return encode(some)
            others = iter(encode([one for i, one in enumerate(some) if i not in long]))
            return [encode_long(one) if i in long else next(others) for i, one in enumerate(some)]

        try:
            return encode_all(inputs)
        except BaseException as reason:
            if not is_library_error(reason):
                raise
        # The library does not tell which text it was: try them one by one.
        raw_encodings: list[RawEncoding] = []
        for index, one in enumerate(inputs):
            for text in strings(one):
                refuse_lone_surrogate(text, f"text {index}")
            with library_errors(ValueError, f"text {index} cannot be tokenized"):
                raw_encodings += encode_all([one])
        return raw_encodings

    @functools.cached_property
    def _long_texts(self) -> LongTexts:
        return LongTexts(self._tokenizer)

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
                multiple = check_int("pad_to_multiple_of", multiple, 1)
                if strategy != "do_not_truncate" and max_length is not None and max_length % multiple:
                    raise ValueError(
                        f"max_length={brief(max_length)} is not a multiple of pad_to_multiple_of={brief(multiple)}"
                    )
                width = -(-width // multiple) * multiple
        elif min(lengths, default=0) < width:
            shortest = lengths.index(min(lengths))
            raise ValueError(
                f"rows of different length do not make an array: row {shortest} has {lengths[shortest]} tokens, "
                f"row {lengths.index(width)} has {width}; add padding=True"
            )
        check_choice("padding_side", self.padding_side, SIDES)
        if self.padding_side == "right":
            return [slice(0, length) for length in lengths], width
        return [slice(width - length, width) for length in lengths], width


# ---------------------------------------------------------------------------------------------------------------------
# Arguments
# ---------------------------------------------------------------------------------------------------------------------


def _refuse_huge(text: Any) -> None:
    """Refuse a text that is not tokenized in pieces and for which the library could take all of the memory."""
    size = sum(map(len, strings(text)))
    if size > _MOST_CHARACTERS:
        raise ValueError(
            f"it has {size:,} characters. Pairs, lists of words, and the texts of some tokenizers can only be "
            f"tokenized whole, up to {_MOST_CHARACTERS:,} characters; split it first."
        )


def _is_one_id(ids: Any) -> bool:
    return isinstance(ids, (int, np.integer)) or (isinstance(ids, np.ndarray) and ids.ndim == 0)


def _strategy(name: str, value: bool | str, choices: tuple[str, ...]) -> str:
    """A strategy by its name; True means the first, False the last."""
    if isinstance(value, bool):
        return choices[0] if value else choices[-1]
    check_choice(name, value, choices)
    return value


def _clean_up(text: str) -> str:
    """Take out the spaces that WordPiece leaves before punctuation, as transformers' clean_up_tokenization does."""
    for ending in (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're"):
        text = text.replace(ending, ending.strip())
    return text
