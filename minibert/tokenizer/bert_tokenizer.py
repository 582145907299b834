"""Text -> token ids, offsets and word ids.

The tokens come from the `tokenizers` library. files.py sets up its tokenizer once and nothing changes it afterwards, so
threads can share it. raw_encodings.py calls it. encodings.py truncates and pads, because the library would change its
tokenizer for that.
"""

from __future__ import annotations

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
    TokenizedBatch,
    cut,
    cut_windows,
    padded_array,
)
from minibert.tokenizer.files import SIDES, LoadedTokenizer, library_errors, load_tokenizer
from minibert.tokenizer.raw_encodings import RawEncoder
from minibert.tokenizer.texts import Texts, as_batch, shown

__all__ = ["BertTokenizer"]

PADDING = ("longest", "max_length", "do_not_pad")
TRUNCATION = ("longest_first", "only_first", "only_second", "do_not_truncate")

# These are sequences of ints, but nobody means them as ids.
_BUFFERS = (bytes, bytearray, memoryview)


# --- the tokenizer ----------------------------------------------------------------------------------------------------


def _special_token(name: str) -> property:
    def token(self: BertTokenizer) -> str | None:
        return self._special_tokens.get(name)

    return property(token, doc=f"The tokenizer's {name}; None if it does not have one.")


def _special_token_id(name: str) -> property:
    def token_id(self: BertTokenizer) -> int | None:
        token = self._special_tokens.get(name)
        return None if token is None else self._vocab[token]

    return property(token_id, doc=f"Id of the tokenizer's {name}; None if it does not have one.")


