"""Text -> token ids, offsets and word ids.

The tokens come from the `tokenizers` library. files.py sets up its tokenizer once and nothing changes it afterwards, so
threads can share it. raw_encoder.py calls it; encodings.py truncates, because the library would change its tokenizer;
batch.py pads. The way back, from ids to text, is in vocabulary.py.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from minibert._utils import keywords
from minibert._utils.torch_interop import to_array
from minibert._utils.validation import check_choice, check_int, check_return_tensors
from minibert.bert.config_json import stated_family
from minibert.checkpoint.files import ModelFiles, check_files
from minibert.models.options import LoadOptions
from minibert.tokenizer import batch, files
from minibert.tokenizer.batch import TokenizedBatch
from minibert.tokenizer.encodings import Encoding, RawOptions
from minibert.tokenizer.files import SIDES, load_tokenizer
from minibert.tokenizer.text_encoder import TextEncoder
from minibert.tokenizer.texts import Texts, as_batch, shown, split_pairs
from minibert.tokenizer.transformers_classes import SETTING_NAMES, SPECIAL_TOKEN_NAMES

SETTINGS = (*SETTING_NAMES, *SPECIAL_TOKEN_NAMES, *files.EXTRA_NAMES, "max_len")
"""The keywords of a from_pretrained that name a setting of the files."""
_VALUES: dict[str, Callable[[Encoding], Any]] = {
    "input_ids": lambda encoding: encoding.ids,
    "token_type_ids": lambda encoding: encoding.token_types,
    "attention_mask": lambda encoding: np.ones(len(encoding), dtype=np.int64),
    "special_tokens_mask": lambda encoding: encoding.special_tokens_mask,
    "offset_mapping": lambda encoding: encoding.offsets,
}
"""The values of a call that have a number, or two, for each token."""
_PADDED = ("input_ids", "token_type_ids", "attention_mask", "special_tokens_mask")


class BertTokenizer(TextEncoder):
    """Text -> token ids, equal to transformers' tokenizers of BERT and its family; made by `from_pretrained`.

    Any number of threads may use it at once. It differs from transformers in four points, to avoid surprises:

    - An empty `text_pair` is a text, for a single text too.
    - A special token that neither the files name nor the vocabulary has is None. transformers gives it a new id, which
      the model does not know.
    - Files that contradict each other about an id are refused.
    - With RoBERTa's add_prefix_space, offsets of the first token of a window begin after the space, as all others do.

    Attributes
    ----------
    model_max_length : int or None
        Tokens that fit into the model: the smaller of tokenizer_config.json's model_max_length, if it is below 10^9,
        and config.json's max_position_embeddings. None if neither is known. ``truncation=True`` truncates to it.
        Without truncation the tokenizer accepts a longer text, and the model refuses it.
    padding_side, truncation_side : {"right", "left"}
        The end of a row that is padded, and the end of a text that is truncated.
    model_input_names : sequence of str
        The values that a call returns unless it says otherwise.
    most_characters : int
        A text with more characters is refused if it can only be tokenized whole.
    """

    pad_token_type_id = 0
    is_fast = True
    backend = "tokenizers"

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | os.PathLike[str] | None = None,
        *,
        revision: str | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        token: str | bool | None = None,
        local_files_only: bool = False,
        subfolder: str = "",
        model_max_length: int | None = None,
        padding_side: str | None = None,
        truncation_side: str | None = None,
        clean_up_tokenization_spaces: bool | None = None,
        add_prefix_space: bool | None = None,
        **harmless: Any,
    ) -> BertTokenizer:
        """Load the tokenizer of a model on the hub, or in a folder.

        It reads tokenizer.json; if there is none, vocab.txt, or vocab.json and merges.txt of a RoBERTa. As in
        transformers 5, a class of the families in tokenizer_config.json takes only vocabulary, merges and added tokens
        from tokenizer.json: normalizer, splitting, prefix, limit of a word, decoder and layout are those of the class,
        with its settings do_lower_case (default true), strip_accents (default: as do_lower_case),
        tokenize_chinese_chars (default true) and add_prefix_space. With another class, or if tokenizer.json has another
        model than the class, tokenizer.json is used as it is. Its truncation and padding are ignored. If the files name
        neither a class nor a model type, the class that is called decides.

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
        model_max_length, padding_side, truncation_side, clean_up_tokenization_spaces : optional
            Used instead of those of the files.
        add_prefix_space : bool, optional
            The same; only RoBERTa and the classes of Unigram have it.
        **harmless
            Keywords of transformers at values that change no token, such as ``use_fast=True``, and special tokens that
            the model has under this name. ``do_lower_case=`` and other settings of the class are used if
            tokenizer_config.json does not have them; else they must be as there.

        Raises
        ------
        TypeError, ValueError
            A keyword is not known, or its value would change the tokens.
        ModelFormatError
            A file or a special token is missing, a file is damaged, or an id is not in the model's vocabulary.
        DownloadError
            The files could not be fetched.
        """
        call = "BertTokenizer.from_pretrained"
        name = keywords.given_name(call, name_or_path, harmless)
        called = "" if harmless.pop("_from_auto", False) else cls.__name__ if type(cls) is _Named else "BertTokenizer"
        known, own = keywords.TOKENIZER_KEYWORDS, cls.from_pretrained
        asked = keywords.check_keywords(call, harmless, known, settings=SETTINGS, function=own)
        max_len = asked.pop("max_len", None)
        for option, side in ("padding_side", padding_side), ("truncation_side", truncation_side):
            if side is not None:
                check_choice(option, side, SIDES)
        options = LoadOptions(
            revision=revision, cache_dir=cache_dir, token=token, local_files_only=local_files_only, subfolder=subfolder
        )
        files = options.locate(name)
        stated = files.settings("tokenizer_config.json")
        keywords.check_remote_code(call, harmless.get("trust_remote_code"), stated)
        changed = {key: asked[key] for key in SETTING_NAMES if isinstance(asked.get(key), bool) and key not in stated}
        changed |= {} if add_prefix_space is None else {"add_prefix_space": add_prefix_space}
        tokenizer = cls(load_tokenizer(files, changed, called))
        if add_prefix_space and "add_prefix_space" not in tokenizer.init_kwargs:
            raise ValueError("add_prefix_space=True has no effect on the tokens of this tokenizer. Leave it out.")
        tokenizer.name_or_path = os.fspath(name)
        tokenizer.check_asked(call, asked)
        limit = max_len if model_max_length is None else model_max_length
        if limit is not None:
            tokenizer.model_max_length = check_int("model_max_length", limit, 1)
        tokenizer.padding_side = padding_side or tokenizer.padding_side
        tokenizer.truncation_side = truncation_side or tokenizer.truncation_side
        if clean_up_tokenization_spaces is not None:
            tokenizer.clean_up_tokenization_spaces = bool(clean_up_tokenization_spaces)
        return tokenizer

    @classmethod
    def from_files(cls, files: ModelFiles) -> BertTokenizer:
        """Load the tokenizer from files that `locate` found, as `from_pretrained` does."""
        return cls(load_tokenizer(check_files(files)))

    def save_pretrained(self, save_directory: str | os.PathLike[str], **harmless: Any) -> tuple[str, ...]:
        """Write tokenizer.json, tokenizer_config.json and vocab.txt, and return their paths.

        minibert and transformers load them as the same tokenizer, with the tokens that were added. The folder is made
        if it does not exist; other files in it are not touched.

        Parameters
        ----------
        save_directory : str or path
        **harmless
            Keywords of transformers at values that change nothing, such as ``legacy_format=False``.

        Raises
        ------
        OSError
            A file cannot be written. A file that was there before is then as it was.
        """
        return files.save_tokenizer(self._loaded, self.init_kwargs, save_directory, harmless)

    def check_asked(self, call: str, asked: Mapping[str, Any]) -> None:
        """Compare the settings that a from_pretrained was given with those of the files.

        Raises
        ------
        ValueError
            A setting would change the tokens.
        """
        settings = dict.fromkeys(SETTINGS) | self._loaded.settings | self.special_tokens_map
        settings |= {"do_lower_case": self.do_lower_case} | dict.fromkeys(files.EXTRA_NAMES, self.extra_special_tokens)
        remedy = (
            "It would change the tokens, and the model was trained with its own. Leave it out; or change the setting "
            "in tokenizer_config.json, in a copy of the model's folder."
        )
        keywords.check_agreement(call, asked, settings, remedy)

    # --- text to ids ---

    def __call__(
        self,
        text: Texts | Sequence[Sequence[Any]],
        text_pair: Texts | None = None,
        *,
        add_special_tokens: bool = True,
        padding: bool | str = False,
        truncation: bool | str | None = None,
        max_length: int | None = None,
        stride: int = 0,
        is_split_into_words: bool = False,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        return_tensors: str | None = None,
        return_token_type_ids: bool | None = None,
        return_attention_mask: bool | None = None,
        return_overflowing_tokens: bool = False,
        return_special_tokens_mask: bool = False,
        return_offsets_mapping: bool = False,
        return_length: bool = False,
        **harmless: Any,
    ) -> TokenizedBatch:
        """Turn texts, or pairs of texts, into token ids for a model.

        The names and the results are transformers'. Without `return_tensors` they are lists: one list of ids for one
        text, and B lists for B texts, of different length unless they are padded. Arrays and tensors have one row per
        text, also for a single text. An empty text is a text ([CLS] [SEP]), also as `text_pair`.

        Parameters
        ----------
        text, text_pair : str, or list, tuple or array of B str
            With `is_split_into_words`: a list of str, or a list of B such lists. `text_pair` is as long as `text`.
            `text` may also be a list of B pairs, each of two texts.
        add_special_tokens : bool
            Put [CLS] before and [SEP] after each text.
        padding : bool or {"longest", "max_length", "do_not_pad"}
            Pad rows to the longest one (True), or to `max_length`. Without padding, arrays need rows of equal length.
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
        padding_side : {"right", "left"}, optional
            Default: the tokenizer's.
        return_tensors : {None, "np", "pt"}
            None: lists. "np": NumPy arrays of int64. "pt": tensors of torch.
        return_token_type_ids, return_attention_mask : bool
            Return "token_type_ids", "attention_mask". Default: if they are in `model_input_names`.
        return_overflowing_tokens : bool
            Return the truncated tokens in more rows, and "overflow_to_sample_mapping" of shape (rows,).
        return_special_tokens_mask, return_offsets_mapping, return_length : bool
            Return "special_tokens_mask" (B, S), "offset_mapping" (B, S, 2) in characters, "length" (B,) with padding.
        **harmless
            Keywords of transformers at values that change nothing, such as ``verbose=False``.

        Returns
        -------
        TokenizedBatch
            "input_ids", "token_type_ids", "attention_mask" of shape (B, S), int64, and the values chosen above.

        Raises
        ------
        TypeError
            A text is not a string; the message names its index.
        ValueError
            A text holds a lone surrogate, rows of an array differ in length, or `max_length` is too small.
        ImportError
            `return_tensors` is "pt", and torch is not installed.

        Examples
        --------
        >>> tokenizer = BertTokenizer.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")
        >>> tokenizer("first text")["input_ids"]
        [101, 2034, 3793, 102]
        >>> inputs = tokenizer(["first text", "second, longer text"], padding=True, return_tensors="np")
        >>> inputs["input_ids"].shape
        (2, 6)
        >>> inputs.tokens(0)
        ['[CLS]', 'first', 'text', '[SEP]', '[PAD]', '[PAD]']
        """
        keywords.check_keywords("BertTokenizer", harmless, keywords.CALL_KEYWORDS, function=type(self).__call__)
        tensor_type = check_return_tensors(return_tensors)
        padding = batch.choose_strategy("padding", padding, batch.PADDING)
        strategy, max_length = batch.choose_limit(truncation, max_length, padding, self.model_max_length)
        text, text_pair = split_pairs(text, text_pair, is_split_into_words)
        texts, pairs, single = as_batch(text, text_pair, is_split_into_words)
        cutting = self.truncation_side, True, check_int("stride", stride, 0), return_overflowing_tokens
        options = RawOptions(add_special_tokens, is_split_into_words, *cutting, self.most_characters)
        parts = self._encode(texts, pairs, options, strategy, max_length)
        encodings = [encoding for row in parts for encoding in row]
        self.warn_of_unknown(row[0] for row in parts)
        lengths = [len(encoding) for encoding in encodings]
        limits = (padding, strategy, max_length, pad_to_multiple_of)
        equal, can_pad = tensor_type is not None, self.pad_token_id is not None
        widths = batch.choose_widths(lengths, *limits, equal=equal, can_pad=can_pad)
        side = self.padding_side if padding_side is None else padding_side
        asked = {"token_type_ids": return_token_type_ids, "attention_mask": return_attention_mask}
        chosen = {
            name: name in self.model_input_names if is_asked is None else is_asked for name, is_asked in asked.items()
        }
        chosen |= {"special_tokens_mask": return_special_tokens_mask, "offset_mapping": return_offsets_mapping}
        names = ["input_ids", *(name for name, is_chosen in chosen.items() if is_chosen)]
        rows = {name: [_VALUES[name](encoding) for encoding in encodings] for name in names}
        data = self._padded(rows, widths, side, tensor_type)
        if return_offsets_mapping and tensor_type is None:
            data["offset_mapping"] = [[tuple(pair) for pair in row] for row in data["offset_mapping"]]
        if return_length:
            data["length"] = widths
        if return_overflowing_tokens:
            data["overflow_to_sample_mapping"] = [i for i, row in enumerate(parts) for _ in row]
        if tensor_type is not None:
            data = {name: batch.converted(name, value, tensor_type) for name, value in data.items()}
        elif single and not return_overflowing_tokens:
            data = {name: value[0] if isinstance(value[0], list) else value for name, value in data.items()}
        return TokenizedBatch(data, encodings, widths, side, self.pad_token)

    def pad(
        self, encoded_inputs: Any, padding: bool | str = True, max_length: int | None = None, **options: Any
    ) -> Any:
        """Pad rows that were tokenized without padding; DataCollatorWithPadding of transformers calls it.

        Parameters
        ----------
        encoded_inputs : mapping, or list of B mappings
            The values of a call, of one row or of B rows; or one mapping for each row. Ids, mask, token types and
            special-tokens mask are padded, and other values stay as they are.
        padding, max_length : as in a call
        **options
            pad_to_multiple_of, padding_side, return_tensors and return_attention_mask, as in a call.

        Raises
        ------
        TypeError, ValueError
            An option is wrong, there are no "input_ids", or rows of an array differ in length.
        """
        names = ("return_tensors", "pad_to_multiple_of", "padding_side", "return_attention_mask")
        tensor_type, multiple, side, masked = (options.pop(name, None) for name in names)
        keywords.check_keywords("BertTokenizer.pad", options, keywords.CALL_KEYWORDS, function=type(self).__call__)
        rows = encoded_inputs
        try:
            if not isinstance(rows, Mapping):
                rows = {name: [to_array(row[name]) for row in rows] for name in (rows[0] if len(rows) else ())}
            single = np.ndim(to_array(rows["input_ids"][0])) == 0 if len(rows["input_ids"]) else False
            data = {name: [value] if single else value for name, value in rows.items()}
            numbers = {name: [np.asarray(to_array(row)) for row in data[name]] for name in _PADDED if name in data}
            every = [row for values in numbers.values() for row in values]
            if any(row.ndim != 1 or (row.size and row.dtype.kind not in "biu") for row in every):
                raise TypeError("a row does not hold integers")
        except (LookupError, ArithmeticError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            described = f"encoded_inputs is {shown(rows)} ({error})"
            raise ValueError(f"{described}; expected input_ids, and lists of integers.") from error
        lengths = [len(row) for row in numbers["input_ids"]]
        padding = batch.choose_strategy("padding", padding, batch.PADDING)
        limits = (padding, *batch.choose_limit(False, max_length, padding, self.model_max_length), multiple)
        tensor_type, can_pad = check_return_tensors(tensor_type), self.pad_token_id is not None
        widths = batch.choose_widths(lengths, *limits, equal=tensor_type is not None, can_pad=can_pad)
        if "attention_mask" in self.model_input_names if masked is None else masked:
            numbers.setdefault("attention_mask", [np.ones(length, dtype=np.int64) for length in lengths])
        data |= self._padded(numbers, widths, self.padding_side if side is None else side, None)
        data = {name: value[0] if single else value for name, value in data.items()}
        return TokenizedBatch(data).convert_to_tensors(tensor_type)

    def _padded(
        self, rows: Mapping[str, list[Any]], widths: Sequence[int], side: str, tensor_type: str | None
    ) -> dict[str, Any]:
        """Return rows of numbers with their padding: lists, or arrays (B, S) if `tensor_type` is not None."""
        check_choice("padding_side", side, SIDES)
        # Without a padding token no row is padded, and this 0 is not used.
        fills = {
            "input_ids": self.pad_token_id or 0,
            "token_type_ids": self.pad_token_type_id,
            "special_tokens_mask": 1,
        }
        data = {name: batch.pad_rows(values, widths, side, fills.get(name, 0)) for name, values in rows.items()}
        if tensor_type is None:
            return {name: [row.tolist() for row in values] for name, values in data.items()}
        if not len(widths):
            data = {name: np.empty((0, 0, 2)[: 2 + (name == "offset_mapping")], dtype=np.int64) for name in data}
        return data

    def _room(self, pair: bool) -> int | None:
        return None if self.model_max_length is None else self.model_max_length - self.num_special_tokens_to_add(pair)

    max_len_single_sentence = property(lambda self: self._room(False), doc="Tokens of one text that fit, or None.")
    max_len_sentences_pair = property(lambda self: self._room(True), doc="Tokens of a pair that fit, or None.")

    def tokenize(
        self,
        text: str | Sequence[str],
        pair: str | Sequence[str] | None = None,
        add_special_tokens: bool = False,
        *,
        truncation: bool | str | None = None,
        max_length: int | None = None,
        is_split_into_words: bool = False,
        **harmless: Any,
    ) -> list[str]:
        """Return the tokens of one text; with `add_special_tokens`, [CLS] and [SEP] too.

        A list with one text is that text. With `is_split_into_words` the text is a list of words.
        """
        keywords.check_keywords("BertTokenizer.tokenize", harmless, keywords.CALL_KEYWORDS)
        return self.encodings(
            [_only_text("text", text, is_split_into_words)],
            None if pair is None else [_only_text("pair", pair, is_split_into_words)],
            truncation=truncation,
            max_length=max_length,
            add_special_tokens=add_special_tokens,
            is_split_into_words=is_split_into_words,
        )[0].tokens

    def encode(self, text: Any, text_pair: Any = None, add_special_tokens: bool = True, **options: Any) -> Any:
        """Return the ids of one text, with [CLS] and [SEP]: a list, or an array or tensor of shape (1, S).

        The options are those of `__call__`. A list of texts gives a list of ids for each.
        """
        options |= {"return_token_type_ids": False, "return_attention_mask": False}
        return self(text, text_pair, add_special_tokens=add_special_tokens, **options)["input_ids"]

    def __repr__(self) -> str:
        return f"BertTokenizer({len(self)} tokens, model_max_length={self.model_max_length})"


class AutoTokenizer:
    """The tokenizer of a checkpoint of any family: `from_pretrained` gives a `BertTokenizer`."""

    def __init__(self, *arguments: object, **keywords: object) -> None:
        raise TypeError("AutoTokenizer is not a tokenizer. Call AutoTokenizer.from_pretrained(name_or_path).")

    @classmethod
    def from_pretrained(cls, name_or_path: str | os.PathLike[str] | None = None, **options: Any) -> BertTokenizer:
        """Load the tokenizer of a model, as `BertTokenizer.from_pretrained` does.

        If the files name neither a class nor a model type, tokenizer.json is used as it is.

        Raises
        ------
        ModelFormatError
            config.json names a type without BERT's forward; or as in `BertTokenizer.from_pretrained`.
        """
        name = keywords.given_name("AutoTokenizer.from_pretrained", name_or_path, options)
        stated_family(LoadOptions.split(options)[0].locate(name).settings("config.json"))
        return BertTokenizer.from_pretrained(name, _from_auto=True, **options)


BertTokenizerFast = BertTokenizer
"""The older name of transformers, whose tokenizers of this name were the fast ones; in transformers 5 they are one."""


class _Named(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, BertTokenizer) and value._loaded.kind.name == cls.__name__


@functools.cache
def named_class(name: str) -> Any:
    """Return `BertTokenizer` under another name: its instances are the tokenizers whose files name this class."""
    return _Named(name, (BertTokenizer,), {"__doc__": BertTokenizer.__doc__, "__module__": "minibert"})


def _only_text(name: str, value: Any, is_split_into_words: bool) -> Any:
    """Return one text, or the only text of a list; transformers drops all texts but the first, silently."""
    text_type = list | tuple if is_split_into_words else str
    if isinstance(value, list | tuple) and len(value) == 1 and isinstance(value[0], text_type):
        return value[0]
    if not isinstance(value, text_type):
        expected = "one list of words" if is_split_into_words else "one str"
        raise TypeError(f"{name} is {shown(value)}; expected {expected}. For several texts call the tokenizer itself.")
    return value
