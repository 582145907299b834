"""The error of every hidden state, and of the logits of BERT's successors: minibert and transformers beside float64.

``python -m benchmarks.parity`` prints the table, ``--write`` also puts it into benchmarks/README.md.
MINIBERT_TEST_DATA must name the folder with udhr.tsv, the real texts. The exit code is 1 if a row exceeds the budget.

Hidden states are compared with the same forward in float64, and logits with those of transformers in float64.

The budget comes from the error of transformers: minibert's root mean square (RMS) error may be at most the larger one
of transformers' two (attention "eager" and "sdpa"), and its greatest error at most 1.5 times the larger one of theirs.
The aim is half their RMS.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from benchmarks.contenders import make_base
from benchmarks.readme import publish, table_parser
from minibert import AutoConfig, BertConfig, BertTokenizer, load
from minibert._utils.system import available_cores
from minibert._utils.validation import FloatArray
from minibert.bert.families import FAMILIES
from minibert.bert.norm_first import FORWARDS
from minibert.checkpoint.files import DEFAULT_MODEL, locate
from minibert.models.inputs import pack
from minibert.models.loading import load_weights
from tests.support import definition as float64
from tests.support.random_checkpoints import ODD, random_checkpoint, random_successor, sizes
from tests.support.real_texts import udhr_languages

MIN_TOKENS, MIN_LOGITS = 2000, 500
"""Errors are measured over at least this many visible tokens, or logits: the ratio of fewer numbers is chance."""

MINIBERT, TRANSFORMERS = ("kernels", "numpy"), ("eager", "sdpa")
CONTENDERS = (*MINIBERT, *TRANSFORMERS)

_OTHER_LANGUAGES = ("deu_1996", "fra", "spa", "pol", "tur", "rus", "vie")
_BATCH_SIZE = 16

Inputs: TypeAlias = dict[str, np.ndarray]
"""Padded input_ids, token_type_ids and attention_mask, in transformers' form."""

States: TypeAlias = list[FloatArray]
"""Every hidden state, (T, H) each: the visible tokens of all batches. Of a model with a head, its logits alone."""


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model in a folder, and its inputs; `head` is "ForMaskedLM" and the like if its logits are measured."""

    name: str
    folder: Path
    batches: Sequence[Inputs]
    head: str = ""


@dataclasses.dataclass(frozen=True)
class Row:
    """The errors of one hidden state of one model, by contender; or of a head's logits, with their number."""

    model: str
    index: int | str
    count: int
    errors: dict[str, float64.Error]

    @property
    def rms_limit(self) -> float:
        """Return the larger of transformers' two RMS errors."""
        return max(self.errors[name].rms for name in TRANSFORMERS)

    @property
    def max_limit(self) -> float:
        """Return 1.5 times the larger of transformers' two greatest errors."""
        return 1.5 * max(self.errors[name].max for name in TRANSFORMERS)

    def ratio(self, backend: str) -> float:
        """Divide minibert's RMS error by the larger one of theirs: 1 is the budget, 0.5 the aim."""
        return self.errors[backend].rms / self.rms_limit

    def max_ratio(self, backend: str) -> float:
        """Divide minibert's greatest error by the largest that the budget allows."""
        return self.errors[backend].max / self.max_limit

    def held(self, backend: str) -> bool:
        """Return whether this backend is within the budget here."""
        return self.ratio(backend) <= 1 and self.max_ratio(backend) <= 1


# --- measuring -------------------------------------------------------------------------------------------------------


def measure(subject: Subject, *, num_threads: int | None = None) -> list[Row]:
    """Run the float64 forward and every contender on a subject; return one row per hidden state.

    Raises
    ------
    ValueError
        The subject has fewer than `MIN_TOKENS` visible tokens, or `MIN_LOGITS` logits.
    """
    exact = _run_transformers(subject, "float64", num_threads) if subject.head else _float64_states(subject)
    count, least = (exact[0].size, MIN_LOGITS) if subject.head else (len(exact[0]), MIN_TOKENS)
    if count < least:
        raise ValueError(f"{subject.name} has {count} tokens or logits; errors are measured over at least {least}.")
    errors = {}
    for contender in CONTENDERS:  # one after the other, so that only one model's states are in memory beside `exact`
        run = _run_minibert if contender in MINIBERT else _run_transformers
        states = run(subject, contender, num_threads)
        errors[contender] = [float64.measure(state, wanted) for state, wanted in zip(states, exact, strict=True)]
    return [
        Row(subject.name, subject.head or i, count, {contender: errors[contender][i] for contender in CONTENDERS})
        for i in range(len(exact))
    ]


