"""Rows of the page "coming from other libraries" that no other test covers, compared with the library."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import minibert
from minibert import BertModel, BertTokenizer, SentenceTransformer, combine_layers, util
from minibert.compat.bert_serving import BertClient

TEXTS = ["A cat sleeps on the mat.", "Stocks fell."]


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), atol=1e-5)


@pytest.fixture(scope="module")
def names(minilm_folder: Path, their_tokenizer: Any) -> dict[str, Any]:
    """Return what the code of a row may use."""
    tokenizer, model = BertTokenizer.from_pretrained(minilm_folder), BertModel.from_pretrained(minilm_folder)
    sentences, left = (SentenceTransformer(minilm_folder) for _ in range(2))
    left.tokenizer.padding_side = "left"
    vectors = sentences.encode(TEXTS)
    return {
        **{"np": np, "torch": torch, "util": util, "combine_layers": combine_layers, "texts": TEXTS, "left": left},
        **{"minibert": minibert, "folder": minilm_folder, "theirs": their_tokenizer, "tokenizer": tokenizer},
        **{"model": model, "sentences": sentences, "vectors": vectors, "table": model.get_input_embeddings().weight},
        **{"inputs": tokenizer(TEXTS[0], return_tensors="pt"), "scores": sentences.similarity(vectors, vectors)},
        **{"output": model(**tokenizer(TEXTS[0], return_tensors="np")), "SentenceTransformer": SentenceTransformer},
        **{"client": BertClient(model=sentences), "BertClient": BertClient},
    }


@pytest.mark.parametrize(
    ("typed", "same"),
    [
        ("len(model(**inputs, return_dict=False, output_hidden_states=False))", "2"),
        ("next(model.parameters()).zero_() is not None and model.embeddings.LayerNorm.weight.any()", "True"),
        ("torch.stack(model(**inputs).hidden_states[-4:]).sum(0)", "combine_layers(output.hidden_states[-4:], 'sum')"),
        ("torch.cosine_similarity(table[2332], table[3035].detach(), dim=0)", "util.cos_sim(table[2332], table[3035])"),
        ("torch.tensor(table)", "table"),
        ("torch.from_numpy(table).data_ptr()", "table.ctypes.data"),
        ("torch.tensor(table).data_ptr() == table.ctypes.data", "False"),
        ("tokenizer.tokenize(['A cat.'])", "theirs.tokenize(['A cat.'])"),
        ("tokenizer.tokenize(['A', 'cat.'], is_split_into_words=True)", "theirs.tokenize('A cat.')"),
        ("str(tokenizer(texts))", "str(theirs(texts))"),
        ("list(tokenizer.vocab.values())", "list(range(30522))"),
        ("dict(tokenizer.vocab)", "dict(theirs.vocab)"),
        ("torch.topk(scores[0], k=2).indices.tolist()", "[0, 1]"),
        ("torch.stack([scores[0], scores[1]], dim=0)", "scores"),
        ("torch.tensor(vectors[0]) * scores[0][1]", "vectors[0] * float(scores[0][1])"),
        ("left.encode(texts)", "vectors"),
        ("left.tokenize(texts)['attention_mask'][1, 0]", "0"),
        ("BertClient(model=sentences, output_fmt='list').encode(texts)", "client.encode(texts)"),
    ],
)
def test_what_is_typed_gives_the_same(names: dict[str, Any], typed: str, same: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        found, expected = eval(typed, names), eval(same, names)
    if isinstance(expected, str | list | dict):
        assert found == expected
    else:
        close(np.squeeze(found), np.squeeze(expected))


@pytest.mark.parametrize(
    ("typed", "error", "advice"),
    [
        ("tokenizer.tokenize(texts)", TypeError, "expected one str"),
        ("minibert.models.Transformer('bert-base-uncased')", AttributeError, r"SentenceTransformer\(folder\)"),
        ("exec('from minibert.models import Pooling')", ImportError, r"SentenceTransformer\(folder\)|encode\(texts"),
        ("client.encode('one text')", TypeError, "texts is"),
        ("client.encode([])", ValueError, "texts is empty"),
        ("BertClient(output_fmt='json')", ValueError, "output_fmt"),
    ],
)
def test_what_is_an_error_with_advice(names: dict[str, Any], typed: str, error: type[Exception], advice: str) -> None:
    import minibert.models  # noqa: F401  # as a program that uses minibert.models does

    with pytest.raises(error, match=advice):
        eval(typed, names)


def test_a_module_around_a_model_trains_its_own_layers_only(names: dict[str, Any]) -> None:
    class Classifier(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert, self.top = names["model"], torch.nn.Linear(384, 2)

        def forward(self, **inputs: Any) -> torch.Tensor:
            return self.top(self.bert(**inputs).pooler_output)

    ours = Classifier()
    assert [name for name, _ in ours.named_parameters()] == ["top.weight", "top.bias"]
    ours(**names["inputs"]).sum().backward()
    assert ours.top.weight.grad is not None


# --- bert-as-service --------------------------------------------------------------------------------------------------


def states(names: dict[str, Any], text: str) -> np.ndarray:
    """Return the hidden states of one text: (layers + 1, S, H)."""
    return np.stack(names["model"](**names["tokenizer"](text, return_tensors="np")).hidden_states)[:, 0]


def test_a_client_gives_the_mean_of_the_last_layer_but_one(names: dict[str, Any], minilm_folder: Path) -> None:
    expected = [states(names, text)[-2].mean(axis=0) for text in TEXTS]
    with BertClient(port=4000, port_out=4001, model=str(minilm_folder)) as client:
        close(client.encode(TEXTS), expected)
        assert client.encode(TEXTS).dtype == np.float32
        close([answer.content[0] for answer in client.encode_async([text] for text in TEXTS)], expected)
    unit = names["sentences"].encode(TEXTS, layers=-2, pooling="REDUCE_MEAN")  # this model ends with Normalize
    close(unit, expected / np.linalg.norm(expected, axis=1, keepdims=True))
