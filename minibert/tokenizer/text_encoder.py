"""`TextEncoder`: texts -> encodings, truncated or cut into windows but not padded."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Sequence
from typing import Any, Self

from minibert._utils.reporting import warn_caller
from minibert._utils.validation import brief, check_choice, check_int
from minibert.tokenizer import batch, files
from minibert.tokenizer.encodings import Encoding, NoRoomError, RawOptions, cut, cut_windows
from minibert.tokenizer.files import SIDES, LoadedTokenizer
from minibert.tokenizer.raw_encoder import RawEncoder
from minibert.tokenizer.texts import Texts, as_batch, shown
from minibert.tokenizer.vocabulary import Vocabulary

_NOT_OF_IDS = ("version", "truncation", "padding", "decoder")  # of tokenizer.json


class TextEncoder(Vocabulary):
    """The base class of `BertTokenizer`: what the models and the corpora call, and the settings that decide ids.

    Its attributes are described there.
    """

    most_characters = RawOptions().most_characters

    def __init__(self, loaded: LoadedTokenizer) -> None:
        if not isinstance(loaded, LoadedTokenizer):
            raise TypeError(f"loaded is {shown(loaded)}; expected a LoadedTokenizer, as from_pretrained makes.")
        super().__init__(loaded)
        self._raw = RawEncoder(loaded.tokenizer)
        self.model_input_names = loaded.model_input_names
        self.model_max_length = loaded.model_max_length
        self.padding_side, self.truncation_side = loaded.padding_side, loaded.truncation_side
        self.name_or_path = loaded.source
        self._warned = False

    @property
    def init_kwargs(self) -> dict[str, Any]:
        """The settings under their names in tokenizer_config.json."""
        settings: dict[str, Any] = self._loaded.settings | self.special_tokens_map
        if self.extra_special_tokens:
            settings["extra_special_tokens"] = self.extra_special_tokens
        if self.model_max_length is not None:
            settings["model_max_length"] = self.model_max_length
        if self._tokenizer.encode_special_tokens:
            settings["split_special_tokens"] = True
        for name in ("padding_side", "truncation_side", "clean_up_tokenization_spaces", "model_input_names"):
            settings[name] = getattr(self, name)
        return settings

    def fingerprint_parts(self) -> dict[str, Any]:
        """Return what decides the ids of a text, as JSON can hold it; without the limit, and what is for decoding."""
        library = json.loads(self._tokenizer.to_str())
        left_out = ("model_max_length", "clean_up_tokenization_spaces")
        settings = {name: value for name, value in self.init_kwargs.items() if name not in left_out}
        return {**{name: value for name, value in library.items() if name not in _NOT_OF_IDS}, "settings": settings}

    def silenced(self) -> Self:
        """Return a copy that does not warn of unknown tokens."""
        silenced = copy.copy(self)
        silenced._warned = True
        return silenced

    def add_special_token(self, token: str) -> None:
        """Read a token of the vocabulary as one special token, as it is written, wherever it is in a text."""
        files.add_special_token(self._tokenizer, token)
        self._raw = RawEncoder(self._tokenizer)  # it remembers what it knows about the tokens

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
            truncated text is at least 1. With truncation_side="left" its words are then not counted from its start.
        """
        strategy, max_length = batch.choose_limit(truncation, max_length, "do_not_pad", self.model_max_length)
        side = self.truncation_side if truncation_side is None else truncation_side
        how = add_special_tokens, is_split_into_words, side, exact
        options = RawOptions(*how, most_characters=self.most_characters)
        parts = self._encode(*as_batch(texts, pairs, is_split_into_words)[:2], options, strategy, max_length)
        return [row[0] for row in parts]

    def num_read(self, text: str, pair: str | None = None, *, max_length: int) -> int:
        """Return how many characters of a text, or of a pair, `encodings` reads first with ``exact=False``."""
        options = RawOptions(side=self.truncation_side, exact=False)
        return self._raw.num_read(text if pair is None else (text, pair), options, max_length)

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
        windows = []
        inputs = [prompt + text for text in as_batch(texts, None, False)[0]]
        for index, raw in enumerate(self._raw.encode(inputs, RawOptions(most_characters=self.most_characters))):
            try:
                windows.append(cut_windows(raw, max_length, stride, len(prompt)))
            except NoRoomError as reason:
                raise ValueError(f"text {index} cannot be cut into windows of {max_length} tokens: {reason}.") from None
        return windows

    def _encode(
        self, texts: list[Any], pairs: list[Any] | None, options: RawOptions, strategy: str, max_length: int | None
    ) -> list[list[Encoding]]:
        """Tokenize checked texts: one encoding for each; if `overflowing`, also those of the truncated tokens."""
        if strategy == "only_second" and pairs is None:
            raise ValueError("truncation='only_second' needs text_pair=; for single texts use truncation=True.")
        inputs = texts if pairs is None else list(zip(texts, pairs, strict=True))
        if strategy == "do_not_truncate" or max_length is None:
            return [[Encoding(raw)] for raw in self._raw.encode(inputs, options)]
        num_special = self.num_special_tokens_to_add(pair=pairs is not None) if options.add_special_tokens else 0
        if max_length < num_special:
            raise ValueError(f"max_length={max_length} has no room for the {num_special} special tokens of each row.")
        check_choice("truncation_side", options.side, SIDES)
        most = None if options.overflowing else max_length - num_special
        options = options._replace(exact=options.exact or strategy == "only_first")
        parts = []
        for index, raw in enumerate(self._raw.encode(inputs, options, most)):
            try:
                parts.append(cut(raw, max_length, strategy, options))
            except NoRoomError as reason:
                raise ValueError(f"text {index} cannot be cut to max_length={brief(max_length)}: {reason}.") from None
        return parts

    def warn_of_unknown(self, encodings: Iterable[Encoding]) -> None:
        """Warn, once for a tokenizer, if the vocabulary does not have most of the tokens of a text."""
        # Lists count faster than arrays are made.
        raws, unknown = (encoding._raw for encoding in encodings), self.unk_token_id
        mostly = (2 * list(raw.ids).count(unknown) > len(raw) - sum(raw.special_tokens_mask) for raw in raws)
        if not self._warned and any(mostly):
            self._warned = True
            warn_caller(
                f"Most tokens of a text are {self.unk_token}: {self.name_or_path} does not know its script or language."
                " Take a multilingual model, or look at do_lower_case in tokenizer_config.json. It is said once."
            )