def _float64_states(subject: Subject) -> States:
    files = locate(subject.folder)
    config = BertConfig.from_files(files)
    weights = load_weights(files, config, float64.OPS.prepare)

    def run(inputs: Inputs) -> Iterator[FloatArray]:
        batch = pack(config, **inputs)
        return FORWARDS[config.family.forward](weights, batch, float64.OPS)

    states = _over_batches(subject, run)
    assert all(state.dtype == np.float64 for state in states)
    return states


def _run_minibert(subject: Subject, backend: str, num_threads: int | None) -> States:
    model = load(subject.folder, backend=backend, num_threads=num_threads)

    def run(inputs: Inputs) -> Iterable[FloatArray]:
        return _visible(model(**inputs, output_hidden_states=not subject.head), inputs)

    return _over_batches(subject, run)


def _run_transformers(subject: Subject, attention: str, num_threads: int | None) -> States:
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    double = attention == "float64"
    model = getattr(transformers, f"AutoModel{subject.head}").from_pretrained(  # in its evaluation mode
        subject.folder,
        attn_implementation="eager" if double else attention,
        dtype=torch.float64 if double else torch.float32,
        local_files_only=True,
    )

    def run(inputs: Inputs) -> Iterable[FloatArray]:
        tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
        with torch.no_grad():
            return _visible(model(**tensors, output_hidden_states=not subject.head), inputs)

    return _over_batches(subject, run)


def _visible(output: Any, inputs: Inputs) -> Iterator[FloatArray]:
    """Yield the hidden states of an output at visible tokens; without them, all its logits that are not masked."""
    mask = inputs["attention_mask"].astype(bool)
    states = output.get("hidden_states")
    if states is not None:
        yield from (np.asarray(state)[mask] for state in states)
        return
    logits = [np.asarray(output[name]) for name in output.keys() if name.endswith("logits")]  # noqa: SIM118
    yield np.concatenate([(x[mask] if x.shape[: mask.ndim] == mask.shape else x).ravel() for x in logits])


def _over_batches(subject: Subject, run: Callable[[Inputs], Iterable[FloatArray]]) -> States:
    per_batch = [list(run(inputs)) for inputs in subject.batches]
    return [np.concatenate(states) for states in zip(*per_batch, strict=True)]


# --- subjects --------------------------------------------------------------------------------------------------------


def minilm_subject(texts: Sequence[str]) -> Subject:
    """Return all-MiniLM-L6-v2 with its real weights, on real texts."""
    tokenizer = BertTokenizer.from_pretrained(DEFAULT_MODEL)
    by_length = sorted(texts, key=len)
    batches = []
    for first in range(0, len(by_length), _BATCH_SIZE):
        encoded = tokenizer(by_length[first : first + _BATCH_SIZE], padding=True, truncation=True)
        batches.append({name: np.asarray(encoded[name]) for name in _INPUT_NAMES})
    return Subject("MiniLM", locate(DEFAULT_MODEL).require("config.json").parent, batches)


_INPUT_NAMES = ("input_ids", "token_type_ids", "attention_mask")


def base_subject(folder: Path, num_layers: int = 12, num_words: int = 30522) -> Subject:
    """Make a random BERT of the size of bert-base (transformers' defaults), or with fewer layers or words."""
    return _random_subject(f"random {num_layers} x 768", make_base(folder, num_layers, num_words), _BASE_LENGTHS)


_BASE_LENGTHS = ((512, 511), (257, 256, 251), (128, 101, 22, 1))


