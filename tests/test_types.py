"""What a type checker tells a user: no Any, the type that a call really has, and every public name."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hatchling.builders.wheel import WheelBuilder

import minibert
from minibert.bert.families import FAMILIES, NAMES, Family
from tests.support.multi_vectors import bert_folder, native
from tests.support.random_checkpoints import random_successor, sizes
from tests.support.sentence_heads import MASKED, SEQUENCE, model_folder

ROOT = Path(__file__).parent.parent

# A call -> what mypy reveals, in the words of `short`; "Array" is an array of float32.
REVEALED = {
    "dense.encode(TEXTS)": "Array",
    "dense.encode(TEXT)": "Array",
    "dense.encode(np.array(TEXTS, dtype=np.str_), batch_size=2, convert_to_numpy=True)": "Array",
    "dense.encode(TEXT, output_value='token_embeddings')": "Array",
    "dense.encode(TEXTS, output_value='token_embeddings')": "list[Array]",
    "dense.encode(TEXT, output_value=None)": "dict",
    "dense.encode(TEXTS, output_value=None)": "list[dict]",
    "dense.encode(TEXT, spans='sentences')": "Array",
    "dense.encode(TEXTS, spans='sentences')": "list[Array]",
    "dense.encode(TEXT, pooling='none')": "Array",
    "dense.encode(TEXTS, pooling='none')": "list[Array]",
    "dense.encode(TEXTS, pooling='max')": "Array",
    "dense.encode(TEXTS, precision='float32', convert_to_tensor=False)": "Array",
    "dense.encode(TEXTS, precision='float16')": "ndarray",
    "dense.encode(TEXTS, out=np.zeros((2, 384)))": "ndarray",
    "dense.encode(TEXT, return_info=True)": "tuple[Array, TextInfo]",
    "dense.encode(TEXTS, return_info=True)": "tuple[Array, list[TextInfo]]",
    "dense.encode(TEXT, return_info=True, spans='sentences')": "tuple[Array, TextInfo]",
    "dense.encode(TEXTS, convert_to_tensor=True)": "Tensor",
    "dense.encode(TEXT, convert_to_numpy=False)": "Tensor",
    "dense.encode(TEXTS, convert_to_numpy=False)": "list[Tensor]",
    "dense.encode(TEXTS, convert_to_numpy=False, convert_to_tensor=True)": "Tensor",
    "dense.encode_query(TEXT, normalize_embeddings=True)": "Array",
    "dense.encode_document(TEXTS, show_progress_bar=False, convert_to_tensor=True)": "Tensor",
    "dense.similarity(dense.encode(TEXT), dense.encode(TEXTS))": "Scores",
    "dense.similarity_pairwise(dense.encode(TEXTS), dense.encode(TEXTS))": "Scores",
    "dense.similarity(dense.encode(TEXT), dense.encode(TEXTS, convert_to_tensor=True))": "Tensor",
    "minibert.util.cos_sim(dense.encode(TEXT), dense.encode(TEXTS))": "Scores",
    "minibert.similarity.dot_score(dense.encode(TEXT, convert_to_tensor=True), [1.0] * 384)": "Tensor",
    "sparse.encode(TEXTS)": "SparseVectors",
    "sparse.encode(TEXTS).to_tensor()": "Tensor",
    "sparse.encode(TEXT, convert_to_tensor=False)": "SparseVectors",
    "sparse.encode(TEXTS, convert_to_tensor=False)": "list[SparseVectors]",
    "sparse.encode(TEXTS, convert_to_sparse_tensor=False)": "Array",
    "sparse.encode(TEXT, convert_to_sparse_tensor=False)": "Array",
    "sparse.encode(TEXTS, convert_to_tensor=False, convert_to_sparse_tensor=False)": "list[Array]",
    "sparse.encode_document(TEXTS, max_active_dims=3)": "SparseVectors",
    "sparse.similarity(sparse.encode_query(TEXT), sparse.encode(TEXTS))": "Scores",
    "multi.encode(TEXT)": "Array",
    "multi.encode(TEXTS)": "list[Array]",
    "multi.encode(TEXT, output_value=None)": "dict",
    "multi.encode(TEXTS, output_value=None)": "list[dict]",
    "multi.encode(TEXT, convert_to_numpy=False)": "Tensor",
    "multi.encode_document(TEXTS, convert_to_numpy=False)": "list[Tensor]",
    "multi.similarity(multi.encode_query(TEXT), multi.encode_document(TEXTS))": "Scores",
    "cross.predict([(TEXT, TEXT)])": "Array",
    "cross.predict([[TEXT, TEXT]], apply_softmax=True)": "Array",
    "cross.predict((TEXT, TEXT))": "float32 | Array",
    "cross.predict([(TEXT, TEXT)], convert_to_tensor=True)": "Tensor",
    "cross.predict((TEXT, TEXT), convert_to_numpy=False)": "Tensor",
    "cross.predict([(TEXT, TEXT)], convert_to_numpy=False)": "list[Tensor]",
    "cross.rank(TEXT, TEXTS)": "list[dict]",
    "minibert.RobertaModel.from_pretrained(ROBERTA)": "RobertaModel",
    "minibert.RobertaForMaskedLM.from_pretrained(ROBERTA).roberta": "RobertaModel",
    "minibert.DistilBertConfig(dim=32, n_heads=4)": "DistilBertConfig",
    "minibert.BertModel.from_pretrained(MINILM)(input_ids=[[1]])": "BertModelOutput",
    "minibert.BertForMaskedLM.from_pretrained(MASKED)(input_ids=[[1]])": "MaskedLMOutput",
    "minibert.load(MASKED)": "BertModel | BertHead",
    "minibert.AutoModel.from_pretrained(MINILM)": "BertModel",
    "minibert.AutoModelForMaskedLM.from_pretrained(MASKED)": "BertForMaskedLM",
    "minibert.AutoModelForPreTraining.from_pretrained(ROBERTA)": "BertForPreTraining | BertForMaskedLM",
    "minibert.AutoConfig.from_pretrained(ROBERTA)": "BertConfig",
    "minibert.AutoTokenizer.from_pretrained(MINILM)": "BertTokenizer",
    "minibert.AutoTokenizer.from_pretrained(MINILM)(TEXTS)": "TokenizedBatch",
    "minibert.embed_tokens(dense.model, dense.tokenizer, TEXT)": "TokenVectors",
    "minibert.embed_tokens(dense.model, dense.tokenizer, TEXTS, layers=[1, 2])": "list[TokenVectors]",
    "minibert.pipeline('feature-extraction', MINILM)": "FeatureExtractionPipeline",
    "minibert.pipeline('fill-mask', MASKED)": "FillMaskPipeline",
    "minibert.pipeline('sentiment-analysis', CROSS)": "TextClassificationPipeline",
    "minibert.pipeline(model=MASKED)": "TaskPipeline",
}

# What mypy reports, by the kind of its message; and what it accepts.
REFUSED = ("dense.encode(TEXTS, batchsize=2)", "dense.encode(3)", "cross.predict(PAIRS, trunc='error')")
ACCEPTED = ("dense.encode(TEXTS, None, None, 2)", "dense.encode(sentences=TEXTS)", "cross.predict(sentences=PAIRS)")

PROGRAM = """
import numpy as np
import minibert
from minibert import CrossEncoder, MultiVectorEncoder, SentenceTransformer, SparseEncoder
TEXT, TEXTS, PAIRS = "a cat", ["a cat", "a dog"], [("a cat", "a dog")]
MINILM = MASKED = ROBERTA = CROSS = ""
def program(dense: SentenceTransformer, sparse: SparseEncoder, multi: MultiVectorEncoder, cross: CrossEncoder) -> None:
"""

# Modules that mypy does not read here, because no type above comes from them; and torch, of which it reads these lines.
SKIPPED = "minibert.parity.diagnosis.*,minibert.learn.*,minibert.kernels.*,huggingface_hub.*,tqdm.*,filelock.*,scipy.*"
TORCH = "from typing import Any\nclass Tensor: ...\ndef __getattr__(name: str) -> Any: ...\n"


def short(revealed: str) -> str:
    """Return the name of a type without modules; of arrays only whether they are of float32."""
    revealed = revealed.removeprefix('note: Revealed type is "').removesuffix('"')
    revealed = re.sub(r"(\w+\.)+(?=\w)", "", revealed)
    revealed = revealed.replace("floating[_32Bit]", "float32")  # NumPy has had both names
    revealed = revealed.replace("ndarray[tuple[Any, ...], dtype[float32]]", "Array")
    revealed = revealed.replace("ndarray[tuple[Any, ...], dtype[Any]]", "ndarray")
    return revealed.replace("dict[str, Any]", "dict").replace("BertHead[Any]", "BertHead")


def fits(value: Any, kind: str) -> bool:
    """Return whether a value is of a type in the words of `short`."""
    if " | " in kind:
        return any(fits(value, part) for part in kind.split(" | "))
    if kind.startswith("list["):
        return isinstance(value, list) and len(value) > 0 and all(fits(item, kind[5:-1]) for item in value)
    if kind.startswith("tuple["):
        return isinstance(value, tuple) and all(map(fits, value, kind[6:-1].split(", ")))
    if kind == "Array":
        return isinstance(value, np.ndarray) and value.dtype == np.float32
    return kind in [base.__name__ for base in type(value).__mro__]


def test_mypy_knows_the_results_of_all_calls(tmp_path: Path) -> None:
    lines = [*(f"reveal_type({call})" for call in REVEALED), *REFUSED, *ACCEPTED]
    program = PROGRAM + "".join(f"    {line}\n" for line in lines)
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.pyi").write_text(TORCH, encoding="utf-8")
    quick = f"[mypy-minibert.*,numpy.*]\nignore_errors=True\n[mypy-{SKIPPED}]\nfollow_imports=skip\n"
    (tmp_path / "mypy.ini").write_text(f"[mypy]\nmypy_path={tmp_path},{ROOT}\n{quick}", encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--no-incremental", "--hide-error-context", "program.py"]
    output = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    told = {int(n): text for n, text in re.findall(r"^program\.py:(\d+): (error|note: Rev.*)", output, re.M)}
    first = PROGRAM.count("\n") + 1
    found = {call: told.get(line, "") for line, call in enumerate(lines, first)}
    assert {call: short(found[f"reveal_type({call})"]) for call in REVEALED} == REVEALED, output
    assert {found[call] for call in REFUSED} == {"error"}, output
    assert {found[call] for call in ACCEPTED} == {""}, output


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("types")
    masked, cross = model_folder(home / "masked", MASKED), model_folder(home / "cross", SEQUENCE, num_labels=1)
    roberta = random_successor(
        home / "roberta", "roberta", head="ForMaskedLM", **sizes(V=60, H=24, L=1, A=3, F=8, P=40)
    )
    return {
        **{"np": np, "minibert": minibert, "MINILM": "sentence-transformers/all-MiniLM-L6-v2"},
        **{"MASKED": masked, "CROSS": cross, "ROBERTA": roberta},
        **{"TEXT": "a cat", "TEXTS": ["a cat", "a dog"], "PAIRS": [("a cat", "a dog")]},
        **{"dense": minibert.SentenceTransformer(), "sparse": minibert.SparseEncoder(masked)},
        **{"cross": minibert.CrossEncoder(cross)},
        "multi": minibert.MultiVectorEncoder(native(bert_folder(home / "bert"), home / "multi")),
    }


@pytest.mark.parametrize("call", REVEALED)
def test_a_call_has_the_type_that_mypy_reveals(names: dict[str, Any], call: str) -> None:
    assert fits(eval(call, dict(names)), REVEALED[call])


def lines_of(family: Family) -> list[str]:
    """Return what the stub says of a family other than BERT."""
    config, tokenizer, fast, model, *heads = map(family.own_class, NAMES)
    return [
        f"class {config}(_Config): ...",
        f"class {tokenizer}(BertTokenizer): ...",
        f"{fast} = {tokenizer}",
        f"class {model}(BertModel): ...",
        *(f"class {head}({bert}): {family.field}: {model}" for head, bert in zip(heads, NAMES[4:], strict=True)),
    ]


def test_the_stub_has_all_names_and_no_others() -> None:
    text = (ROOT / "minibert/__init__.pyi").read_text(encoding="utf-8")
    families = [family for family in FAMILIES.values() if family.class_name != "Bert"]
    _, rest = text.split("  # the fields of a family\n")
    assert [line for line in rest.splitlines() if line] == [line for family in families for line in lines_of(family)]
    for family in families:
        for name in NAMES:
            assert issubclass(getattr(minibert, family.own_class(name)), getattr(minibert, name))
    imported = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module != "typing":
            imported += [alias.name for alias in node.names]
            home = importlib.import_module(node.module or "")
            assert [n.name for n in node.names if getattr(home, n.name) is not getattr(minibert, n.name)] == []
    assert sorted(imported) == sorted((*minibert.__all__, *minibert._MODULES))
    assert ast.literal_eval(text[text.index("__all__ = ") + 10 : text.index("]") + 1]) == minibert.__all__


def test_the_stubs_are_in_the_wheel() -> None:
    files = {file.relative_path for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    typed = [ROOT / "minibert/py.typed", *ROOT.glob("minibert/**/*.pyi")]
    assert len(typed) > 1
    assert {str(path.relative_to(ROOT)) for path in typed} <= files
