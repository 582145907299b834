"""The error of the compute types on real texts, compared with the low precision of other engines (MiniLM).

    python -m benchmarks.low_precision_error [--write]

Two tables, on lines of the Declaration of Human Rights (MINIBERT_TEST_DATA). The first has 1 - cosine between the
sentence vectors of each contender and those of transformers in float32. The contenders are those of
benchmarks/low_precision.py, and onnxruntime with a scale for each row of a weight (per_channel=True). The second table
compares minibert's other compute types with its float32: the hidden states after each layer; the order of the cosines
of pairs of lines, an English one and the one at the same place in another language; and the labels of three
classifiers of the pooled output: the 45 languages and their 18 scripts, both fitted by least squares, and the two sides
of the main direction. They are fitted to every second line, and the labels of the others are compared.
"""

from __future__ import annotations

import tempfile
import unicodedata
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contenders import Contender, start
from benchmarks.low_precision import CONTENDERS, OURS, PER_CHANNEL, TRUTH
from benchmarks.readme import Table, publish, table_parser
from minibert import BertModel, BertTokenizer, SentenceTransformer
from minibert._utils.system import available_cores
from minibert.bert.low_precision import COMPUTE_TYPES
from minibert.bert.ops import Linear
from minibert.checkpoint.files import DEFAULT_MODEL, locate
from tests.support.real_texts import udhr_languages

LOW = [name for name in COMPUTE_TYPES if name != OURS]
MOST_TOKENS = 128  # of a text whose hidden states or labels are compared


def add_errors(label: str, texts: list[str], contenders: dict[str, Contender], truth: Contender, table: Table) -> None:
    """Compare sentence vectors with those of transformers; add two rows: the mean and the largest 1 - cosine."""
    exact = truth.run(texts, 0.0)[1].astype(np.float64)
    means, most = [], []
    for contender in contenders.values():
        apart = np.square(contender.run(texts, 0.0)[1] - exact).sum(axis=1) / 2  # of vectors of length 1: 1 - cosine
        means.append(f"{apart.mean():.1e}")
        most.append(f"{apart.max():.1e}")
    table.add(f"{label}, mean", *means)
    table.add(f"{label}, largest", *most)


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Compute the rank correlation of two arrays without ties."""
    return float(np.corrcoef(x.argsort().argsort(), y.argsort().argsort())[0, 1])


def order_of_pairs(folder: Path, lines: dict[str, list[str]]) -> tuple[int, list[float]]:
    """Return the number of pairs, and the rank correlation of their cosines with those of float32."""
    pairs = [
        pair for name, others in lines.items() if name != "eng" for pair in zip(lines["eng"], others, strict=False)
    ]
    cosines = {}
    for name in COMPUTE_TYPES:
        model = SentenceTransformer(str(folder), compute_type=name)
        first, second = (
            model.encode(list(texts), normalize_embeddings=True, truncation="silent")
            for texts in zip(*pairs, strict=True)
        )
        cosines[name] = np.einsum("ij,ij->i", first.astype(np.float64), second)
    return len(pairs), [spearman(cosines[OURS], cosines[name]) for name in LOW]


def state_errors(models: dict[str, BertModel], tokenizer: BertTokenizer, texts: list[str]) -> dict[str, list[float]]:
    """Return the RMS of the error of each hidden state after a layer, divided by the RMS of float32's."""
    squares: dict[str, Any] = defaultdict(float)
    for first in range(0, len(texts), 50):
        inputs = tokenizer(texts[first : first + 50], padding=True, truncation=True, max_length=MOST_TOKENS)
        exact = models[OURS](**inputs).hidden_states[1:]
        squares[OURS] += np.array([np.square(state, dtype=np.float64).sum() for state in exact])
        for name in LOW:
            found = models[name](**inputs).hidden_states[1:]
            apart = [np.square(x - y, dtype=np.float64).sum() for x, y in zip(found, exact, strict=True)]
            squares[name] += np.array(apart)
    return {name: list(np.sqrt(squares[name] / squares[OURS])) for name in LOW}