def odd_subject(folder: Path) -> Subject:
    """Make an odd-shaped BERT: 7 attention heads of 12, and every other field is unusual too."""
    random_checkpoint(folder, **ODD)
    return _random_subject("odd 3 x 84, gelu_new", folder, [(37, 101, 2, 64, 89, 1, 53, 128)] * 5)


def narrow_subject(folder: Path) -> Subject:
    """Make another odd-shaped BERT: one attention head of 65, 65 words, relu."""
    odd = sizes(V=65, H=65, L=2, A=1, F=129, P=65, types=1)
    random_checkpoint(folder, **odd, hidden_act="relu", layer_norm_eps=1e-12)
    return _random_subject("odd 2 x 65, relu", folder, [(65, 33, 7, 31, 17)] * 14)


def successor_subject(folder: Path, name: str) -> Subject:
    """Make a random model of one of `SUCCESSORS`, and texts of which one is longer than BERT's."""
    model_type, fields = SUCCESSORS[name]
    return _random_subject(name, random_successor(folder, model_type, **fields), ((1100, 300), (257, 256, 101, 22, 1)))


SUCCESSORS: dict[str, tuple[str, dict[str, Any]]] = {
    "nomic_bert 12 x 768": ("nomic_bert", {}),
    "gte 12 x 768": ("gte", {"vocab_size": 2000}),
    "jina_embeddings_v3 24 x 1024": ("jina_embeddings_v3", {"vocab_size": 2000}),
    "ModernBERT 22 x 768": ("modernbert", {}),
}
"""The sizes of the real models; two have fewer words, because a look-up is exact."""


