"""The page without a browser: its numbers decoded, its bytes, its sizes, its text, what is refused."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Callable
from html import unescape
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minibert import BertModel, BertTokenizer, Edit, SentenceTransformer, Trace
from minibert.bert.config import ACTIVATIONS
from minibert.inside.sentences import vector_steps
from minibert.trace.page.data import HEAD_MEASURES, WORD_PLACES
from minibert.trace.page.document import MAX_BYTES, page
from minibert.trace.page.payload import three_digits
from minibert.trace.page.steps import ACTIVATION_WORDS, PARTS, steps
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
            share = np.where(whole == 65534, 0, (100 + whole % 1024) / 10.0 ** (2 + whole // 1024))
            scales = {"mille": whole / 1000, "cos": (whole - 1000) / 1000, "whole": whole - 1000, "share": share}
            array = np.where((whole == 65535) & (entry["kind"] != "whole"), np.nan, scales[entry["kind"]])
        return array.reshape(entry["shape"])

    return json.loads(data[4:start]), read


def text_of(html: str) -> str:
    """Return a page without the numbers, and with the script that is packed with them."""
    return re.sub(r'id="payload">[^<]*<', 'id="payload"><', html) + decoded(html)[0]["script"]


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_the_payload_is_the_trace(trace: Trace) -> None:
    about, read = decoded(page(trace))
    (text,) = about["texts"]
    values = trace.sequence(0)
    assert text["tokens"] == trace.tokens[0]
    assert text["ids"] == trace.ids[0].tolist()
    probs = np.stack([values[f"encoder.layer.{i}.attention.self.probs"] for i in range(6)])
    np.testing.assert_allclose(read(text["attention"]["probs"]), probs, atol=0.000501)
    scores = np.stack([values[f"encoder.layer.{i}.attention.self.scores"] for i in range(6)])[..., :3]
    sums = np.stack([np.log(np.exp(values[f"encoder.layer.{i}.attention.self.scores"].astype(float)).sum(axis=-1))
                     for i in range(6)])  # fmt: skip
    np.testing.assert_allclose(read(text["attention"]["sums"]), sums, rtol=5.01e-3)
    shown = three_digits(read(text["attention"]["scores"]))
    np.testing.assert_allclose(shown, three_digits(scores), rtol=0, atol=1e-8)
    for part, layers in (("embeddings", [None]), ("layer", range(6)), ("pooler", [None])):
        first, rms = (read(text["values"][part][key]) for key in ("first", "rms"))
        entries = [entry for entry in PARTS[part] if "S, S" not in entry.shape]
        assert text["values"][part]["symbols"] == [entry.symbol for entry in entries]
        for i, layer in enumerate(layers):
            for j, entry in enumerate(entries):
                array = values[entry.path.format(i=layer)].astype(float).reshape(first.shape[2], -1)
                np.testing.assert_allclose(three_digits(first[i, j]), three_digits(array[:, :4]), rtol=0, atol=1e-8)
                squares = np.sqrt(np.square(array).mean(axis=1))
                np.testing.assert_allclose(rms[i, j], squares, rtol=5.01e-3)
    states = np.stack([values["embeddings"], *(values[f"encoder.layer.{i}"] for i in range(6))]).astype(float)
    unit = states / np.linalg.norm(states, axis=2, keepdims=True)
    cosines = np.einsum("lid,ljd->lij", unit, unit)
    first, second = np.triu_indices(22, 1)
    np.testing.assert_allclose(read(text["cosines"]["of_pairs"]), cosines[:, first, second], atol=5.1e-4)
    before = np.einsum("lid,lid->li", unit[1:], unit[:-1])
    np.testing.assert_allclose(read(text["cosines"]["with_previous"])[1:], before, atol=5.1e-4)
    np.testing.assert_allclose(
        read(text["cosines"]["with_embeddings"])[1:], np.einsum("lid,id->li", unit[1:], unit[0]), atol=5.1e-4
    )


def test_the_first_probs_have_three_digits(trace: Trace, small: BertModel) -> None:
    """Those of the steps, which a reader computes again; the small ones too."""
    ids = np.ones((1, 4), dtype=np.int64)
    sharp = small.trace(ids, edit={"*.scores": Edit.noise(20.0, 0)})
    for given, depth in ((trace, 6), (sharp, 3)):
        about, read = decoded(page(given))
        shown = read(about["texts"][0]["attention"]["first"])
        own = given.sequence(0)
        probs = np.stack([own[f"encoder.layer.{i}.attention.self.probs"] for i in range(depth)])[..., :3].astype(float)
        expected = np.array([float(f"{one:.2e}") for one in probs.ravel()]).reshape(probs.shape)
        np.testing.assert_allclose(shown, np.where(probs > 1e-30, expected, 0), rtol=1e-12, atol=0)
    assert 0 < shown[shown > 0].min() < 1e-9


def test_the_vector_of_a_text(minilm_sentences: SentenceTransformer, trace: Trace) -> None:
    """The mean of the last hidden states, then length 1, as `encode` gives it."""
    found = vector_steps(minilm_sentences, [TEXT])
    assert found.tokens == trace.tokens
    about, read = decoded(page(trace, vector=found.steps))
    assert list(about["steps"]) == ["embeddings", "layer", "pooler", "vector"]
    assert [step["formula"] for step in about["steps"]["vector"]] == ["sum(x) / n", "pooling / sqrt(sum(pooling^2))"]
    values = about["texts"][0]["values"]["vector"]
    mean = trace["hidden_states.6"][0].astype(float).mean(axis=0)
    expected = np.stack([mean, minilm_sentences.encode(TEXT)])
    np.testing.assert_allclose(expected[1], mean / np.linalg.norm(mean), rtol=0, atol=1e-6)
    np.testing.assert_allclose(three_digits(read(values["first"])[0, :, 0]), three_digits(expected[:, :4]), atol=1e-8)
    np.testing.assert_allclose(read(values["rms"])[0, :, 0], np.sqrt(np.square(expected).mean(axis=1)), rtol=5.01e-3)
    assert values["notes"] == ["n = 22 tokens", f"length before: {np.linalg.norm(mean):#.3g}"]
    for vector, error in (([1], TypeError), ("x", TypeError), ([found.steps[0]._replace(values=[])], ValueError)):
        with pytest.raises(error, match="vector"):
            page(trace, vector=vector)


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
    """With the corrections they are exact to 0.1 %, as `minibert.inside.norms` computes them."""
    from minibert import inside

    about, read = decoded(page(trace))
    given = about["texts"][0]["attention"]
    probs, norms, corrections = (read(given[key]) for key in ("probs", "norms", "corrections"))
    parts = probs.astype(np.float32).astype(float) * norms[:, :, None, :]
    shares = np.floor(1000 * (parts / np.add.accumulate(parts, axis=3)[..., -1:]) + 0.5) + corrections
    expected = inside.norms(minilm, trace, "attention", heads=True)[:, 0]
    expected = expected / expected.sum(axis=3, keepdims=True)
    np.testing.assert_allclose(shares, 1000 * expected, atol=0.501)
    assert given["mapped"]


def test_the_measures_of_heads(trace: Trace) -> None:
    about, read = decoded(page(trace))
    both = read(about["texts"][0]["attention"]["measures"])
    words = trace.tokens[0]
    values = trace.sequence(0)
    for weighted, layer in [(False, layer) for layer in range(6)] + [(True, layer) for layer in range(6)]:
        probs = trace[layer, "probs"][0].astype(float)
        for head in range(12):
            rows = probs[head]
            if weighted:
                columns = slice(32 * head, 32 * head + 32)
                value = values[f"encoder.layer.{layer}.attention.self.value"][:, columns].astype(float)
                rows = rows * np.linalg.norm(value @ trace.output_map(layer)[:, columns].T, axis=1)
                rows = rows / rows.sum(axis=1, keepdims=True)
            same = [sum(row[j] for j in range(22) if j != i and words[j] == words[i]) for i, row in enumerate(rows)]
            expected = {
                "first": rows[:, 0].mean(),
                "last": rows[:, -1].mean(),
                "previous": np.mean([rows[i, i - 1] for i in range(1, 22)]),
                "next": np.mean([rows[i, i + 1] for i in range(21)]),
                "self": np.trace(rows) / 22,
                "same": np.mean([same[i] for i in range(22) if words.count(words[i]) > 1]),
                "largest": rows.max(axis=1).mean(),
            }
            np.testing.assert_allclose(
                both[int(weighted), layer, head], [expected[key] for key in HEAD_MEASURES], atol=5.1e-5
            )


def test_of_long_texts_the_largest_shares_are_kept(tmp_path: Path) -> None:
    """The budget of 512 tokens x 12 layers x 12 heads, with attention as uneven as that of a trained model."""
    sizes = {"hidden_size": 96, "num_attention_heads": 12, "num_hidden_layers": 12, "intermediate_size": 96}
    model = BertModel.from_pretrained(random_checkpoint(tmp_path / "model", **sizes), backend="numpy")
    ids = np.random.default_rng(0).integers(model.config.vocab_size, size=(1, 512))
    trace = model.trace(ids, edit={"*.scores": Edit.noise(3.0, 0)})
    html = page(trace)
    assert len(html) < 5_000_000
    about, read = decoded(html)
    given = about["texts"][0]["attention"]
    columns, shares = read(given["columns"]).astype(int), read(given["probs"])
    kept = shares.shape[3]
    assert 8 <= kept < 512
    for layer, head, i in ((0, 0, 0), (11, 11, 511), (5, 7, 100)):
        probs = trace[layer, "probs"][0, head, i]
        assert (np.diff(columns[layer, head, i]) > 0).all()
        np.testing.assert_allclose(shares[layer, head, i], probs[columns[layer, head, i]], atol=0.000501)
        assert probs.argmax() in columns[layer, head, i]
    pairs = about["texts"][0]["cosines"]["pairs"]
    assert pairs is not None
    assert all(ids[0, i] == ids[0, j] for i, j in pairs)


# --- bytes and text ---------------------------------------------------------------------------------------------------


def test_each_repeated_word_of_a_long_text_has_its_cosines(minilm: BertModel, tokenizer: BertTokenizer) -> None:
    """The pairs of a frequent word take no place from those of a rare one."""
    text = "the cat saw the dog and the bird near the tree, and the bank " * 20 + "river bank by the river"
    trace = minilm.trace(**tokenizer(text, return_tensors="np"), tokens=tokenizer)
    (found,) = decoded(page(trace, layers=0))[0]["texts"]
    places: dict[str, list[int]] = {}
    for i, token in enumerate(found["tokens"]):
        places.setdefault(token, []).append(i)
    assert len(places["the"]) > 100
    pairs = set(map(tuple, found["cosines"]["pairs"]))
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


@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_new", "relu", "silu", "tanh"])
def test_each_activation_has_its_sentence(hidden_act: str, tmp_path: Path) -> None:
    folder = random_checkpoint(tmp_path / "model", num_hidden_layers=1, hidden_act=hidden_act)
    trace = BertModel.from_pretrained(folder, backend="numpy").trace(np.ones((1, 3), dtype=np.int64))
    (step,) = [one for one in decoded(page(trace))[0]["steps"]["layer"] if one["symbol"] == "intermediate"]
    assert step["words"].endswith(ACTIVATION_WORDS[ACTIVATIONS[hidden_act]])
    trace.save(tmp_path / "trace.npz")
    (step,) = [one for one in decoded(page(Trace.load(tmp_path / "trace.npz")))[0]["steps"]["layer"]
               if one["symbol"] == "intermediate"]  # fmt: skip
    assert step["words"] == "The activation function, number by number."
    assert set(ACTIVATION_WORDS) == set(ACTIVATIONS.values())


def test_sizes_of_a_short_text(trace: Trace) -> None:
    assert len(trace.tokens[0]) == 22
    assert len(page(trace, title="all-MiniLM-L6-v2").encode("utf-8")) < 150_000
    code = sum(len((files("minibert.trace.page") / f"page.{suffix}").read_bytes()) for suffix in ("html", "css", "js"))
    code += len((files("minibert.trace.page") / "open.js").read_bytes())
    assert code < 65_000


def test_the_same_trace_gives_the_same_bytes(trace: Trace, minilm: BertModel, tokenizer: BertTokenizer) -> None:
    again = minilm.trace(**tokenizer(TEXT, return_tensors="np"), tokens=tokenizer)
    assert page(again, title="a") == page(trace, title="a")
    assert page(again, title="b") != page(trace, title="a")


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
        if tag not in ("meta", "input", "th", "td", "tr"):  # the tables without JavaScript leave out some end tags
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("th", "td", "tr"):
            assert self.open.pop() == tag


def test_the_document_is_well_formed_and_asks_for_nothing(trace: Trace) -> None:
    html = page(trace, title="a & b", note="<note>")
    outline = Outline()
    outline.feed(html)
    outline.close()
    assert outline.open == []
    assert len(outline.ids) == len(set(outline.ids))
    assert outline.tags.count("canvas") == 1
    assert "grid-table" in outline.ids, "the table behind the canvas"
    keys = {key for key, _ in outline.attributes}
    places = [value for key, value in outline.attributes if key == "href"]
    assert {place[1:] for place in places} <= set(outline.ids), "links lead to places of the page"
    assert not keys & {"src", "srcset", "style", "action", "background", "ping"}
    assert not [key for key in keys if key.startswith("on")]
    plain = text_of(html).replace("http-equiv", "")
    assert "http" not in plain
    assert "//" not in plain
    assert "@import" not in plain
    assert "url(" not in plain
    policy = next(unescape(value or "") for key, value in outline.attributes if key == "content" and "-src" in value)
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy


def test_the_policy_allows_the_two_scripts_and_the_style_alone(trace: Trace) -> None:
    """page.js is packed with the numbers; its lines are those of the file, without indents and comments."""
    html = page(trace)
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    script = decoded(html)[0]["script"]
    inline = [re.search(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)[1] for tag in ("script", "style")]
    digests = ["sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in
               (inline[0], script, inline[1])]  # fmt: skip
    assert f"script-src '{digests[0]}' '{digests[1]}'; style-src '{digests[2]}'; " in unescape(policy)
    lines = {
        line.strip() for line in (files("minibert.trace.page") / "page.js").read_text(encoding="utf-8").splitlines()
    }
    assert set(script.splitlines()) <= lines
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|fetch\(|XMLHttp|import\(", script)
    assert len(script.splitlines()) > 400


def test_each_symbol_of_the_table_has_a_step_with_its_line_of_code() -> None:
    for part, entries in PARTS.items():
        assert [step.entry for step in steps(part)] == list(entries)
        for step in steps(part):
            assert step.words.endswith(".")
            assert step.lines[0].file == "encoder.py"
            for file, number, text in step.lines:
                lines = (files("minibert.bert") / file).read_text(encoding="utf-8").splitlines()
                assert lines[number - 1].strip() == text


MORE_HOSTILE = [
    *(
        "</ScRiPt >",
        "<script>alert(1)",
        "-->",
        "--!>",
        "<![CDATA[",
        "</textarea>",
        "</title>",
        "</noscript><img src=x>",
    ),
    *("<base href=x>", "<meta http-equiv=refresh>", "<style>*{}", "javascript:alert(1)", "&lt;b&gt;", "&#60;b&#62;"),
    *("'\"><b onclick=x>", "`${alert(1)}`", "\\u003cscript>", "\u2066x\u2069", "\ufeff", "\x1b[31m", "\udfff\ud800"),
    *("\u061c", "\u200b", "\U000e0001", "=cmd|' ' !A0", "\r\n", "__proto__", "constructor", "", "}}{{title}}"),
]
"""What ends an element or a string, changes the direction, or means something to a script or a spreadsheet."""


@needs_data
def test_hostile_tokens_stay_text(small: BertModel) -> None:
    lines = [*naughty_lines(), "</script>", "\ud800", "]]>", "<!--", "{{payload}}", "\u2028", *MORE_HOSTILE]
    for start in range(0, len(lines), 100):
        words = lines[start : start + 100]
        html = page(small.trace(np.ones((1, len(words)), dtype=np.int64), tokens=[words]), title=words[0])
        outline = Outline()
        outline.feed(html)
        assert outline.tags.count("script") == 2
        assert not {"img", "iframe", "object"} & set(outline.tags)
        assert outline.tags.count("svg") == 1
        assert outline.tags.count("a") == 14
        html.encode("utf-8")
        about, _ = decoded(html)
        shown = about["texts"][0]["tokens"]
        assert not [token for token in shown if re.search("[\x00-\x1f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", token)]
        for token, word in zip(shown, words, strict=True):
            assert re.sub("\u27e8U\\+([0-9A-F]+)\u27e9", lambda found: chr(int(found[1], 16)), token) == word


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
        assert trace.select("*" if len(trace) > 1 else list(trace)).output_map(0) is not None


def test_a_frame_for_notebooks(trace: Trace) -> None:
    frame = trace.show(title="x", height=500)
    html = frame._repr_html_()
    source = re.search('srcdoc="([^"]*)"', html)
    assert source is not None
    assert unescape(source[1]) == page(trace, title="x")
    assert 'height="500"' in html
    assert "bytes" in repr(frame)


def test_what_is_refused(trace: Trace, small: BertModel, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    nothing = small.trace(np.ones((1, 2), dtype=np.int64), record=())
    hidden = small.trace(np.ones((1, 2), dtype=np.int64), np.zeros((1, 2), dtype=np.int64))
    for error, message, call in (
        (ValueError, "max_bytes=50,000: attention", lambda: trace.page(file, max_bytes=50_000)),
        (ValueError, "larger than max_bytes=0", lambda: trace.page(file, max_bytes=0)),
        (ValueError, "layers=6; this model has 6 layers", lambda: trace.page(file, layers=6)),
        (TypeError, "heads='all'; expected an int, several", lambda: trace.page(file, heads="all")),
        (ValueError, "sequences=1", lambda: trace.page(file, sequences=[0, 1])),
        (ValueError, "holds no value that the page shows", lambda: nothing.page(file)),
        (ValueError, "holds no token", lambda: hidden.page(file)),
        (TypeError, "title=3; expected a str", lambda: trace.page(file, title=3)),
        (TypeError, "max_bytes='1'", lambda: trace.page(file, max_bytes="1")),
        (TypeError, "errors holds 'x'; expected", lambda: trace.page(file, errors="x")),
        (TypeError, r"errors holds \('a', 1.0\); expected", lambda: trace.page(file, errors=[("a", 1.0)])),
        (ValueError, r"\.html", lambda: trace.page(tmp_path / "page.pdf")),
        (OSError, "there is no folder", lambda: trace.page(tmp_path / "no" / "page.html")),
        (TypeError, "os.PathLike", lambda: trace.page(3)),
        (ValueError, "height=1; expected an int, 100 to 100,000", lambda: trace.show(height=1)),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            call()
    assert not file.exists()
    assert MAX_BYTES == 5_000_000
