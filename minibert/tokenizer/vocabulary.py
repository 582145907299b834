"""Tokens <-> ids, special tokens, and ids -> text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from minibert._utils.torch_interop import to_array
from minibert._utils.validation import brief, check_int
from minibert.tokenizer.files import LoadedTokenizer
from minibert.tokenizer.library_files import library_errors
from minibert.tokenizer.texts import shown
from minibert.tokenizer.transformers_classes import INSTEAD

if TYPE_CHECKING:
    from tokenizers import AddedToken


Ids = int | Sequence[int] | npt.NDArray[np.integer[Any]]

# These are sequences of ints, but nobody means them as ids.
_BUFFERS = (bytes, bytearray, memoryview)


def _special_token(name: str) -> tuple[property, property]:
    """Return the attributes of a special token: its text, and its id."""
    text = property(lambda self: self._special_tokens.get(name), doc=f"The tokenizer's {name}; None if it has none.")
    number = property(lambda self: self._vocab.get(self._special_tokens.get(name)), doc=f"Id of the {name}, or None.")
    return text, number


class Vocabulary:
    """The vocabulary of a loaded tokenizer: the base class of `BertTokenizer`. The subclass turns texts into ids."""

    bos_token, bos_token_id = _special_token("bos_token")
    eos_token, eos_token_id = _special_token("eos_token")
    unk_token, unk_token_id = _special_token("unk_token")
    sep_token, sep_token_id = _special_token("sep_token")
    pad_token, pad_token_id = _special_token("pad_token")
    cls_token, cls_token_id = _special_token("cls_token")
    mask_token, mask_token_id = _special_token("mask_token")

    def __init__(self, loaded: LoadedTokenizer) -> None:
        self._loaded = loaded
        self._tokenizer = loaded.tokenizer
        self._vocab = loaded.vocab
        self._special_tokens = loaded.special_tokens
        self.clean_up_tokenization_spaces = loaded.clean_up_tokenization_spaces

    @property
    def backend_tokenizer(self) -> Any:
        """What tokenizes, an object of the library `tokenizers`. All threads share it, so do not change it."""
        return self._tokenizer

    @property
    def vocab(self) -> dict[str, int]:
        """All tokens, added ones included, with their ids, in the order of the ids."""
        return dict(self._vocab)

    def get_vocab(self) -> dict[str, int]:
        """Return `vocab`, as transformers does under this name."""
        return self.vocab

    @property
    def vocab_size(self) -> int:
        """The number of tokens without added tokens; ``len(tokenizer)`` includes added tokens."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=False))

    def __len__(self) -> int:
        return len(self._vocab)

    def __bool__(self) -> bool:
        # Without this a tokenizer without tokens would be false, because `__len__` is 0.
        return True

    @property
    def do_lower_case(self) -> bool:
        """True if texts are lowercased."""
        return self._tokenizer.normalizer is not None and "a" in self._tokenizer.normalizer.normalize_str("A")

    if not TYPE_CHECKING:  # type checkers know which attributes there are

        def __getattr__(self, name: str) -> Any:
            remedy = f": {INSTEAD[name]}" if name in INSTEAD else ""
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{remedy}.")

    # --- special tokens ---

    @property
    def special_tokens_map(self) -> dict[str, str]:
        """The special tokens that have a name, by name."""
        return dict(self._special_tokens)

    @property
    def all_special_tokens(self) -> list[str]:
        """The special tokens, each once."""
        return list(dict.fromkeys([*self._special_tokens.values(), *self._loaded.extra_special_tokens]))

    @property
    def all_special_ids(self) -> list[int]:
        """The ids of `all_special_tokens`."""
        return [self._vocab[token] for token in self.all_special_tokens]

    @property
    def extra_special_tokens(self) -> list[str]:
        """The special tokens without a name of their own."""
        return list(self._loaded.extra_special_tokens)

    @property
    def added_tokens_decoder(self) -> dict[int, AddedToken]:
        """The added tokens by id; the special tokens are among them."""
        return dict(sorted(self._tokenizer.get_added_tokens_decoder().items()))

    def get_added_vocab(self) -> dict[str, int]:
        """Return the ids of the added tokens, by token."""
        return {token.content: token_id for token_id, token in self.added_tokens_decoder.items()}

    added_tokens_encoder = property(get_added_vocab)

    def get_special_tokens_mask(
        self, token_ids_0: Sequence[int], token_ids_1: None = None, already_has_special_tokens: bool = False
    ) -> list[int]:
        """Return 1 for each id of a special token and 0 for each other one, of one row as a call returns it.

        As in transformers, `already_has_special_tokens` must be true; ValueError if it is not, or with two lists.
        """
        if not already_has_special_tokens or token_ids_1 is not None:
            remedy = "For texts, call the tokenizer with return_special_tokens_mask=True."
            raise ValueError(f"expected one list of ids, and already_has_special_tokens=True. {remedy}")
        special = set(self.all_special_ids)
        return [int(token_id in special) for token_id in self._checked_ids(to_array(token_ids_0))]

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        """Return how many tokens the tokenizer adds to one text, or to a pair: 2 and 3 for BERT."""
        return int(self._tokenizer.num_special_tokens_to_add(bool(pair)))

    # --- tokens <-> ids ---

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> int | list[int]:
        """Return the id of a token, or the ids of a list; an unknown token gets the id of the unknown token."""
        if isinstance(tokens, str):
            return self._token_to_id(tokens)
        if not isinstance(tokens, (list, tuple)):
            raise TypeError(f"tokens are {shown(tokens)}; expected str, or a list of str.")
        return [self._token_to_id(token) for token in tokens]

    def convert_ids_to_tokens(self, ids: Ids, skip_special_tokens: bool = False) -> str | list[str]:
        """Return the token of an id, or the tokens of a sequence; ValueError for an id that has no token."""
        ids = to_array(ids)
        if is_one_id(ids):
            return str(self._tokenizer.id_to_token(self._checked_ids([ids])[0]))
        skipped = set(self.all_special_ids) if skip_special_tokens else set()
        return [str(self._tokenizer.id_to_token(id)) for id in self._checked_ids(ids) if id not in skipped]

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        """Join tokens to a text: "##" and the spaces between the parts of a word are removed."""
        parts = list(tokens)
        if isinstance(tokens, str) or not all(isinstance(token, str) for token in parts):
            raise TypeError(f"tokens are {shown(tokens)}; expected a list of str.")
        if self._tokenizer.decoder is None:
            return " ".join(parts)
        with library_errors(ValueError, "the tokens cannot be joined"):
            return str(self._tokenizer.decoder.decode(parts))

    # --- ids to text ---

    def decode(
        self,
        token_ids: Ids | Sequence[Ids],
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> Any:
        """Return the text of one sequence of ids, or the texts of several, as close to the original as possible.

        Parameters
        ----------
        token_ids : int, sequence of S int, or sequence of B such sequences
            Lists, arrays or tensors of torch.
        skip_special_tokens : bool
            Leave out special tokens, such as [CLS], [SEP] and [PAD].
        clean_up_tokenization_spaces : bool, optional
            Remove the space before punctuation and English contractions. Default: as in tokenizer_config.json. As in
            transformers, a BPE keeps these spaces, because they are the text's own.

        Raises
        ------
        ValueError
            An id is not in the vocabulary; the message names it.
        """
        rows: Any = to_array(token_ids)
        several = _is_sequence(rows) and len(rows) > 0 and _is_sequence(rows[0])
        clean = clean_up_tokenization_spaces
        clean = self.clean_up_tokenization_spaces if clean is None else clean
        is_bpe = type(self._tokenizer.model).__name__ == "BPE"
        texts = []
        for row in rows if several else [rows]:
            ids = self._checked_ids([row] if is_one_id(row) else to_array(row))
            with library_errors(ValueError, "the token ids cannot be decoded"):
                text: str = self._tokenizer.decode(ids, skip_special_tokens=bool(skip_special_tokens))
            texts.append(_clean_up(text) if clean and not is_bpe else text)
        return texts if several else texts[0]

    def batch_decode(
        self,
        sequences: Sequence[Ids] | npt.NDArray[np.integer[Any]],
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> list[str]:
        """Return the texts of B sequences of ids, or of one sequence, as a list; see `decode`."""
        if isinstance(sequences, int | np.integer):
            raise TypeError(f"sequences={brief(sequences)}; expected sequences of ids. For one id call decode.")
        texts = self.decode(sequences, skip_special_tokens, clean_up_tokenization_spaces) if len(sequences) else []
        return texts if isinstance(texts, list) else [texts]

    def _token_to_id(self, token: str) -> int:
        if not isinstance(token, str):
            raise TypeError(f"a token is {shown(token)}; expected str.")
        token_id: int | None = self._vocab.get(token, self.unk_token_id)
        if token_id is None:
            raise ValueError(f"token {token!r} is not in the vocabulary, and the vocabulary has no unknown token.")
        return token_id

    def _checked_ids(self, ids: Any) -> list[int]:
        """Refuse ids that are not in the vocabulary, because the library would omit them silently."""
        if isinstance(ids, (str, *_BUFFERS, Mapping)) or not isinstance(ids, (Sequence, np.ndarray)):
            raise TypeError(f"token ids are {shown(ids)}; expected int, or a list or array of int.")
        checked = []
        for position, value in enumerate(ids):
            if isinstance(value, (list, tuple, np.ndarray)) and not is_one_id(value):
                raise TypeError(f"token id {position} is a sequence; for several sequences call batch_decode.")
            token_id = check_int(f"token id {position}", value)
            if not 0 <= token_id < 2**32 or self._tokenizer.id_to_token(token_id) is None:
                last = next(reversed(self._vocab.values()))
                raise ValueError(f"token id {position} is {brief(token_id)}, which no token has; ids are 0 to {last}.")
            checked.append(token_id)
        return checked


def is_one_id(ids: Any) -> bool:
    """Return whether a value is one id and not a sequence of ids."""
    return isinstance(ids, (int, np.integer)) or (isinstance(ids, np.ndarray) and ids.ndim == 0)


def _is_sequence(ids: Any) -> bool:
    """Return whether an item of ids is itself a sequence of them."""
    ids = to_array(ids)
    return isinstance(ids, list | tuple | np.ndarray) and not is_one_id(ids)


def _clean_up(text: str) -> str:
    """Remove the spaces that WordPiece leaves before punctuation, as transformers' clean_up_tokenization does."""
    for ending in (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're"):
        text = text.replace(ending, ending.strip())
    return text