def head_subjects(folder: Path, model_type: str, *, seed: int = 0, **fields: Any) -> Iterator[Subject]:
    """Make random models with each head that transformers has of a family, and texts of 16 to 64 tokens."""
    import transformers

    for (head, pooling), num_texts in _HEADS.items():
        class_name = f"{FAMILIES[model_type].class_name}{head}"
        if not hasattr(transformers, class_name) or (pooling and model_type != "modernbert"):
            continue
        own: dict[str, Any] = {"vocab_size": 2000, **fields}
        own |= {f"{token}_token_id": i for i, token in enumerate(("pad", "bos", "eos", "cls", "sep"))}
        own |= {"classifier_pooling": pooling} if pooling else {}
        own |= {"num_labels": 3} if head in ("ForSequenceClassification", "ForTokenClassification") else {}
        path = random_successor(folder / (head + pooling), model_type, head=head, seed=seed, **own)
        lengths = np.random.default_rng(seed).integers(16, 65, size=(num_texts // _BATCH_SIZE, _BATCH_SIZE))
        config = AutoConfig.from_pretrained(path)
        name = f"{model_type} {config.num_hidden_layers} x {config.hidden_size}{pooling and f', {pooling}'}"
        subject = _random_subject(name, path, lengths.tolist(), seed)
        if head == "ForMultipleChoice":
            pairs = [{key: x.reshape(-1, 2, x.shape[1]) for key, x in batch.items()} for batch in subject.batches]
            subject = dataclasses.replace(subject, batches=pairs)
        yield dataclasses.replace(subject, head=head)


# The number of texts for a head and a pooling: if a text gives few numbers, there are more texts.
_HEADS = {
    ("ForMaskedLM", ""): 16,
    ("ForSequenceClassification", ""): 256,
    ("ForSequenceClassification", "mean"): 256,
    ("ForTokenClassification", ""): 32,
    ("ForQuestionAnswering", ""): 32,
    ("ForMultipleChoice", ""): 512,
}


def _random_subject(name: str, folder: Path, batches_of_lengths: Sequence[Sequence[int]], seed: int = 0) -> Subject:
    """Pair a model with random ids and token types; the mask of each batch's first sequence has holes."""
    config = AutoConfig.from_pretrained(folder)
    generator = np.random.default_rng(seed)
    batches: list[Inputs] = []
    for lengths in batches_of_lengths:
        mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
        mask[0, generator.integers(1, lengths[0], size=3)] = 0
        inputs = {"input_ids": generator.integers(0, config.vocab_size, size=mask.shape), "attention_mask": mask}
        if config.has_token_types:
            inputs["token_type_ids"] = generator.integers(0, config.type_vocab_size, size=mask.shape)
        batches.append(inputs)
    return Subject(name, folder, batches)


def udhr_texts() -> list[str]:
    """Return the Declaration of Human Rights in English, and a few lines in languages MiniLM hardly knows."""
    lines = udhr_languages()
    return lines["eng"] + [text for language in _OTHER_LANGUAGES for text in lines[language][:8]]


# --- reporting -------------------------------------------------------------------------------------------------------


def table(rows: Sequence[Row]) -> str:
    """Return the Markdown table: each head and hidden state, of deep models every fourth state and what is over."""
    lines = [
        '| model | of | minibert: RMS / max | backend="numpy" | transformers eager | transformers sdpa | ratio |',
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    previous = ""
    deep = {row.model for row in rows if row.index == 12}
    for row in rows:
        if row.model in deep and row.index % 4 and row.held("kernels"):
            continue
        errors = " | ".join(_pair(row.errors[contender]) for contender in CONTENDERS)
        model = f"{row.model}, {row.count:,} {'logits' if isinstance(row.index, str) else 'tokens'}"
        mark = "" if row.held("kernels") else " (over)"
        shown = model if model != previous else ""
        lines.append(f"| {shown} | {row.index} | {errors} | {row.ratio('kernels'):.2f}{mark} |")
        previous = model
    return "\n".join(lines)


def _pair(error: float64.Error) -> str:
    return f"{error.rms:.1e} / {error.max:.1e}"


def summary(rows: Sequence[Row]) -> list[str]:
    """Return a line for each model and backend: its ratios, the rows over budget, and the rows that miss the aim."""
    lines = []
    for model in dict.fromkeys(row.model for row in rows):
        mine = [row for row in rows if row.model == model]
        for backend in MINIBERT:
            ratios = [row.ratio(backend) for row in mine]
            greatest = max(row.max_ratio(backend) for row in mine)
            over = ", ".join(str(row.index) for row in mine if not row.held(backend))
            missed = ", ".join(str(row.index) for row in mine if row.ratio(backend) > 0.5)
            lines.append(
                f"{model}, {backend}: {len(mine)} states or heads over {mine[0].count} tokens or logits, "
                f"RMS {min(ratios):.2f} to {max(ratios):.2f} of transformers', "
                f"max up to {greatest:.2f} of what is allowed; "
                f"{f'OVER THE BUDGET in {over}' if over else 'within the budget'}; "
                f"half their RMS {f'missed in {missed}' if missed else 'reached'}"
            )
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all subjects, print the tables, and write one if asked; return 1 if a row is over the budget."""
    options = table_parser("parity").parse_args(arguments)
    data = os.environ.get("MINIBERT_TEST_DATA")
    if not data or not (Path(data) / "udhr.tsv").is_file():
        print("MINIBERT_TEST_DATA must name the folder with udhr.tsv, the real texts.", file=sys.stderr)
        return 2
    num_threads = available_cores()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        makers: list[Callable[[], Subject]] = [
            lambda: minilm_subject(udhr_texts()),
            lambda: base_subject(Path(folder) / "base"),
            lambda: odd_subject(Path(folder) / "odd"),
            lambda: narrow_subject(Path(folder) / "narrow"),
            *(functools.partial(successor_subject, Path(folder) / name, name) for name in SUCCESSORS),
        ]
        for make in makers:
            rows += measure(make(), num_threads=num_threads)
        for model_type in ("nomic_bert", "gte", "jina_embeddings_v3", "modernbert"):
            for subject in head_subjects(Path(folder) / model_type, model_type, num_hidden_layers=3):
                rows += measure(subject, num_threads=num_threads)
    # A BLAS rounds as transformers does, so the logits of one head with NumPy may have either error.
    held = all(row.held(backend) for row in rows for backend in MINIBERT[: 1 if isinstance(row.index, str) else 2])
    print(table(rows), "", *summary(rows), "", sep="\n")
    print("All rows are within the budget." if held else "SOME ROWS ARE OVER THE BUDGET.")
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"]
    publish("parity", [table(rows)], f"{num_threads} threads each; NumPy's BLAS: {blas}", write=options.write)
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