class BertTokenizer:
    """Text -> token ids, equal to transformers' BertTokenizer; made by `from_pretrained`.

    Any number of threads may use it at once. It differs from transformers in four points, to avoid surprises:

    - Arrays are always 2-D.
    - An empty `text_pair` is a text, for a single text too.
    - A special token that neither the files name nor the vocabulary has is None. transformers gives it a new id, which
      the model does not know.
    - Files that contradict each other about an id are refused.

    Attributes
    ----------
    model_max_length : int or None
        Tokens that fit into the model: the smaller of tokenizer_config.json's model_max_length, if it is below 10^9,
        and config.json's max_position_embeddings. None if neither is known. ``truncation=True`` truncates to it.
        Without truncation the tokenizer accepts a longer text, and the model refuses it.
    padding_side, truncation_side : {"right", "left"}
        The end of a row that is padded, and the end of a text that is truncated.
    """

    cls_token, cls_token_id = _special_token("cls_token"), _special_token_id("cls_token")
    sep_token, sep_token_id = _special_token("sep_token"), _special_token_id("sep_token")
    pad_token, pad_token_id = _special_token("pad_token"), _special_token_id("pad_token")
    unk_token, unk_token_id = _special_token("unk_token"), _special_token_id("unk_token")
    mask_token, mask_token_id = _special_token("mask_token"), _special_token_id("mask_token")

    def __init__(self, loaded: LoadedTokenizer) -> None:
        if not isinstance(loaded, LoadedTokenizer):
            raise TypeError(
                f"loaded is {shown(loaded)}; expected a LoadedTokenizer. Make a tokenizer with "
                "BertTokenizer.from_pretrained(name_or_path)."
            )
        self._tokenizer = loaded.tokenizer
        self._raw = RawEncoder(loaded.tokenizer)
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

        It reads tokenizer.json, or vocab.txt if there is no tokenizer.json. As in transformers, three settings of
        tokenizer_config.json override tokenizer.json: do_lower_case (default true), strip_accents (default: as
        do_lower_case) and tokenize_chinese_chars (default true). They override nothing if tokenizer_class is
        PreTrainedTokenizerFast or TokenizersBackend, or if the normalizer or the model in tokenizer.json is not BERT's.
        Truncation and padding that tokenizer.json stores are ignored.

        Parameters
        ----------
        name_or_path : str or path
            A hub id, such as "bert-base-uncased", or a folder.
        revision : str, optional
            Branch, tag or commit on the hub.
        cache_dir : str or path, optional
            Folder for downloads; default: the hub's usual cache.
        token : str or bool, optional
            Hub token for private models.
        local_files_only : bool
            Never use the network.
        subfolder : str
            Folder of the files inside the model.

        Raises
        ------
        ModelFormatError
            A file or a special token is missing, a file is damaged, or an id is not in the model's vocabulary.
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
        """Load the tokenizer from files that `locate` has found, as `from_pretrained` does."""
        return cls(load_tokenizer(check_files(files)))

    # --- text to ids ---

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

        The names and the results are transformers'. The arrays are NumPy's and have one row per text, also for a single
        text. An empty text is a text ([CLS] [SEP]), also as `text_pair`. An empty list gives arrays of shape (0, 0).

        Parameters
        ----------
        text, text_pair : str, or list, tuple or array of B str
            With `is_split_into_words`: a list of str, or a list of B such lists. `text_pair` is as long as `text`.
        add_special_tokens : bool
            Put [CLS] before and [SEP] after each text.
        padding : bool or {"longest", "max_length", "do_not_pad"}
            Pad rows to the longest one (True), or to `max_length`. Without padding all rows must have the same length.
        truncation : bool or {"longest_first", "only_first", "only_second", "do_not_truncate"}, optional
            Truncate to `max_length` tokens, special tokens included. Of a pair, truncate the longer text first (True),
            or only one of the two. Default: True if `max_length` is given and `padding` is not.
        max_length : int, optional
            In tokens; default `model_max_length`.
        stride : int
            Tokens that a row of overflowing tokens repeats from the row before it.
        is_split_into_words : bool
            The texts are lists of words.
        pad_to_multiple_of : int, optional
            Round the padded length up to a multiple of this.
        return_tensors : {None, "np"}
            The result is NumPy arrays in both cases.
        return_token_type_ids, return_attention_mask : bool
            Return "token_type_ids", "attention_mask".
        return_overflowing_tokens : bool
            Return the truncated tokens in more rows, and "overflow_to_sample_mapping" of shape (rows,).
        return_special_tokens_mask, return_offsets_mapping, return_length : bool
            Return "special_tokens_mask" (B, S), "offset_mapping" (B, S, 2) in characters, "length" (B,) with padding.

        Returns
        -------
        TokenizedBatch
            "input_ids", "token_type_ids", "attention_mask" of shape (B, S), int64, and the arrays chosen above.

        Raises
        ------
        TypeError
            A text is not a string; the message names its index.
        ValueError
            A text holds a lone surrogate, rows without padding differ in length, or `max_length` is too small.

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
                f"return_tensors={brief(return_tensors)}; minibert returns NumPy arrays only: give 'np' or None."
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
        spans, width = self._spans(encodings, padding, strategy, max_length, pad_to_multiple_of)

        def padded(rows: Callable[[Encoding], Int64Array], fill: int) -> Int64Array:
            return padded_array([rows(encoding) for encoding in encodings], spans, width, fill)

        # Without a padding token no row is padded, and this 0 is not used.
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
        return TokenizedBatch(arrays, encodings, spans, self.pad_token)

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
        """Tokenize texts for a packed batch: one `Encoding` per text, truncated but never padded.

        Parameters are those of `__call__`. `n_truncated` of each encoding counts the tokens that were truncated.

        Parameters
        ----------
        truncation_side : {"right", "left"}, optional
            Default: the tokenizer's.
        exact : bool
            Count all truncated tokens. If False, a long text is read only as far as needed, and `n_truncated` of a
            truncated text is at least 1.
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
            Tokens of a window, special tokens and those of the prompt included.
        stride : int
            Tokens that a window repeats from the window before it.
        prompt : str
            Put before every text; every window holds its tokens.

        Returns
        -------
        list of B lists of Encoding
            At least one window per text. Offsets count from the start of the prompt.

        Raises
        ------
        TypeError, ValueError
            `texts` is one str, one of them is not a str, or a window is too small: it must have room for more than
            `stride` tokens of the text.
        """
        max_length, stride = check_int("max_length", max_length, 1), check_int("stride", stride, 0)
        if isinstance(texts, str) or not isinstance(prompt, str):
            raise TypeError(f"texts is {shown(texts)}, prompt is {shown(prompt)}; expected a list of str, and a str.")
        found = []
        inputs = [prompt + text for text in as_batch(texts, None, False)[0]]
        for index, raw in enumerate(self._raw.encode(inputs)):
            try:
                found.append(cut_windows(raw, max_length, stride, len(prompt)))
            except NoRoomError as reason:
                raise ValueError(f"text {index} cannot be cut into windows of {max_length} tokens: {reason}.") from None
        return found

    def last_cut(self, text: str) -> int | None:
        """Return the last index at which a text can be cut so that the two parts have the tokens of the whole text.

        This holds for any text that follows. The result is None if there is no such index near the end of the text, or
        if none is known because the tokenizer is not BERT's.
        """
        return self._raw.long_texts.last_cut(text)

    def tokenize(self, text: str, pair: str | None = None, add_special_tokens: bool = False) -> list[str]:
        """Return the tokens of one text; with `add_special_tokens`, [CLS] and [SEP] too."""
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
        """Return the ids of one text, with [CLS] and [SEP]."""
        encoding = self._single(text, text_pair, add_special_tokens, truncation, max_length)
        return [int(token_id) for token_id in encoding.ids]

    # --- ids to text ---

    def decode(
        self,
        token_ids: int | Sequence[int] | npt.NDArray[np.integer[Any]],
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> str:
        """Return the text of one sequence of ids, as near to the original as the vocabulary allows.

        Parameters
        ----------
        token_ids : int, or sequence of S int
        skip_special_tokens : bool
            Leave out special tokens, such as [CLS], [SEP] and [PAD].
        clean_up_tokenization_spaces : bool, optional
            Remove the space before punctuation and English contractions. Default: as in tokenizer_config.json.

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
        """Return the texts of B sequences of ids; see `decode`."""
        if isinstance(sequences, (str, *_BUFFERS, Mapping)):
            raise TypeError(f"sequences is {shown(sequences)}; expected a list or array of sequences of ids.")
        return [self.decode(ids, skip_special_tokens, clean_up_tokenization_spaces) for ids in sequences]

    # --- the vocabulary ---

    @property
    def vocab(self) -> dict[str, int]:
        """All tokens, added ones included, with their ids, in the order of the ids."""
        return dict(self._vocab)

    def get_vocab(self) -> dict[str, int]:
        """Return `vocab`; transformers has both names."""
        return self.vocab

    @property
    def vocab_size(self) -> int:
        """Number of tokens without the added ones; ``len(tokenizer)`` counts those too."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=False))

    def __len__(self) -> int:
        return len(self._vocab)

    def __bool__(self) -> bool:
        # Without this a tokenizer without tokens would be false, because `__len__` is 0.
        return True

    def __repr__(self) -> str:
        return f"BertTokenizer({len(self)} tokens, model_max_length={self.model_max_length})"

    @property
    def do_lower_case(self) -> bool:
        """True if texts are lowercased."""
        return bool(getattr(self._tokenizer.normalizer, "lowercase", False))

    @property
    def all_special_tokens(self) -> list[str]:
        """The special tokens, each once."""
        return list(dict.fromkeys([*self._special_tokens.values(), *self._extra_special_tokens]))

    @property
    def all_special_ids(self) -> list[int]:
        """The ids of `all_special_tokens`."""
        return [self._vocab[token] for token in self.all_special_tokens]

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        """Return how many tokens the tokenizer adds to one text, or to a pair: 2 and 3 for BERT."""
        return int(self._tokenizer.num_special_tokens_to_add(bool(pair)))

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> int | list[int]:
        """Return the id of a token, or the ids of a list; an unknown token gets the id of the unknown token."""
        if isinstance(tokens, str):
            return self._token_to_id(tokens)
        if not isinstance(tokens, (list, tuple)):
            raise TypeError(f"tokens are {shown(tokens)}; expected str, or a list of str.")
        return [self._token_to_id(token) for token in tokens]

    def convert_ids_to_tokens(
        self, ids: int | Sequence[int] | npt.NDArray[np.integer[Any]], skip_special_tokens: bool = False
    ) -> str | list[str]:
        """Return the token of an id, or the tokens of a sequence; ValueError for an id that has no token."""
        if _is_one_id(ids):
            return str(self._tokenizer.id_to_token(self._checked_ids([ids])[0]))
        skipped = set(self.all_special_ids) if skip_special_tokens else set()
        return [
            str(self._tokenizer.id_to_token(token_id)) for token_id in self._checked_ids(ids) if token_id not in skipped
        ]

    # --- private methods ---

    def _single(
        self,
        text: str,
        pair: str | None,
        add_special_tokens: bool,
        truncation: bool | str | None,
        max_length: int | None,
    ) -> Encoding:
        """Tokenize one text; refuse a list, because a result for its first text only would surprise."""
        for name, value in ("text", text), ("pair", pair):
            if not isinstance(value, str) and not (name == "pair" and value is None):
                raise TypeError(f"{name} is {shown(value)}; expected one str. For a list call the tokenizer itself.")
        return self.encodings(
            [text],
            None if pair is None else [pair],
            truncation=truncation,
            max_length=max_length,
            add_special_tokens=add_special_tokens,
        )[0]

    def _token_to_id(self, token: str) -> int:
        if not isinstance(token, str):
            raise TypeError(f"a token is {shown(token)}; expected str.")
        token_id: int | None = self._vocab.get(token, self.unk_token_id)
        if token_id is None:
            raise ValueError(
                f"token {token!r} is not in the vocabulary, and the vocabulary does not have an unknown token. "
                "Give tokens of `vocab` only."
            )
        return token_id

    def _checked_ids(self, ids: Any) -> list[int]:
        """Refuse ids that are not in the vocabulary, because the library would omit them silently."""
        if isinstance(ids, (str, *_BUFFERS, Mapping)) or not isinstance(ids, (Sequence, np.ndarray)):
            raise TypeError(f"token ids are {shown(ids)}; expected int, or a list or array of int.")
        checked = []
        for position, value in enumerate(ids):
            if isinstance(value, (list, tuple, np.ndarray)) and not _is_one_id(value):
                raise TypeError(f"token id {position} is a sequence; for several sequences call batch_decode.")
            token_id = check_int(f"token id {position}", value)
            if not 0 <= token_id < 2**32 or self._tokenizer.id_to_token(token_id) is None:
                last = next(reversed(self._vocab.values()))
                raise ValueError(
                    f"token id {brief(token_id)} at position {position} has no token; ids run from 0 to {last}."
                )
            checked.append(token_id)
        return checked

    def _limit(self, truncation: bool | str | None, max_length: int | None, padding: str) -> tuple[str, int | None]:
        """Return the truncation strategy and the length for these arguments, with transformers' defaults."""
        if truncation is None:
            truncation = max_length is not None and padding == "do_not_pad"
        strategy = _strategy("truncation", truncation, TRUNCATION)
        needed = strategy != "do_not_truncate" or padding == "max_length"
        if max_length is not None:
            max_length = check_int("max_length", max_length, 1)
            if not needed:
                warn_caller(
                    f"max_length={brief(max_length)} has no effect: add truncation=True to truncate texts to it, "
                    "or padding='max_length' to pad them to it.",
                )
            return strategy, max_length
        if needed and self.model_max_length is None:
            raise ValueError(
                f"truncation={truncation!r}, padding={padding!r} need max_length=: neither tokenizer_config.json nor "
                "config.json says how many tokens this model takes."
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
        """Tokenize checked texts: one encoding for each; if `overflowing`, also those of the truncated tokens."""
        if strategy == "only_second" and pairs is None:
            raise ValueError("truncation='only_second' needs text_pair=; for single texts use truncation=True.")
        inputs = texts if pairs is None else list(zip(texts, pairs, strict=True))
        if strategy == "do_not_truncate" or max_length is None:
            return [[Encoding(raw)] for raw in self._raw.encode(inputs, add_special_tokens, is_split_into_words)]
        num_special = self.num_special_tokens_to_add(pair=pairs is not None) if add_special_tokens else 0
        if max_length < num_special:
            raise ValueError(
                f"max_length={max_length} has no room for the {num_special} special tokens of each row; "
                f"give at least {num_special}."
            )
        check_choice("truncation_side", side, SIDES)
        most = None if overflowing else max_length - num_special
        parts = []
        raw_encodings = self._raw.encode(inputs, add_special_tokens, is_split_into_words, most, side, exact)
        for index, raw in enumerate(raw_encodings):
            try:
                parts.append(cut(raw, max_length, strategy, side, stride, overflowing))
            except NoRoomError as reason:
                raise ValueError(f"text {index} cannot be cut to max_length={brief(max_length)}: {reason}.") from None
        return parts

    def _spans(
        self, encodings: list[Encoding], padding: str, strategy: str, max_length: int | None, multiple: int | None
    ) -> tuple[list[slice], int]:
        """Return the columns of each row's tokens, and the width of all rows."""
        lengths = [len(encoding) for encoding in encodings]
        width = max(lengths, default=0)
        if padding != "do_not_pad":
            if self.pad_token_id is None:
                raise ValueError("this tokenizer has no padding token; tokenize without padding=.")
            if padding == "max_length" and max_length is not None and lengths:
                if width > max_length:
                    row = lengths.index(width)
                    raise ValueError(f"row {row} has {width} tokens, max_length={max_length}; add truncation=True.")
                width = max_length
            if multiple is not None:
                multiple = check_int("pad_to_multiple_of", multiple, 1)
                if strategy != "do_not_truncate" and max_length is not None and max_length % multiple:
                    raise ValueError(
                        f"max_length={brief(max_length)} is not a multiple of pad_to_multiple_of={brief(multiple)}; "
                        "change one of them."
                    )
                width = -(-width // multiple) * multiple
        elif min(lengths, default=0) < width:
            shortest = lengths.index(min(lengths))
            raise ValueError(
                f"rows of different length do not make an array: row {shortest} has {lengths[shortest]} tokens, "
                f"row {lengths.index(width)} has {width}; add padding=True."
            )
        check_choice("padding_side", self.padding_side, SIDES)
        if self.padding_side == "right":
            return [slice(0, length) for length in lengths], width
        return [slice(width - length, width) for length in lengths], width


# --- arguments --------------------------------------------------------------------------------------------------------


def _is_one_id(ids: Any) -> bool:
    return isinstance(ids, (int, np.integer)) or (isinstance(ids, np.ndarray) and ids.ndim == 0)


def _strategy(name: str, value: bool | str, choices: tuple[str, ...]) -> str:
    """Return the name of a strategy; True means the first of `choices`, False the last."""
    if isinstance(value, bool):
        return choices[0] if value else choices[-1]
    check_choice(name, value, choices)
    return value


def _clean_up(text: str) -> str:
    """Remove the spaces that WordPiece leaves before punctuation, as transformers' clean_up_tokenization does."""
    for ending in (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're"):
        text = text.replace(ending, ending.strip())
    return text
