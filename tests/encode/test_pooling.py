"""Pooling against bert-as-service's formulas; test_modules compares it with sentence-transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minibert import SentenceTransformer
from minibert.encode.pooling import POOLING_MODES, pool
from tests.support.refusals import Refused, check_refused

RNG = np.random.default_rng(3)
STATE = RNG.standard_normal((3, 16)).astype(np.float32)
TEXTS = ["", "a", "The cat sat on the mat.", "Größe, naïve café", "word " * 60, "🙂 emoji"]


@pytest.fixture
def model(minilm_sentences: SentenceTransformer) -> SentenceTransformer:
    return minilm_sentences


def test_an_empty_sequence_gives_zeros() -> None:
    for mode in POOLING_MODES:
        pooled = pool(STATE, np.array([0, 0, 3, 3]), (mode,))
        np.testing.assert_array_equal(pooled[[0, 2]], 0)
        assert pooled[1].any()
        assert pool(STATE[:0], np.array([0]), (mode,)).shape == (0, 16)


# bert-as-service, server/bert_serving/server/graph.py, as formulas on padded rows; [SEP] is a text's last token.
BERT_AS_SERVICE = {
    "REDUCE_MEAN": lambda x, m: (x * m[..., None]).sum(1) / (m.sum(1, keepdims=True) + 1e-10),
    "REDUCE_MAX": lambda x, m: (x - (1 - m[..., None]) * 1e30).max(1),
    "CLS_TOKEN": lambda x, m: x[:, 0],
    "FIRST_TOKEN": lambda x, m: x[:, 0],
    "SEP_TOKEN": lambda x, m: x[np.arange(len(x)), m.sum(1).astype(int) - 1],
    "LAST_TOKEN": lambda x, m: x[np.arange(len(x)), m.sum(1).astype(int) - 1],
}
BERT_AS_SERVICE["REDUCE_MEAN_MAX"] = lambda x, m: np.concatenate(
    [BERT_AS_SERVICE["REDUCE_MEAN"](x, m), BERT_AS_SERVICE["REDUCE_MAX"](x, m)], axis=1
)


@pytest.mark.parametrize("name", BERT_AS_SERVICE)
@pytest.mark.parametrize("layers", [-2, [-4, -3, -2, -1]], ids=["its default", "four layers"])
def test_equals_bert_as_service(model: SentenceTransformer, name: str, layers: int | list[int]) -> None:
    """It concatenates the layers and then pools. It does not normalise, so the model's Normalize is removed."""
    inputs = model.tokenizer(TEXTS, padding=True, return_tensors="np")
    states = model.model(**inputs, output_hidden_states=True).hidden_states
    chosen = np.concatenate([states[i] for i in ([layers] if isinstance(layers, int) else layers)], axis=-1)
    expected = BERT_AS_SERVICE[name](chosen.astype(np.float64), inputs["attention_mask"].astype(np.float64))
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    ours = model.encode(TEXTS, layers=layers, pooling=name)
    np.testing.assert_allclose(ours, expected, atol=2e-6)


def test_bert_as_services_none_and_without_special_tokens(model: SentenceTransformer) -> None:
    """NONE gives all tokens; -mask_cls_sep leaves [CLS] and [SEP] out of the mean."""
    tokens = model.encode(TEXTS, pooling="NONE", layers=-2)
    inputs = model.tokenizer(TEXTS, padding=True, return_tensors="np")
    state = model.model(**inputs, output_hidden_states=[-2]).hidden_states[-2]
    for vectors, row, mask in zip(tokens, state, inputs["attention_mask"], strict=True):
        np.testing.assert_allclose(vectors, row[mask == 1], atol=2e-6)
    inner = model.encode(TEXTS, pooling="REDUCE_MEAN", layers=-2, special_tokens=False)
    np.testing.assert_array_equal(inner[0], 0)  # "" has no other tokens
    expected = np.stack([vectors[1:-1].mean(axis=0) for vectors in tokens[1:]])
    np.testing.assert_allclose(inner[1:], expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=2e-6)
    assert [len(v) for v in model.encode(TEXTS, pooling="none", special_tokens=False)] == [len(v) - 2 for v in tokens]
    text = model.encode(TEXTS[0], output_value=None, special_tokens=False)
    names = ("input_ids", "token_type_ids", "attention_mask", "token_embeddings")
    assert {len(text[name]) for name in names} == {len(tokens[0]) - 2}