def add_labels(
    models: dict[str, BertModel], tokenizer: BertTokenizer, lines: list[tuple[str, str]], table: Table
) -> None:
    """Add the rows of three classifiers: the share of labels that are those of float32, or right."""

    def pooled(model: BertModel, chosen: list[tuple[str, str]]) -> np.ndarray:
        parts = []
        for first in range(0, len(chosen), 100):
            texts = [text for _, text in chosen[first : first + 100]]
            inputs = tokenizer(texts, padding=True, truncation=True, max_length=MOST_TOKENS)
            parts.append(model(**inputs, output_hidden_states=False).pooler_output)
        return np.concatenate(parts)

    fitted, compared = lines[::2], lines[1::2]
    known, found = pooled(models[OURS], fitted), {name: pooled(model, compared) for name, model in models.items()}

    def labels_of(head: np.ndarray) -> dict[str, np.ndarray]:
        linear = Linear(("classifier",), head[:, :-1].astype(np.float32), head[:, -1].astype(np.float32))
        return {
            name: model.ops.linear(found[name], model.ops.prepare(linear)).argmax(axis=1)
            for name, model in models.items()
        }

    def add_row(what: str, labels: dict[str, np.ndarray]) -> None:
        same = (f"{(labels[name] == labels[OURS]).mean():.2%}" for name in LOW)
        table.add(f"same label of {len(compared):,} lines: {what}", *same)

    for what, label_of in (("languages", lambda line: line[0]), ("scripts", lambda line: script_of(line[1]))):
        names = sorted({label_of(line) for line in lines})
        wanted = np.array([[name == label_of(line) for name in names] for line in fitted], np.float64)
        labels = labels_of(np.linalg.lstsq(np.c_[known, np.ones(len(known))], wanted, rcond=None)[0].T)
        add_row(f"{len(names)} {what}", labels)
        truth = np.array([names.index(label_of(line)) for line in compared])
        right = {name: f"{(truth == given).mean():.2%}" for name, given in labels.items()}
        label = f"right label: {len(names)} {what}; float32 {right[OURS]}"
        table.add(label, *(right[name] for name in LOW))
    main_direction = np.linalg.svd(known - known.mean(axis=0), full_matrices=False)[2][0]
    sides = np.c_[[main_direction, -main_direction], [-known.mean(axis=0) @ main_direction] * 2]
    sides[1, -1] *= -1
    add_row("2 sides", labels_of(sides))


def script_of(text: str) -> str:
    """Return the script of most letters of a text: the first word of their names in Unicode, such as LATIN."""
    scripts = Counter(unicodedata.name(letter, "?").split()[0] for letter in text if letter.isalpha())
    return scripts.most_common(1)[0][0]


def main() -> int:
    """Measure, print the tables, and write them into README.md if asked."""
    parser = table_parser("low_precision_error")
    parser.add_argument("--texts", type=int, default=2000, help="real texts (default: %(default)s)")
    options = parser.parse_args()
    folder = locate(DEFAULT_MODEL).require("config.json").parent
    languages = udhr_languages()
    lines = [(name, line) for name, lines in languages.items() for line in lines]
    chosen = [lines[i][1] for i in np.random.default_rng(0).permutation(len(lines))[: options.texts]]

    tokenizer = BertTokenizer.from_pretrained(folder)
    models = {name: BertModel.from_pretrained(folder, compute_type=name) for name in COMPUTE_TYPES}
    table = Table("beside float32", *LOW)
    for i, errors in enumerate(zip(*state_errors(models, tokenizer, chosen[:400]).values(), strict=True)):
        if i in (0, 2, 5):
            table.add(f"hidden state {i + 1}, RMS of the error / RMS", *(f"{x:.1e}" for x in errors))
    count, orders = order_of_pairs(folder, languages)
    table.add(f"Spearman of the cosines of {count:,} pairs", *(f"{x:.6f}" for x in orders))
    add_labels(models, tokenizer, lines, table)
    publish("low precision states", table.lines, "real texts", write=options.write)

    with tempfile.TemporaryDirectory() as scratch_name:
        scratch = Path(scratch_name)
        made = TRUTH | CONTENDERS | {"onnxruntime int8, per_channel=True": PER_CHANNEL}
        with start(made, folder, available_cores(), scratch) as contenders:
            truth = contenders.pop("transformers")
            table = Table("1 - cosine", *contenders)
            labels = f"{len(chosen):,} lines in 45 languages", "English lines"
            for label, texts in zip(labels, (chosen, languages["eng"]), strict=True):
                add_errors(label, texts, contenders, truth, table)
            truth.close()
    publish("low precision error", table.lines, "real texts; beside transformers", write=options.write)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
