"""The google format of `extract_corpus`: the JSON lines of Google's extract_features.py (google-research/bert).

Every token of a text or a pair, with the values of some layers. The field names (``linex_index`` too), the rounding to
6 decimals, the " ||| " between the texts of a pair, and the way to cut them are the same. Layers are numbered as there:
0 is the first layer's output. So positive numbers are one less than in transformers; negative ones are equal.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray
from minibert.corpus.sources import InputLine
from minibert.corpus.tasks import Files, ShardFile
from minibert.corpus.token_states import TokenTask
from minibert.encode.run import packed
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.tokenizer.encodings import Encoding

_LENGTH = 128  # tokens: the default of extract_features.py
_PAIR = re.compile(r"^(.*) \|\|\| (.*)$")


class GoogleLines(TokenTask):
    """One line of JSON for each input line."""

    def _open(self) -> None:
        config, self.files = self.model.config, (ShardFile(".jsonl", self.path),)
        self.states = google_layers(self.layers, config.num_hidden_layers)
        least, most = self.tokenizer.num_special_tokens_to_add(pair=True), config.max_length
        self.limit = min(_LENGTH, most) if self.max_length is None else self.max_length
        if not least <= self.limit <= most:
            raise ValueError(f"max_length={self.limit}; expected {least} to {most} (max_position_embeddings).")

    def compute(self, texts: list[str]) -> Iterable[tuple[Any, FloatArray]]:
        """See `TokenTask`."""
        encodings = [_encode(self.tokenizer, text, self.limit) for text in texts]
        batch = packed(self.model.config, encodings)
        steps = (states for _, states in self.model.states(batch, self.states))
        # float64, because Python's `round` needs it
        stacked = [np.stack([states[i] for i in self.states], axis=1, dtype=np.float64) for states in steps]
        return zip(encodings, np.split(np.concatenate(stacked), batch.cu_seqlens[1:-1]), strict=True)

    def write_line(self, files: Files, line: InputLine, first: int, tokens: Any, vectors: FloatArray | None) -> None:
        """See `TokenTask`."""
        features = None
        if vectors is not None:
            pairs = zip(tokens.tokens, vectors, strict=True)
            features = [{"token": token, "layers": self._layers(rows)} for token, rows in pairs]
        files[0].write(f"{json.dumps({'linex_index': line.number, 'features': features})}\n".encode())

    def _layers(self, rows: npt.NDArray[Any]) -> list[dict[str, Any]]:
        pairs = zip(self.layers, rows, strict=True)
        return [{"index": layer, "values": [round(value, 6) for value in row.tolist()]} for layer, row in pairs]


def google_layers(layers: Sequence[int], num_hidden_layers: int) -> tuple[int, ...]:
    """Convert Google's numbers of layers to numbers of hidden states: i -> i + 1, and -1 -> L.

    Raises
    ------
    ValueError
        A number is not in [-L, L).
    """
    L = num_hidden_layers
    for layer in layers:
        if not -L <= layer < L:
            raise ValueError(f"layers={layer}; expected 0 to {L - 1}, or -{L} to -1, in Google's numbering.")
    return tuple(layer % L + 1 for layer in layers)


def _encode(tokenizer: BertTokenizer, text: str, limit: int) -> Encoding:
    """Return the tokens of a line, cut as Google's script cuts them."""
    pair = _PAIR.match(text.strip())
    parts = pair.groups() if pair else (text.strip(),)
    (whole,) = tokenizer.encodings(*([part] for part in parts), truncation=False)
    sequences = np.array([-1 if sequence is None else sequence for sequence in whole.sequence_ids])
    special, *places = (np.flatnonzero(sequences == sequence) for sequence in range(-1, len(parts)))
    kept = [min(len(place), limit) for place in places]
    while sum(kept) > limit - len(special):
        longest = 0 if len(kept) == 1 or kept[0] > kept[1] else 1  # of two equally long texts the second is cut
        kept[longest] -= 1
    left = (positions[:length] for positions, length in zip(places, kept, strict=True))
    made = whole.take(np.sort(np.concatenate([special, *left])))
    return dataclasses.replace(made, n_truncated=len(whole) - len(made))