def test_first_last_and_pooler(model: SentenceTransformer) -> None:
    inputs = model.tokenizer(TEXTS, padding=True, return_tensors="np")
    output = model.model(**inputs, output_hidden_states=True)
    mask = inputs["attention_mask"][..., None]
    state = (output.hidden_states[1] + output.hidden_states[-1]) / 2
    for name, expected in (("first_last", (state * mask).sum(1) / mask.sum(1)), ("pooler", output.pooler_output)):
        expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
        np.testing.assert_allclose(model.encode(TEXTS, pooling=name), expected, atol=2e-6)
    simcse = ((output.hidden_states[0] + output.hidden_states[-1]) / 2 * mask).sum(1) / mask.sum(1)
    ours = model.encode(TEXTS, layers=[0, -1], layer_pooling="mean")
    np.testing.assert_allclose(ours, simcse / np.linalg.norm(simcse, axis=1, keepdims=True), atol=2e-6)


def test_the_forward_stops_after_the_deepest_layer(model: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    from minibert.bert import encoder

    run: list[int] = []
    layer = encoder.encoder_layer
    monkeypatch.setattr(encoder, "encoder_layer", lambda *args: run.append(1) or layer(*args))
    for layers, expected in ((0, 0), (2, 2), (-2, 5), ([1, 3], 3), (None, 6), ([-1, 0], 6)):
        model.model.ops.release()  # and with it the recorded forward of a text of the same length
        run.clear()
        model.encode("a text", layers=layers)
        assert len(run) == expected


@pytest.mark.parametrize("options", [{"pooling": "cls"}, {"pooling": "pooler"}, {"pooling": "cls", "layers": [-1, 2]}])
def test_pooling_of_the_first_token_has_the_bits_of_all_tokens(
    model: SentenceTransformer, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, rows, attention = TEXTS * 30, list[int](), model.model.ops.attention

    def counted(inputs: Any, **more: bool) -> Any:
        rows.append(len(inputs.query))
        return attention(inputs, **more)

    def vectors(**changes: Any) -> np.ndarray:
        rows.clear()
        monkeypatch.setitem(vars(model.model), "ops", ops._replace(attention=counted, **changes))
        return model.encode(texts, **options)

    ops = model.model.ops
    found, read = vectors(), sum(rows)
    assert found.tobytes() == vectors(all_tokens=True).tobytes()
    assert read == sum(rows) * 5 // 6 + len(TEXTS)
    for more in ({"special_tokens": False}, {"pooling": "mean"}):
        options = {**options, **more}
        if options["pooling"] != "pooler":
            assert vectors().tobytes() == vectors(all_tokens=True).tobytes()


def test_bad_options(model: SentenceTransformer) -> None:
    table: Refused = {
        ("pooling", ValueError): ("median", ["mean", "pooler"], ["none", "mean"]),
        ("pooling", TypeError): ([], 3, ["mean", None]),
        ("layers", ValueError): (7, -8, [], [1, 1]),
        ("layers", TypeError): ("last", 1.0, True),
        ("special_tokens", TypeError): (1,),
    }
    encode = model.encode
    check_refused(encode, {"inputs": "a"}, table)
    check_refused(encode, {"inputs": "a", "layers": [1, 2]}, {("layer_pooling", ValueError): ("stack",)})
    fixed: Refused = {("layers", ValueError): (-1,), ("layer_pooling", ValueError): ("sum",)}
    check_refused(encode, {"inputs": "a", "pooling": "first_last"}, fixed)
    check_refused(encode, {"inputs": "a", "pooling": "pooler"}, {("special_tokens", ValueError): (False,)})
