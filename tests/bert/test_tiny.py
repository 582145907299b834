"""tiny.py, all of BERT in one short file: tokens equal transformers', numbers differ by at most 1e-5."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentence_transformers
import torch
import transformers
from safetensors.numpy import load_file, save_file

from minibert import BertModel
from minibert.bert import tiny
from minibert.bert.tiny import Bert
from tests.support.checkpoints import random_checkpoint
from tests.support.outcomes import python
from tests.support.report import REPORT
from tests.support.safetensors_files import old_name
from tests.support.shape_comments import SIZES, Observer, check_comment, trailing_comments
from tests.support.text_data import VARIABLE, data_path, naughty_lines, needs_data, tokenization_cases, udhr_lines
from tests.support.tokenizer_files import AWKWARD_TEXTS

SOURCE = Path(tiny.__file__)
TEXTS = [
    *AWKWARD_TEXTS,
    "The cat sat on the mat.",
    "Ünïcödé, naïve; Åse's Smørrebrød: ΌΔΥΣΣΕΎΣ ΑΣ!",
    "人工智能 and 日本語のテキスト, 豈 \U00020001 \U0002b821 \U0002b921",
    "tab\tline\r\nbreak\x0b\x0c\x1c\x85\u2028\u2029\u3000\xa0end",
    "a\u200bb\u00adc\ue000d\ufffde\x00f",
    "$+<=>^`|~ !\"#%&'()*,-./:;?@[\\]_{} “” … ¿ ॥ ‿",
    "🙂 👍🏽 ❤️ zebra🙂crossing",
    "xyzzyqwertzuiopü plughplughplugh",
    "[CLS][SEP] a[MASK]b [mask] [ MASK ]",
    "word " * 600,
]


@pytest.fixture(scope="module")
def minilm(minilm_folder: Path) -> Bert:
    return Bert(minilm_folder)


def difference(found: np.ndarray, expected: Any) -> float:
    assert found.dtype == np.float64
    assert found.shape == tuple(expected.shape)
    assert found.size
    return float(np.abs(found - np.asarray(expected)).max())


# --- tokens ----------------------------------------------------------------------------------------------------------


def compare_tokens(model: Bert, tokenizer: Any, texts: list[str]) -> int:
    """Compare all tokens and ids; return the number of tokens."""
    count = 0
    expected = tokenizer(texts, truncation=True, max_length=model.config["max_position_embeddings"])["input_ids"]
    for text, ids in zip(texts, expected, strict=True):
        tokens = model.tokenize(text)
        assert tokens == tokenizer.convert_ids_to_tokens(ids), repr(text)
        assert [model.vocabulary[token] for token in tokens] == ids, repr(text)
        count += len(tokens)
    return count


def test_tokens_are_those_of_transformers(minilm: Bert, their_tokenizer: Any) -> None:
    assert compare_tokens(minilm, their_tokenizer, TEXTS) > 1000


def real_texts() -> list[str]:
    """Read lines of the Declaration in 45 languages, all naughty strings, and the texts of other libraries' tests."""
    cases = [text for case in tokenization_cases() if isinstance(text := case.get("text"), str)]
    return [*udhr_lines()[::20], *naughty_lines(), *cases]


@needs_data
def test_tokens_of_real_texts_are_those_of_transformers(minilm: Bert, their_tokenizer: Any) -> None:
    texts = real_texts()
    count = compare_tokens(minilm, their_tokenizer, texts)
    REPORT.append(f"tiny.py: {count} tokens of {len(texts)} texts equal transformers', uncased")
    assert len(texts) > 800


@needs_data
@pytest.mark.parametrize("name", ["bert-base-cased", "bert-base-multilingual-cased", "bert-base-chinese"])
def test_tokens_of_a_cased_vocabulary_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    vocabulary = data_path(f"vocab/{name}.txt")
    folder = random_checkpoint(tmp_path, vocab_size=len(vocabulary.read_text(encoding="utf-8").split("\n")) - 1)
    shutil.copyfile(vocabulary, folder / "vocab.txt")
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}', encoding="utf-8")
    texts = [*TEXTS, *real_texts()[::3]]
    count = compare_tokens(Bert(folder), transformers.BertTokenizer.from_pretrained(folder), texts)
    REPORT.append(f"tiny.py: {count} tokens of {len(texts)} texts equal transformers', {name}")


# --- numbers ---------------------------------------------------------------------------------------------------------


def forward_texts() -> list[str]:
    texts = [text for text in TEXTS if len(text) < 600]
    return texts[-6:] + ([*udhr_lines()[::800]] if os.environ.get(VARIABLE) else texts[:6])


