"""The page without a browser: its numbers decoded, its bytes, its sizes, its text, what is refused."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Callable
from functools import partial
from html import unescape
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minibert import BertModel, BertTokenizer, Edit, SentenceTransformer, Trace
from minibert.inside.sentences import vector_steps
from minibert.trace.layout import Layout, all_entries
from minibert.trace.page.data import HEAD_MEASURES, WORD_PLACES, three_digits
from minibert.trace.page.document import page
from minibert.trace.page.steps import steps
from tests.support.checkpoints import random_checkpoint
from tests.support.sentence_modules import dense, model_with_modules, random_tensors
from tests.support.text_data import naughty_lines, needs_data

TEXT = "After stealing money from the bank vault, the bank robber was seen fishing on the Mississippi river bank."


@pytest.fixture(scope="module")
def trace(minilm: BertModel, tokenizer: BertTokenizer) -> Trace:
    return minilm.trace(**tokenizer(TEXT, return_tensors="np"), tokens=tokenizer)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> BertModel:
    folder = random_checkpoint(tmp_path_factory.mktemp("small") / "model", num_attention_heads=2, num_hidden_layers=3)
    return BertModel.from_pretrained(folder, backend="numpy")


def decoded(html: str) -> tuple[dict[str, Any], Callable[[dict[str, Any]], np.ndarray]]:
    """Return the description of a page, and a function that reads one of its arrays. It uses no code of minibert."""
    payload = re.search(r'id="payload">([^<]*)</script>', html)
    assert payload is not None
    data = zlib.decompress(base64.b85decode(payload[1].translate(str.maketrans(",.", "<&"))), -15)
    start = 4 + int.from_bytes(data[:4], "little")

    def read(entry: dict[str, Any]) -> np.ndarray:
        count = int(np.prod(entry["shape"]))
        size = 3 if entry["kind"] == "f24" else 2
        first = start + entry["at"]
        planes = np.frombuffer(data[first : first + size * count], np.uint8).reshape(size, count)
        if entry["kind"] == "f24":
            array = np.vstack([np.zeros((1, count), np.uint8), planes]).T.copy().view("<f4").astype(float)
        elif entry["kind"] == "digits":
            array = planes.T.copy().view("<f2").astype(float) / 64
        else:
            whole = planes.T.copy().view("<u2").astype(float)
            scales = {"mille": whole / 1000, "cos": (whole - 1000) / 1000, "whole": whole - 1000}
            array = np.where((whole == 65535) & (entry["kind"] != "whole"), np.nan, scales[entry["kind"]])
        return array.reshape(entry["shape"])

    return json.loads(data[4:start]), read


def uneven(sd: float) -> Edit:
    """Return an edit that adds normal noise to scores."""
    generator = np.random.default_rng(0)
    return Edit.function(lambda x: x + sd * generator.standard_normal(x.shape))


# --- numbers ----------------------------------------------------------------------------------------------------------


def stacked(trace: Trace, name: str, layers: int = 6) -> np.ndarray:
    """Return a value of all layers of the first text, in float64."""
    values = trace.sequence(0)
    return np.stack([values[f"encoder.layer.{i}{name}"] for i in range(layers)]).astype(float)


def test_the_payload_is_the_trace(trace: Trace) -> None:
    about, read = decoded(page(trace))
    (text,) = about["texts"]
    values = trace.sequence(0)
    assert text["tokens"] == trace.tokens[0]
    assert text["ids"] == trace.ids[0].tolist()
    attention = {key: read(text["attention"][key]) for key in ("probs", "scores", "sums")}
    scores = stacked(trace, ".attention.self.scores")
    np.testing.assert_allclose(attention["probs"], stacked(trace, ".attention.self.probs"), atol=0.000501)
    np.testing.assert_allclose(attention["sums"], np.log(np.exp(scores).sum(axis=-1)), rtol=5.01e-3)
    np.testing.assert_allclose(three_digits(attention["scores"]), three_digits(scores[..., :3]), rtol=0, atol=1e-8)
    for part, layers in (("embeddings", [None]), ("layer", range(6)), ("pooler", [None])):
        first, rms = (read(text["values"][part][key]) for key in ("first", "rms"))
        entries = [entry for entry in Layout.of(trace.sizes).parts()[part] if "S, S" not in entry.shape]
        assert text["values"][part]["symbols"] == [entry.symbol for entry in entries]
        for i, layer in enumerate(layers):
            for j, entry in enumerate(entries):
                array = values[entry.path.format(i=layer)].astype(float).reshape(first.shape[2], -1)
                np.testing.assert_allclose(three_digits(first[i, j]), three_digits(array[:, :4]), rtol=0, atol=1e-8)
                np.testing.assert_allclose(rms[i, j], np.sqrt(np.square(array).mean(axis=1)), rtol=5.01e-3)
    states = np.concatenate([values["embeddings"][None].astype(float), stacked(trace, "")])
    unit = states / np.linalg.norm(states, axis=2, keepdims=True)
    first, second = np.triu_indices(22, 1)
    for key, skip, expected in (
        ("of_pairs", 0, np.einsum("lid,ljd->lij", unit, unit)[:, first, second]),
        ("with_previous", 1, np.einsum("lid,lid->li", unit[1:], unit[:-1])),
        ("with_embeddings", 1, np.einsum("lid,id->li", unit[1:], unit[0])),
    ):
        np.testing.assert_allclose(read(text["cosines"][key])[skip:], expected, atol=5.1e-4)


def test_the_first_probs_have_all_digits_that_are_shown(trace: Trace, small: BertModel) -> None:
    """Those of the steps, which a reader computes again; the small ones too."""
    sharp = small.trace(np.ones((1, 4), dtype=np.int64), edit={"*.scores": uneven(20.0)})
    for given, depth in ((trace, 6), (sharp, 3)):
        about, read = decoded(page(given))
        shown = read(about["texts"][0]["attention"]["first"])
        probs = stacked(given, ".attention.self.probs", depth)[..., :3]
        np.testing.assert_allclose(shown, probs, rtol=1.6e-5, atol=0)
    assert 0 < shown[shown > 0].min() < 1e-9


def test_the_vector_of_a_text(minilm_sentences: SentenceTransformer, trace: Trace) -> None:
    """The mean of the last hidden states, then length 1, as `encode` gives it."""
    result = vector_steps(minilm_sentences, [TEXT])
    assert result.tokens == trace.tokens
    about, read = decoded(page(trace, vector=result.steps))
    assert list(about["steps"]) == ["embeddings", "layer", "pooler", "vector"]
    assert [step["formula"] for step in about["steps"]["vector"]] == ["sum(x) / n", "pooling / sqrt(sum(pooling^2))"]
    values = about["texts"][0]["values"]["vector"]
    mean = trace["hidden_states.6"][0].astype(float).mean(axis=0)
    expected = np.stack([mean, minilm_sentences.encode(TEXT)])
    np.testing.assert_allclose(expected[1], mean / np.linalg.norm(mean), rtol=0, atol=1e-6)
    np.testing.assert_allclose(three_digits(read(values["first"])[0, :, 0]), three_digits(expected[:, :4]), atol=1e-8)
    np.testing.assert_allclose(read(values["rms"])[0, :, 0], np.sqrt(np.square(expected).mean(axis=1)), rtol=5.01e-3)
    assert values["notes"] == ["n = 22 tokens", f"length before: {np.linalg.norm(mean):#.3g}"]
    with pytest.raises(ValueError, match="vector"):
        page(trace, vector=[result.steps[0]._replace(values=[])])


def test_the_steps_of_other_modules(tmp_path: Path) -> None:
    """Two modes of pooling, a Dense module with an activation, a truncated vector: the last values are the vector."""
    pooling = ("Pooling", {"embedding_dimension": 24, "pooling_mode": ["cls", "weightedmean"]}, None)
    norm = ("LayerNorm", {"dimension": 8}, random_tensors(norm_weight=(8,), norm_bias=(8,)))
    folder = model_with_modules(tmp_path / "model", [pooling, dense(48, 8), norm], new=True)
    model = SentenceTransformer(str(folder), truncate_dim=5, backend="numpy")
    texts = ["the cat", "a dog sat"]
    steps = vector_steps(model, texts).steps
    assert [step.symbol for step in steps] == ["pooling_cls", "pooling_weightedmean", "dense", "layernorm", "truncated"]
    assert [step.formula for step in steps[2:]] == ["tanh(joined @ W.T + b)", "layer_norm(dense)", "layernorm[:5]"]
    np.testing.assert_allclose(np.stack(steps[-1].values), model.encode(texts), rtol=0, atol=2e-6)


def test_the_weighted_shares_are_those_of_kobayashi(trace: Trace, minilm: BertModel) -> None:
    """They are exact to 0.1 %, as `minibert.inside.norms` computes them."""
    from minibert import inside

    about, read = decoded(page(trace))
    given = about["texts"][0]["attention"]
    expected = inside.norms(minilm, trace, "attention", heads=True)[:, 0]
    expected = expected / expected.sum(axis=3, keepdims=True)
    np.testing.assert_allclose(read(given["weighted"]), expected, atol=0.000501)
    assert given["mapped"]


def test_the_measures_of_heads(trace: Trace) -> None:
    about, read = decoded(page(trace))
    both = read(about["texts"][0]["attention"]["measures"])
    words = np.array(trace.tokens[0])
    others = (words[:, None] == words) & ~np.eye(22, dtype=bool)
    for layer in range(6):
        probs = trace[layer, "probs"][0].astype(float)
        value = trace[layer, "attention.self.value"][0].astype(float)
        for head in range(12):
            columns = slice(32 * head, 32 * head + 32)
            lengths = np.linalg.norm(value[:, columns] @ trace.output_map(layer)[:, columns].T, axis=1)
            for weighted, rows in enumerate((probs[head], probs[head] * lengths)):
                rows = rows / rows.sum(axis=1, keepdims=True)
                expected = {
                    "first": rows[:, 0].mean(),
                    "last": rows[:, -1].mean(),
                    "previous": np.diagonal(rows, -1).mean(),
                    "next": np.diagonal(rows, 1).mean(),
                    "self": np.trace(rows) / 22,
                    "same": (rows * others).sum(axis=1)[others.any(axis=1)].mean(),
                    "largest": rows.max(axis=1).mean(),
                }
                result = both[weighted, layer, head]
                np.testing.assert_allclose(result, [expected[key] for key in HEAD_MEASURES], atol=5.1e-5)


def test_of_long_texts_the_largest_shares_are_kept(tmp_path: Path) -> None:
    """512 tokens, with attention as uneven as that of a trained model; the budget is that of 12 x 12 heads, scaled."""
    sizes = {"hidden_size": 24, "num_attention_heads": 6, "num_hidden_layers": 4, "intermediate_size": 24}
    folder = random_checkpoint(tmp_path / "model", **sizes)
    model = BertModel.from_pretrained(folder, backend="numpy")
    ids = np.random.default_rng(0).integers(model.config.vocab_size, size=(1, 512))
    trace = model.trace(ids, edit={"*.scores": uneven(3.0)})
    html = page(trace, max_bytes=1_200_000)
    assert len(html) < 1_200_000
    about, read = decoded(html)
    given = about["texts"][0]["attention"]
    columns, shares = read(given["columns"]).astype(int), read(given["probs"])
    assert 8 <= shares.shape[3] < 512
    for layer, head, i in ((0, 0, 0), (3, 5, 511), (2, 3, 100)):
        probs = trace[layer, "probs"][0, head, i]
        assert (np.diff(columns[layer, head, i]) > 0).all()
        np.testing.assert_allclose(shares[layer, head, i], probs[columns[layer, head, i]], atol=0.000501)
        assert probs.argmax() in columns[layer, head, i]


# --- bytes and text ---------------------------------------------------------------------------------------------------


def test_each_repeated_word_of_a_long_text_has_its_cosines(minilm: BertModel, tokenizer: BertTokenizer) -> None:
    """The pairs of a frequent word take no place from those of a rare one."""
    text = "the cat saw the dog and the bird near the tree, and the bank " * 20 + "river bank by the river"
    trace = minilm.trace(**tokenizer(text, return_tensors="np"), tokens=tokenizer)
    (result,) = decoded(page(trace, layers=0))[0]["texts"]
    places: dict[str, list[int]] = {}
    for i, token in enumerate(result["tokens"]):
        places.setdefault(token, []).append(i)
    assert len(places["the"]) > 100
    pairs = set(map(tuple, result["cosines"]["pairs"]))
    for word in ("the", "bank", "river", "cat", "and"):
        first = places[word][:WORD_PLACES]
        assert {(i, j) for i in first for j in first if i < j} <= pairs, word


def test_the_embedding_taken_apart(trace: Trace) -> None:
    about, read = decoded(page(trace))
    shares = read(about["texts"][0]["embedding"])
    names = [f"embeddings.{name}" for name in ("word_embeddings", "token_type_embeddings", "position_embeddings")]
    total = trace["embeddings.LayerNorm.input"][0].astype(float)
    along = [(trace[name][0] * total).sum(axis=1) / np.square(total).sum(axis=1) for name in names]
    np.testing.assert_allclose(shares, np.stack(along, axis=1), rtol=1.6e-5, atol=0)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, atol=3e-5)


class Outline(HTMLParser):
    """Collects what the tests ask about: ids, open elements, attributes."""

    EMPTY = ("meta", "br", "input", "canvas")

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self.ids += [value or "" for key, value in attrs if key == "id"]
        if tag not in ("meta", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_document_is_well_formed_and_asks_for_nothing(trace: Trace) -> None:
    html = page(trace, title="a & b", note="<note>")
    assert len(html.encode("utf-8")) < 170_000
    assert page(trace, title="a & b", note="<note>") == html
    outline = Outline()
    outline.feed(html)
    outline.close()
    assert outline.open == []
    assert len(outline.ids) == len(set(outline.ids))
    places = [value for key, value in outline.attributes if key == "href"]
    assert {place[1:] for place in places} <= set(outline.ids), "links lead to places of the page"
    keys = {key for key, _ in outline.attributes}
    assert not keys & {"src", "srcset", "style", "action", "background", "ping"}
    assert not [key for key in keys if key.startswith("on")]
    script = decoded(html)[0]["script"]
    plain = (re.sub(r'id="payload">[^<]*<', "", html) + script).replace("http-equiv", "")
    assert not re.search(r"http|//|@import|url\(", plain)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|fetch\(|XMLHttp|import\(", script)
    policy = next(unescape(value or "") for key, value in outline.attributes if key == "content" and "-src" in value)
    inline = [re.search(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)[1] for tag in ("script", "style")]
    hashes = [
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (inline[0], script, inline[1])
    ]
    assert policy.startswith("default-src 'none'; ")
    assert "script-src 'sha256-{}' 'sha256-{}'; style-src 'sha256-{}'; ".format(*hashes) in policy
    assert "unsafe" not in policy


def test_each_symbol_of_the_table_has_a_step_with_its_line_of_code() -> None:
    for step in steps(entry for entry in all_entries() if entry.line[0] != "heads.py"):
        assert step.words.endswith("."), step.entry
        assert step.lines[0].file in ("encoder.py", "norm_first.py")
        for file, number, text in step.lines:
            lines = (files("minibert.bert") / file).read_text(encoding="utf-8").splitlines()
            assert lines[number - 1].strip() == text


MORE_HOSTILE = """
    </ScRiPt > | <script>alert(1) | --> | --!> | <![CDATA[ | </textarea> | </title> | </noscript><img src=x> |
    <base href=x> | <meta http-equiv=refresh> | <style>*{} | javascript:alert(1) | &lt;b&gt; | &#60;b&#62; |
    '"><b onclick=x> | `${alert(1)}` | \\u003cscript> | \u2066x\u2069 | \ufeff | \x1b[31m | \u061c | \u200b |
    \U000e0001 | =cmd' !A0 | __proto__ | constructor | }}{{title}} | </script> | ]]> | <!-- | {{payload}} | \u2028
    """.split(" | ")  # noqa: SIM905
"""What ends an element or a string, changes the direction, or means something to a script or a spreadsheet."""


@needs_data
def test_hostile_tokens_stay_text(small: BertModel) -> None:
    lines = [*naughty_lines()[::2], *MORE_HOSTILE, "\ud800", "\udfff\ud800", "", "\r\n"]
    for start in range(0, len(lines), 200):
        words = lines[start : start + 200]
        html = page(small.trace(np.ones((1, len(words)), dtype=np.int64), tokens=[words]), title=words[0])
        outline = Outline()
        outline.feed(html)
        assert outline.tags.count("script") == 2
        assert not {"img", "iframe", "object"} & set(outline.tags)
        assert (outline.tags.count("svg"), outline.tags.count("a")) == (1, 14)
        html.encode("utf-8")
        shown = decoded(html)[0]["texts"][0]["tokens"]
        assert not [token for token in shown if re.search("[\x00-\x1f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", token)]
        for token, word in zip(shown, words, strict=True):
            assert re.sub("\u27e8U\\+([0-9A-F]+)\u27e9", lambda result: chr(int(result[1], 16)), token) == word


# --- choices ----------------------------------------------------------------------------------------------------------


def test_layers_heads_and_texts_can_be_left_out(small: BertModel) -> None:
    mask = np.array([[1, 1, 1], [0, 0, 0], [0, 1, 1]])
    trace = small.trace(np.ones((3, 3), dtype=np.int64), mask)
    about, read = decoded(page(trace, layers=[-1, 0], heads=1, sequences=[2, 1]))
    assert (about["layers"], about["heads"]) == ([0, 2], [1])
    (text,) = about["texts"]
    assert text["tokens"] == ["0", "1"]
    probs = read(text["attention"]["probs"])
    assert probs.shape == (2, 1, 2, 2)
    np.testing.assert_allclose(probs[1, 0], trace.sequence(2)["encoder.layer.2.attention.self.probs"][1], atol=0.000501)
    assert "pooler" not in text["values"], "its first token is masked"
    assert len(decoded(page(trace))[0]["texts"]) == 2, "a text without tokens is left out"


def test_traces_of_all_kinds(small: BertModel, tmp_path: Path) -> None:
    ids = np.ones((1, 3), dtype=np.int64)
    for trace in (
        small.trace(ids, record="hidden_states.1"),
        small.trace(ids, record="*.query"),
        small.trace(ids, num_layers=1),
        small.trace(ids[:, :1]),
        small.trace(inputs_embeds=np.ones((1, 2, small.config.hidden_size), dtype=np.float32)),
        small.trace(ids, edit={"*.value": Edit.scale(1e9)}),
        small.trace(ids, edit={"*.value": Edit.zero()}),
    ):
        trace.page(tmp_path / "page.html")
        trace.save(tmp_path / "trace.npz")
        loaded = Trace.load(tmp_path / "trace.npz")
        assert loaded.ids is None
        loaded.page(tmp_path / "loaded.htm")
        assert trace.output_map(0) is not None


def test_a_frame_for_notebooks(trace: Trace) -> None:
    html = trace.show(title="x", height=500)._repr_html_()
    source = re.search('srcdoc="([^"]*)"', html)
    assert source is not None
    assert unescape(source[1]) == page(trace, title="x")
    assert 'height="500"' in html


def test_what_is_refused(trace: Trace, small: BertModel, tmp_path: Path) -> None:
    file, ids = tmp_path / "page.html", np.ones((1, 2), dtype=np.int64)
    nothing, hidden = small.trace(ids, record=()), small.trace(ids, 0 * ids)
    for error, word, call in (
        (ValueError, "max_bytes=50,000", partial(trace.page, file, max_bytes=50_000)),
        (ValueError, "max_bytes=0", partial(trace.page, file, max_bytes=0)),
        (TypeError, "max_bytes='1'", partial(trace.page, file, max_bytes="1")),
        (ValueError, "layers=6", partial(trace.page, file, layers=6)),
        (TypeError, "heads='all'", partial(trace.page, file, heads="all")),
        (ValueError, "sequences=1", partial(trace.page, file, sequences=[0, 1])),
        (ValueError, "value", partial(nothing.page, file)),
        (ValueError, "token", partial(hidden.page, file)),
        (ValueError, r"\.html", partial(trace.page, tmp_path / "page.pdf")),
        (OSError, "folder", partial(trace.page, tmp_path / "no" / "page.html")),
        (TypeError, "PathLike", partial(trace.page, 3)),
        (ValueError, "height=1;", partial(trace.show, height=1)),
    ):
        with pytest.raises(error, match=word):
            call()
    assert not file.exists()
