"""The JSON lines of Google's extract_features.py: every token of a text or a pair, with the values of some layers.

Source: google-research/bert, extract_features.py. The field names (``linex_index`` too), the rounding to 6 decimals,
the " ||| " between the texts of a pair, and the way to cut them are the same. Layers are numbered as there: 0 is the
first layer's output. So positive numbers are one less than in transformers; negative ones are equal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from minibert._utils.validation import IntArray
from minibert.bert.packed import PackedBatch
from minibert.models.bert_model import BertModel
from minibert.sentence.batching import in_chunks
from minibert.tokenizer.bert_tokenizer import BertTokenizer

__all__ = ["google_layers", "google_lines"]

_PAIR = re.compile(r"^(.*) \|\|\| (.*)$")


def google_layers(layers: Sequence[int], num_hidden_layers: int) -> tuple[int, ...]:
    """Convert Google's layer numbers to those of hidden states: i -> i + 1, and -1 -> L.

    Raises
    ------
    ValueError
        A number is not in [-L, L).
    """
    L = num_hidden_layers
    for layer in layers:
        if not -L <= layer < L:
            raise ValueError(
                f"layers={layer}; expected 0 to {L - 1}, or -{L} to -1, in Google's numbering of {L} layers. The "
                "embeddings' output does not have a number there."
            )
    return tuple(layer % L + 1 for layer in layers)


def google_lines(
    model: BertModel,
    tokenizer: BertTokenizer,
    numbered_texts: Iterable[tuple[int, str | None]],
    *,
    layers: Sequence[int] = (-1, -2, -3, -4),
    max_length: int = 128,
    batch_size: int = 32,
) -> Iterator[tuple[str, int, int]]:
    """Yield for each text its line of JSON (without newline), its number of tokens, and how many were cut off.

    Parameters
    ----------
    model, tokenizer
        Of the same model.
    numbered_texts : iterable of (int, str or None)
        The value of ``linex_index``, and the text or the pair with " ||| " between. For None the features are null.
    layers : sequence of int
        In Google's numbering, see `google_layers`.
    max_length : int
        In tokens, [CLS] and [SEP] included. Longer texts are cut; in a pair the longer text is always cut first.
    batch_size : int
        Texts that are computed together.

    Raises
    ------
    ValueError
        The model does not have a layer, or does not accept `max_length`.
    """
    states = google_layers(layers, model.config.num_hidden_layers)
    most = model.config.max_position_embeddings
    if not 3 <= max_length <= most:
        raise ValueError(f"max_length={max_length}; expected 3 to {most} (max_position_embeddings).")
    for chunk in in_chunks(numbered_texts, batch_size):
        made = [_make(tokenizer, text, max_length) for _, text in chunk if text is not None]
        computed = _compute(model, [one[1] for one in made], [one[2] for one in made], states)
        found = iter(zip(made, computed, strict=True))
        for number, text in chunk:
            if text is None:
                yield json.dumps({"linex_index": number, "features": None}), 0, 0
                continue
            (tokens, _, _, n_cut), values = next(found)
            features = [
                {
                    "token": token,
                    "layers": [
                        {"index": layer, "values": [round(value, 6) for value in vector.tolist()]}
                        for layer, vector in zip(layers, of_token, strict=True)
                    ],
                }
                for token, of_token in zip(tokens, values, strict=True)
            ]
            yield json.dumps({"linex_index": number, "features": features}), len(tokens), n_cut


def _make(tokenizer: BertTokenizer, text: str, limit: int) -> tuple[list[str], IntArray, IntArray, int]:
    """Return a line's tokens, ids and token types, and how many of its tokens are cut off."""
    stripped = text.strip()
    pair = _PAIR.match(stripped)
    parts = [
        (list(encoding.tokens), list(encoding.ids), len(encoding) + encoding.n_truncated)
        for encoding in tokenizer.encodings(
            list(pair.groups()) if pair else [stripped],
            max_length=limit,
            truncation_side="right",
            add_special_tokens=False,
        )
    ]
    lengths = [length for _, _, length in parts]
    kept = [min(length, limit) for length in lengths]
    while sum(kept) > limit - 1 - len(parts):
        longest = 0 if len(kept) == 1 or kept[0] > kept[1] else 1  # of two equally long texts the second is cut
        kept[longest] -= 1
    tokens, ids, types = [str(tokenizer.cls_token)], [tokenizer.cls_token_id], [0]
    for number, ((part_tokens, part_ids, _), length) in enumerate(zip(parts, kept, strict=True)):
        tokens += [*part_tokens[:length], str(tokenizer.sep_token)]
        ids += [*part_ids[:length], tokenizer.sep_token_id]
        types += [number] * (length + 1)
    return tokens, np.array(ids), np.array(types), sum(lengths) - sum(kept)


def _compute(model: BertModel, ids: list[IntArray], types: list[IntArray], states: tuple[int, ...]) -> list[np.ndarray]:
    """Compute hidden states of each text: arrays (S, layers, H), float64 because Python's `round` needs it."""
    if not ids:
        return []
    batch = PackedBatch.from_sequences(ids, types)
    output = model.forward_packed(batch, hidden_states=states, num_layers=max(states))
    stacked = np.stack([output.hidden_states[state] for state in states], axis=1, dtype=np.float64)
    return np.split(stacked, batch.cu_seqlens[1:-1])