def test_numbers_are_within_1e_5_of_the_libraries(minilm: Bert, minilm_folder: Path, their_tokenizer: Any) -> None:
    texts = forward_texts()
    assert len(texts) >= 12
    ours = BertModel.from_pretrained(minilm_folder)
    exact = transformers.BertModel.from_pretrained(minilm_folder).double().eval()
    encoder = sentence_transformers.SentenceTransformer(str(minilm_folder), device="cpu")
    encoder.max_seq_length = 512
    worst = {"BertModel": 0.0, "transformers in float64": 0.0, "vectors of sentence-transformers": 0.0}
    for text in texts:
        inputs = their_tokenizer(text, truncation=True, max_length=512, return_tensors="pt")
        with torch.inference_mode():
            theirs = exact(**inputs, output_hidden_states=True).hidden_states
        tokens = minilm.tokenize(text)
        found = minilm.hidden_states(tokens)
        others = {"BertModel": ours(inputs["input_ids"].numpy()).hidden_states, "transformers in float64": theirs}
        for name, states in others.items():
            errors = [difference(state, other[0]) for state, other in zip(found, states, strict=True)]
            worst[name] = max(worst[name], *errors)
        name = "vectors of sentence-transformers"
        worst[name] = max(worst[name], difference(minilm.vector(tokens), encoder.encode(text)))
    REPORT.append(f"tiny.py, {len(texts)} texts: " + ", ".join(f"{name} {error:.1e}" for name, error in worst.items()))
    assert worst["BertModel"] < 1e-5
    assert worst["transformers in float64"] < 1e-10
    assert worst["vectors of sentence-transformers"] < 1e-5


@pytest.mark.parametrize("options", [{}, {"dtype": "float16"}, {"prefix": "bert."}, {"layer_norm_eps": 0.3}], ids=str)
def test_other_models_and_files_are_read(options: dict[str, Any], tmp_path: Path) -> None:
    folder = random_checkpoint(tmp_path, **options)
    reference = transformers.BertModel.from_pretrained(folder, dtype=torch.float32).eval()
    model = Bert(folder)
    tokens = model.tokenize("the first cat sat fish, and 3 matest!")
    with torch.inference_mode():
        ids = torch.tensor([[model.vocabulary[token] for token in tokens]])
        expected = reference(ids, output_hidden_states=True).hidden_states
    for state, other in zip(model.hidden_states(tokens), expected, strict=True):
        assert difference(state, other[0]) < 1e-5


def test_old_names_of_layer_norms_are_read(tmp_path: Path) -> None:
    path = random_checkpoint(tmp_path) / "model.safetensors"
    new = load_file(path)
    save_file({old_name(name): array for name, array in new.items()}, path)
    found = tiny.read_safetensors(path)
    assert found.keys() == new.keys()
    for name, array in new.items():
        np.testing.assert_array_equal(found[name], array)


def test_another_model_is_refused(tmp_path: Path) -> None:
    random_checkpoint(tmp_path, hidden_act="relu")
    with pytest.raises(ValueError, match="is not a BERT model with hidden_act='gelu'"):
        Bert(tmp_path)


# --- the page --------------------------------------------------------------------------------------------------------


def test_the_shape_comments_are_correct(tmp_path: Path) -> None:
    model = Bert(random_checkpoint(tmp_path, **SIZES))
    tokens = [*model.vocabulary][:17]
    H, A, F = (SIZES[name] for name in ("hidden_size", "num_attention_heads", "intermediate_size"))
    observer = Observer({"tiny.py": SOURCE}, {"T": len(tokens), "H": H, "A": A, "D": H // A, "F": F})
    previous = sys.gettrace()
    sys.settrace(observer)
    try:
        model.vector(tokens)
    finally:
        sys.settrace(previous)
    checked = 0
    for number, comment in trailing_comments(SOURCE.read_text(encoding="utf-8")).items():
        if re.match(r"# (\d x )?\(", comment):
            executions = [seen for seen in observer.observations if seen.line == ("tiny.py", number)]
            assert not list(check_comment(comment, executions, [])), f"line {number}: {comment}"
            checked += 1
    assert checked >= 15


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command_prints_tokens_and_numbers(minilm: Bert) -> None:
    done = python("-m", "minibert.bert.tiny", "A café.", PYTHONIOENCODING="utf-8")
    assert (done.returncode, done.stderr) == (0, "")
    tokens, _, numbers = done.stdout.partition("\n")
    assert tokens == "[CLS] a cafe . [SEP]"
    printed = [float(number) for number in numbers.strip("[] \n").split()]
    np.testing.assert_allclose(printed, minilm.vector(tokens.split())[: len(printed)], atol=1e-6)
    assert len(printed) >= 4
