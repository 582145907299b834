"""The compute types compared with the low precision of other engines: the time of a forward.

    python -m benchmarks.low_precision [--write] [--only MiniLM | bert-base]

For the shapes of benchmarks/end_to_end.py, and for texts of three lengths (MiniLM). A contender that is fast with a
large error has not won, so read the table of benchmarks/low_precision_error.py too. bert-base has random weights.

Every contender has a process of its own and the same number of threads, and all run in turn (contenders.py).
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.contenders import (
    MAX_SEQ_LENGTH,
    Compute,
    Maker,
    _onnxruntime,
    _pipeline,
    _transformers,
    cells,
    export_onnx,
    feed,
    in_turn,
    make_base,
    openvino,
    openvino_session,
    session,
    start,
)
from benchmarks.end_to_end import SHAPES
from benchmarks.readme import Table, publish, table_parser
from benchmarks.runtimes import ctranslate2_files
from benchmarks.texts import COLLECTIONS, make_texts
from minibert import BertTokenizer
from minibert._utils.system import available_cores
from minibert.bert.low_precision import COMPUTE_TYPES
from minibert.checkpoint.files import DEFAULT_MODEL, locate
from tests.support.real_texts import udhr_lines

OURS = "float32"
CALIBRATED = 300  # texts


def _minibert(compute_type: str, folder: Path, threads: int, scratch: Path) -> Compute:
    from minibert import BertModel, SentenceTransformer

    model = BertModel.from_pretrained(
        folder, output_hidden_states=False, add_pooling_layer=False, num_threads=threads, compute_type=compute_type
    )
    if not (folder / "modules.json").exists():
        return lambda ids: model(ids).last_hidden_state
    sentences = SentenceTransformer(folder, num_threads=threads, compute_type=compute_type)
    sentences.max_seq_length = 512
    encode = functools.partial(sentences.encode, truncation="silent", normalize_embeddings=True)
    return lambda given: encode(given) if isinstance(given, list) else model(given).last_hidden_state


def _also_texts(make: Maker, folder: Path, threads: int, scratch: Path) -> Compute:
    """Make a contender that takes texts too: they are sorted, padded, pooled and normalised as in contenders.py."""
    forward = make(folder, threads, scratch)
    encode = _pipeline(folder, forward) if (folder / "tokenizer.json").exists() else forward
    return lambda given: encode(given) if isinstance(given, list) else forward(given)


def _transformers_masked(folder: Path, threads: int, scratch: Path) -> Compute:
    import torch
    import transformers

    plain = _transformers(folder, threads, scratch)
    model = transformers.BertModel.from_pretrained(folder, attn_implementation="sdpa", add_pooling_layer=False).eval()

    def forward(inputs: np.ndarray | tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        if not isinstance(inputs, tuple):
            return plain(inputs)
        with torch.inference_mode():
            ids, mask = map(torch.from_numpy, inputs)
            return model(input_ids=ids, attention_mask=mask).last_hidden_state.numpy()

    return forward


def _openvino_bf16(folder: Path, threads: int, scratch: Path) -> Compute:
    return openvino(folder, threads, scratch, "bf16")


def _openvino_qint8(folder: Path, threads: int, scratch: Path) -> Compute:
    """Quantise with NNCF: scales of the inputs are those of 300 real texts (of random ids, without a tokenizer)."""
    import nncf
    from openvino import Core

    if (folder / "tokenizer.json").exists():
        lines = udhr_lines()
        tokenizer = BertTokenizer.from_pretrained(folder)
        texts = [lines[i * len(lines) // CALIBRATED] for i in range(CALIBRATED)]
        rows = [np.array([tokenizer(text, truncation=True, max_length=MAX_SEQ_LENGTH)["input_ids"]]) for text in texts]
    else:
        generator = np.random.default_rng(0)
        rows = [generator.integers(1000, 2000, (1, length)) for length in generator.integers(4, 129, CALIBRATED)]
    model = Core().read_model(str(export_onnx(folder, scratch)[0]))
    wanted = {name for port in model.inputs for name in port.names}
    data = nncf.Dataset(rows, lambda ids: feed(ids, wanted))
    quantised = nncf.quantize(model, data, subset_size=CALIBRATED, model_type=nncf.ModelType.TRANSFORMER)
    return openvino_session(quantised, threads)


def _onnxruntime_int8(folder: Path, threads: int, scratch: Path, *, per_channel: bool = False) -> Compute:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    _onnxruntime(folder, threads, scratch)  # writes fused.onnx
    path = scratch / f"int8-{per_channel}.onnx"
    # onnxruntime's own fused operators do not say the type of their results.
    given = {"DefaultTensorType": onnx.TensorProto.FLOAT}
    options = {"weight_type": QuantType.QInt8, "per_channel": per_channel, "extra_options": given}
    quantize_dynamic(scratch / "fused.onnx", path, **options)
    return session(path, threads)


def _ctranslate2_int8(folder: Path, threads: int, scratch: Path) -> Compute:
    import ctranslate2

    converted = ctranslate2_files(folder, scratch, "int8_float32")
    encoder = ctranslate2.Encoder(str(converted), compute_type="int8_float32", intra_threads=threads)

    def forward(inputs: np.ndarray | tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        ids, mask = inputs if isinstance(inputs, tuple) else (inputs, np.ones_like(inputs))
        lengths = mask.sum(axis=1)
        rows = [row[:length].tolist() for row, length in zip(ids, lengths, strict=True)]
        output = encoder.forward_batch(rows, token_type_ids=[[0] * len(row) for row in rows])
        return np.array(output.last_hidden_state)

    return forward


CONTENDERS: dict[str, Maker] = {
    OURS: functools.partial(_minibert, "float32"),
    **{name: functools.partial(_minibert, name) for name in COMPUTE_TYPES if name != OURS},
    "OpenVINO f32": functools.partial(_also_texts, openvino),
    "OpenVINO bf16": functools.partial(_also_texts, _openvino_bf16),
    "OpenVINO qint8": functools.partial(_also_texts, _openvino_qint8),
    "onnxruntime f32": functools.partial(_also_texts, _onnxruntime),
    "onnxruntime int8": functools.partial(_also_texts, _onnxruntime_int8),
    "ctranslate2 int8": functools.partial(_also_texts, _ctranslate2_int8),
}
# A scale for each row of a weight, not one for the weight; low_precision_error.py compares it.
PER_CHANNEL = functools.partial(_also_texts, functools.partial(_onnxruntime_int8, per_channel=True))
TRUTH: dict[str, Maker] = {"transformers": functools.partial(_also_texts, _transformers_masked)}


def time_model(model: str, folder: Path, scratch: Path, runs: int, seconds: float) -> list[str]:
    """Time all contenders on one model, each ratio is the speed divided by that of float32; return the table."""
    with start(CONTENDERS, folder, available_cores(), scratch) as contenders:
        table = Table("milliseconds", *contenders)

        def add(label: str, given: object, runs: int, seconds: float) -> None:
            table.add(f"{model}, {label}", *cells(in_turn(contenders, given, runs, seconds), faster=True))

        generator = np.random.default_rng(0)
        for shape in SHAPES:
            add(f"{shape[0]} x {shape[1]}", generator.integers(1000, 2000, shape), runs, seconds)
        if (folder / "tokenizer.json").exists():
            tokenizer = BertTokenizer.from_pretrained(folder)
            words = [word for word in tokenizer.vocab if word.isascii() and word.isalpha() and len(word) > 2]
            for name in COLLECTIONS:
                add(f"128 texts as in {name}", make_texts(name, words)[0][:128], max(3, runs // 3), 0.0)
    return table.lines


def main() -> int:
    """Measure both models, print a table of each, and write it into README.md if asked."""
    parser = table_parser("low_precision", runs=5, seconds=0.4)
    parser.add_argument("--only", choices=("MiniLM", "bert-base"), help="measure, and write, only this model's table")
    options = parser.parse_args()
    measured_with = f"{available_cores()} threads each; medians of {options.runs} runs"
    with tempfile.TemporaryDirectory() as scratch_name:
        scratch = Path(scratch_name)
        if options.only != "bert-base":
            folder = locate(DEFAULT_MODEL).require("config.json").parent
            table = time_model("MiniLM", folder, scratch, options.runs, options.seconds)
            publish("low precision", table, measured_with, write=options.write)
        if options.only != "MiniLM":
            table = time_model("bert-base", make_base(scratch / "base"), scratch, options.runs, options.seconds)
            publish("low precision base", table, measured_with, write=options.write)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
