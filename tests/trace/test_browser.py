"""The page in a real browser: no requests, no messages, the numbers of the trace, keys, sizes of screens."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minibert import BertForMaskedLM, BertModel, BertTokenizer, Trace
from minibert.cli import main
from minibert.inside import explain_similarity, logit_lens
from minibert.inside.explain import trace_texts
from minibert.inside.representations import page_guesses
from tests.support.browser import open_browser, watched_page
from tests.support.sentence_heads import model_folder

pytestmark = pytest.mark.browser

TEXT = "After stealing money from the bank vault, the bank robber was seen fishing on the Mississippi river bank."


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as result:
        yield result


@pytest.fixture(scope="module")
def trace(minilm: BertModel, tokenizer: BertTokenizer) -> Trace:
    return minilm.trace(**tokenizer([TEXT, "the money bank"], padding=True, return_tensors="np"), tokens=tokenizer)


@pytest.fixture(scope="module")
def file(trace: Trace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "page.html"
    trace.page(path, title="all-MiniLM-L6-v2")
    return path


def choose(page: Any, **chosen: int | str) -> None:
    for key, value in chosen.items():
        page.select_option(f"#{key}", str(value))


def number(text: str) -> float:
    return float(text.replace("\u2212", "-").replace("%", "").replace("\u2013", "nan"))


def numbers(cells: Any) -> list[float]:
    return [number(text) for text in cells.all_text_contents()]


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_random_cells_are_those_of_the_arrays(browser: Any, file: Path, trace: Trace) -> None:
    generator = np.random.default_rng(0)
    values = trace.sequence(0)
    with watched_page(browser, file) as page:
        page.click("#grid-details summary")
        page.locator("#grid-table tbody tr").first.wait_for()
        for _ in range(8):
            layer, head, i, j = (int(generator.integers(n)) for n in (6, 12, 22, 22))
            own = f"encoder.layer.{layer}.attention.self"
            probs, columns = values[f"{own}.probs"][head].astype(np.float64), slice(32 * head, 32 * head + 32)
            lengths = np.linalg.norm(values[f"{own}.value"][:, columns] @ trace.output_map(layer)[:, columns].T, axis=1)
            for mode, shares in (("raw", probs[i]), ("weighted", probs[i] * lengths / (probs[i] * lengths).sum())):
                choose(page, layer=layer, head=head, token=i, other=j, mode=mode)
                cells = numbers(page.locator("#grid-table tbody tr").nth(i).locator("td"))
                np.testing.assert_allclose(cells, 100 * shares, atol=0.0501)
            steps = page.locator("#steps li").all()
            shown = [number(one.split()[-1]) for one in steps[9].locator(".numbers b").all_text_contents()]
            np.testing.assert_allclose(shown, probs[i, :3], rtol=5.01e-3)
            names = [*list(values)[:5], *[name for name in values if f"layer.{layer}." in name]]
            for step, array in zip(steps[:15], [values[name] for name in names[:15]], strict=True):
                if array.ndim == 2:
                    shown = numbers(step.locator(".numbers b"))
                    np.testing.assert_allclose(shown, array[i, :4], rtol=5.01e-3, atol=1e-7)
                    rms = number(step.locator(".rms").text_content().removeprefix("RMS "))
                    assert rms == pytest.approx(np.sqrt(np.square(array[i], dtype=np.float64).mean()), rel=5.01e-3)


def test_the_map_the_flow_and_the_words_are_those_of_the_arrays(browser: Any, file: Path, trace: Trace) -> None:
    values = trace.sequence(0)
    states = [values["embeddings"], *(values[f"encoder.layer.{i}"] for i in range(6))]
    probs = np.concatenate([values[f"encoder.layer.{i}.attention.self.probs"] for i in range(6)])
    with watched_page(browser, file) as page:
        choose(page, token=19, other=6)
        previous = np.diagonal(probs, -1, axis1=1, axis2=2).mean(axis=1)
        for measure, expected in (("chosen", probs[:, 19, 6]), ("previous", previous)):
            choose(page, measure=measure)
            np.testing.assert_allclose(numbers(page.locator("#map tbody button")), 100 * expected, atol=0.551)
        for state, row in enumerate(page.locator("#flow tbody tr").all()):
            cells = numbers(row.locator("td"))
            assert cells[4] == pytest.approx(cosine(states[state][19], states[state][6]), abs=6e-4)
            if state:
                own = f"encoder.layer.{state - 1}"
                dense = [values[f"{own}.{name}"][19] for name in ("attention.output.dense", "output.dense")]
                np.testing.assert_allclose(cells[:2], [np.sqrt(np.square(x).mean()) for x in dense], rtol=5.01e-3)
                before = [cosine(states[state][19], states[k][19]) for k in (state - 1, 0)]
                np.testing.assert_allclose(cells[2:4], before, atol=6e-4)
        for state, row in enumerate(page.locator("#words tbody tr").all()):
            expected = [cosine(states[state][a], states[state][b]) for a, b in ((6, 10), (6, 19), (10, 19))]
            assert row.locator("td").all_text_contents() == [f"{one:.3f}" for one in expected], "rounded once"


def test_the_forward_pass_leads_to_each_step_and_the_arcs_to_each_token(browser: Any, file: Path, trace: Trace) -> None:
    with watched_page(browser, file, viewport={"width": 1280, "height": 900}) as page:
        choose(page, layer=3, head=1, token=19, other=10)
        boxes = page.locator("#pass a")
        assert boxes.count() == page.locator("#steps li").count() == 21
        for place in range(0, 21, 5):
            boxes.nth(place).click()
            assert page.evaluate("document.activeElement.id") == f"step-{place + 1}"
        for token in (0, 19):
            choose(page, layer=3, token=token)
            shares = trace[3, "probs"][0, 1, token]
            assert page.locator("#arcs path").count() == sum(shares[j] >= 0.0095 for j in range(22) if j != token)


# --- keys, screens, schemes -------------------------------------------------------------------------------------------


def test_every_control_is_reached_and_used_with_keys(browser: Any, file: Path) -> None:
    with watched_page(browser, file, viewport={"width": 1280, "height": 900}) as page:
        choose(page, text=0)
        reached = []
        for _ in range(110):
            page.keyboard.press("Tab")
            reached.append(page.evaluate("(e => e.id || e.closest('[id]')?.id)(document.activeElement)"))
        keys = "theme help text token other layer head mode strip map measure to from grid grid-details word"
        assert {*keys.split()} <= {*reached}
        choose(page, token=3, other=4, layer=2, head=5)
        for place, pressed, expected in (
            ("#strip [aria-pressed=true]", "ArrowRight", (4, 4, 2, 5)),
            ("#strip [aria-pressed=true]", "Home ArrowLeft", (0, 4, 2, 5)),
            ("#map [aria-pressed=true]", "ArrowDown ArrowRight", (0, 4, 3, 6)),
            ("#grid", "ArrowDown ArrowRight ArrowRight ArrowDown", (2, 6, 3, 6)),
        ):
            page.focus(place)
            for key in pressed.split():
                page.keyboard.press(key)
            assert tuple(int(page.input_value(f"#{key}")) for key in ("token", "other", "layer", "head")) == expected
        assert "Row 2 stealing, column 6 bank" in page.get_attribute("#grid", "aria-label")
        for key, visible in (("?", True), ("Escape", False)):
            page.keyboard.press(key)
            assert page.locator("#keys").is_visible() == visible
        for place in ("#to li:nth-child(3) button", "#from li:nth-child(2) button"):
            page.focus(place)
            page.keyboard.press("Enter")
            assert page.input_value("#other") == page.text_content(place).split()[0]
            assert page.evaluate(f"document.activeElement === document.querySelector('{place}')"), "the focus stays"


def test_a_letter_or_the_bar_of_a_phone_goes_to_the_next_layer_and_head(browser: Any, file: Path) -> None:
    with watched_page(browser, file, viewport={"width": 390, "height": 844}) as page:
        choose(page, layer=4, head=1)
        for key, expected in (("l", (5, 1)), ("l", (5, 1)), ("L", (4, 1)), ("h", (4, 2)), ("H", (4, 1)), ("H", (4, 0))):
            page.keyboard.press(key)
            assert tuple(int(page.input_value(f"#{name}")) for name in ("layer", "head")) == expected, key
        page.click("#bar button[aria-label='Layer before']")
        page.click("#bar button[aria-label='Head after']")
        assert page.locator("#bar output").all_text_contents() == ["Layer 3", "Head 1"]
        page.click("#help")
        page.uncheck("#question")
        page.keyboard.press("Escape")
        page.keyboard.press("l")
        assert page.input_value("#layer") == "3", "the letters can be switched off"


def test_a_phone_shows_no_small_text_and_no_small_control(browser: Any, file: Path) -> None:
    with watched_page(browser, file, viewport={"width": 390, "height": 844}) as page:
        shown = "[...document.querySelectorAll('*')].filter(e => e.offsetParent)"
        text = "e => [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())"
        sizes = page.evaluate(f"{shown}.filter({text}).map(e => parseFloat(getComputedStyle(e).fontSize))")
        assert min(sizes) >= 12
        controls = page.evaluate(
            f"{shown}.filter(e => e.matches('a, button, select, summary')).map(e => e.offsetHeight)"
        )
        assert min(controls) >= 24
        page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
        ends, begin = page.evaluate("['about', 'bar'].map(id => document.getElementById(id).getBoundingClientRect().y)")
        height = page.evaluate("document.getElementById('about').offsetHeight")
        assert ends + height <= begin, "the bar covers nothing at the end of the page"
        assert page.evaluate("document.getElementById('bar').offsetWidth") == 390


@pytest.mark.parametrize("width", [320, 640, 1280, 3840])
def test_a_screen_of_any_width_shows_everything_with_any_font(browser: Any, file: Path, width: int) -> None:
    with watched_page(browser, file, viewport={"width": width, "height": 800}, reduced_motion="reduce") as page:
        for style in ("", "letter-spacing: 0.15em", "letter-spacing: -0.08em", "font-family: monospace"):
            sheet = f"x => {{ const s = new CSSStyleSheet(); s.replaceSync('* {{ {style} !important }}'); "
            page.evaluate(f"{sheet} document.adoptedStyleSheets = [s]; }}", 0)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, style
        assert page.evaluate("document.getAnimations().length") == 0


def test_the_address_says_what_is_shown(browser: Any, file: Path, trace: Trace) -> None:
    keys = ("text", "token", "other", "layer", "head", "mode")
    with watched_page(browser, file) as page:
        choose(page, text=1)
        assert page.locator("#strip bdi").all_text_contents() == trace.tokens[1]
        choose(page, token=2, other=3, layer=4, head=1, mode="raw")
        assert f"money gives bank {100 * trace[4, 'probs'][1, 1, 2, 3]:.1f}\u00a0%" in page.text_content("#say")
        address = page.url
    with closing(browser.new_context()) as context:
        page = context.new_page()
        page.goto(address)
        page.wait_for_selector("html[data-ready]")
        assert [page.input_value(f"#{key}") for key in keys] == ["1", "2", "3", "4", "1", "raw"]
        for wrong in ("#token=99&text=0", "#text=0&layer=-1&mode=x", "#%", "#text=7&token=1"):
            page.goto("about:blank")
            page.goto(file.as_uri() + wrong)
            page.wait_for_selector("html[data-ready]")
            assert page.input_value("#text") == "0"


def test_the_data_as_files(browser: Any, file: Path, trace: Trace) -> None:
    with watched_page(browser, file) as page:
        content = {}
        for kind in ("csv", "json"):
            with page.expect_download() as download:
                page.click(f"#save-{kind}")
            content[kind] = Path(download.value.path()).read_text(encoding="utf-8")
    rows = list(csv.DictReader(io.StringIO(content["csv"])))
    assert len(rows) == 6 * 12 * 22 * 22
    for row in rows[::174]:
        layer, head, i, j = (int(row[key]) for key in ("layer", "head", "token", "other"))
        assert float(row["prob"]) == pytest.approx(float(trace[layer, "probs"][0, head, i, j]), abs=5.1e-4)
        assert (row["token_text"], row["other_text"]) == (trace.tokens[0][i], trace.tokens[0][j])
    data = json.loads(content["json"])
    expected = np.stack([trace[layer, "probs"][0] for layer in range(6)])
    np.testing.assert_allclose(np.array(data["texts"][0]["attention"]["probs"]), expected, atol=5.1e-4)
    assert data["texts"][1]["tokens"] == trace.tokens[1]


def test_the_pictures(browser: Any, trace: Trace, tmp_path: Path, request: Any) -> None:
    """`pytest -m browser --write-picture` makes them again: the page, and its text with arcs for the front page."""
    from PIL import Image  # matplotlib brings it

    written = request.config.getoption("--write-picture")
    folder = Path(__file__).parents[2] / ".github" if written else tmp_path
    trace.page(tmp_path / "page.html", title="all-MiniLM-L6-v2", sequences=0)
    pictures: dict[str, bytes] = {}
    size = {"width": 1180, "height": 1500}
    for scheme, suffix in (("light", ""), ("dark", "-dark")):
        with watched_page(browser, tmp_path / "page.html", viewport=size, color_scheme=scheme) as page:
            choose(page, token=19, other=11, layer=0, head=1)
            top = page.locator("#h-text").bounding_box()["y"] - 12
            arcs = page.screenshot(clip={"x": 0, "y": top, "width": 1180, "height": 288})
            pictures |= {f"arcs{suffix}.png": arcs} | ({"page.png": page.screenshot()} if scheme == "light" else {})
    for name, picture in pictures.items():
        small = Image.open(io.BytesIO(picture)).convert("RGB").quantize(64, dither=Image.Dither.NONE)
        small.save(folder / name, optimize=True)
        assert 10_000 < (folder / name).stat().st_size < (120_000 if name == "page.png" else 30_000)


# --- other traces -----------------------------------------------------------------------------------------------------


def test_the_parts_of_a_cosine(browser: Any, minilm_sentences: Any, tmp_path: Path) -> None:
    path, texts = tmp_path / "pair.html", ("The bank lends money to the farmer.", "He sat on the river bank.")
    assert main(["inspect", texts[0], "--pair", texts[1], "-o", str(path)]) == 0
    result = explain_similarity(minilm_sentences, *texts)
    with watched_page(browser, path) as page:
        assert f"is {result.cosine:.3f}. It is the sum of 11 \u00d7 9 = 99 parts" in page.text_content("#parts-words")
        shown = numbers(page.locator("#parts .number"))
        np.testing.assert_allclose(shown, [part for _, _, part in result.largest(10)], atol=5.1e-5)
        page.click("#parts-details summary")
        page.locator("#parts-table tbody tr").first.wait_for()
        sums = result.parts.sum(axis=1, keepdims=True)
        cells = numbers(page.locator("#parts-table td"))
        np.testing.assert_allclose(cells, np.hstack([result.parts, sums]).ravel(), atol=6e-5)


def test_guesses_and_errors(browser: Any, tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model", "BertForMaskedLM")
    model, tokenizer = BertForMaskedLM.from_pretrained(folder), BertTokenizer.from_pretrained(folder)
    trace, _ = trace_texts(model, tokenizer, ["the [MASK] cat"])
    lens = logit_lens(model, trace, 3)
    rows = [("embeddings", 0.9, "float32"), ("<b>encoder.layer.0", 2310.4, "wrong"), ("encoder.layer.1", 9e9, "wrong")]
    trace.page(tmp_path / "page.html", guesses=page_guesses(model, trace, tokenizer), errors=rows)
    with watched_page(browser, tmp_path / "page.html") as page:
        assert page.input_value("#token") == "2", "[MASK] is chosen at the start"
        for state, row in enumerate(page.locator("#guesses tbody tr").all()):
            words = tokenizer.convert_ids_to_tokens(lens.ids[state, 0, 2].tolist())
            assert row.locator("td bdi").all_text_contents() == words
            shown = [number(cell.split()[-2]) for cell in row.locator("td").all_text_contents()]
            np.testing.assert_allclose(shown, 100 * lens.probs[state, 0, 2], atol=0.0501)
        assert "The first wrong value is <b>encoder.layer.0." in page.text_content("#errors-words")
        assert page.locator("#errors td.lowest").all_text_contents() == ["2.31e+03"]
        assert page.locator("#errors b").count() == 0
