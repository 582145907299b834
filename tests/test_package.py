"""The package: the cost of `import minibert`, who may import what, and the public names."""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import platform
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module, metadata
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import minibert
from benchmarks.sizes import lines_of_code
from minibert._utils.foreign import _INSTEAD, ALIASES, _message
from tests.support.outcomes import printed, python

ROOT = Path(__file__).parent.parent
PACKAGE = Path(minibert.__file__).parent

# A ring imports only itself and the rings before it. `trace` is in the core because a model's method returns a trace.
RINGS = {
    "core": ("_version", "errors", "_utils", "checkpoint", "bert", "kernels", "trace", "exact", "models", "tokenizer"),
    "vectors": ("vectors", "similarity", "search", "quantized", "encode", "sentence", "tasks"),
    "lenses": ("inside", "parity"),
    "apps": ("corpus", "serving", "integrations", "compat", "learn", "util", "plot", "scikit", "cli", "__main__"),
}
RING_OF = {folder: number for number, folders in enumerate(RINGS.values()) for folder in folders}

# bert/ uses NumPy, errors and the utilities only. One function loads a config, and imports the modules for that inside.
PAPER = {"errors", "_utils", "bert"}
EXCEPTIONS = {("bert.config", "checkpoint")}

# Modules that may import each other, because one is the face of the others: `Trace.page` and `Trace.show` import the
# page when they are called, and the program that runs a learner's file imports the course, as the learner does.
FACES = [{"learn", "learn.checking", "learn.student"}, {"trace.page.data", "trace.page.document", "trace.trace"}]

# Private attributes that are used outside of the module that has them.
PRIVATE = {"tokenizer.bert_tokenizer": {"_loaded"}}  # of its own base classes

# The folders that import each outside library.
HOMES = {
    "huggingface_hub": {"checkpoint"},
    "filelock": {"_utils"},
    "tqdm": {"_utils"},
    "tokenizers": {"tokenizer"},
    "safetensors": {"checkpoint"},
    "numba": {"kernels"},
    "llvmlite": {"kernels"},
    "hatchling": {"kernels"},
    "sklearn": {"integrations"},
    "matplotlib": {"vectors"},
    "torch": {"_utils"},
    "pyarrow": {"corpus"},
    **{key: {"integrations"} for key in ("chromadb", "haystack", "langchain_core")},
    "scipy": {"sentence"},
    **{key: {"serving"} for key in ("msgspec", "orjson", "prometheus_client", "uvicorn")},
}
REQUIRED = {"numpy", "safetensors", "tokenizers", "huggingface_hub"}


def sources() -> Iterator[tuple[str, ast.Module]]:
    """Yield each module's name within the package ("" is the package itself) and its syntax tree."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        yield name, ast.parse(path.read_text(encoding="utf-8"))


TREES = dict(sources())


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield every import, also those inside functions and for types, as dotted names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imports_at_the_top(tree: ast.Module) -> Iterator[str]:
    """Yield what is imported when the module is: not inside functions, and not for types only."""
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from imports(node)


@functools.cache
def imports_of_file(path: Path) -> tuple[frozenset[str], frozenset[Path]]:
    """Return the libraries and our own files that are imported when a file of the clone is."""
    libraries, files = set(), set()
    for name in imports_at_the_top(ast.parse(path.read_text(encoding="utf-8"))):
        parts = name.split(".")
        if parts[0] not in ("minibert", "benchmarks", "tests"):
            libraries.add(parts[0])
            continue
        places = (ROOT.joinpath(*parts[:end]) for end in range(len(parts), 0, -1))
        found = (file for place in places for file in (place.with_suffix(".py"), place / "__init__.py"))
        files.add(next(file for file in found if file.is_file()))
    return frozenset(libraries - sys.stdlib_module_names), frozenset(files)


@pytest.mark.parametrize(("folder", "extra"), [("benchmarks", "bench"), ("tests", "test")])
def test_an_extra_brings_what_its_folder_imports(folder: str, extra: str) -> None:
    """Also what minibert's own modules import there: benchmarks.ops imports the kernels' compiler."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    waiting = [*project["dependencies"], *project["optional-dependencies"][extra]]
    brought: set[str] = set()
    while waiting:
        name = re.split(r"[^\w.-]", waiting.pop())[0].lower().replace("_", "-")
        if name not in brought:
            brought.add(name)
            with contextlib.suppress(metadata.PackageNotFoundError):  # one of another system
                waiting += [line for line in metadata.requires(name) or () if "extra ==" not in line]
    homes = metadata.packages_distributions()
    files, seen = {*(ROOT / folder).rglob("*.py")}, set()
    while files:
        seen.add(path := files.pop())
        libraries, ours = imports_of_file(path)
        files |= ours - seen
        for library in libraries:
            names = {name.lower().replace("_", "-") for name in homes.get(library, [library])}
            assert names & brought, f"{path.relative_to(ROOT)} imports {library}, which .[{extra}] does not bring"


def our_imports(name: str, *, at_once: bool = False) -> set[str]:
    """Return our modules that a module imports."""
    found = set()
    for dotted in imports_at_the_top(TREES[name]) if at_once else imports(TREES[name]):
        first, *parts = dotted.split(".")
        while parts and ".".join(parts) not in TREES:
            parts.pop()
        if first == "minibert" and parts:
            found.add(".".join(parts))
    return found


def folder_of(name: str) -> str:
    """Return the folder of a module, or the module itself if it is beside the folders."""
    return name.split(".")[0]


# --- the cost of an import --------------------------------------------------------------------------------------------


HEAVY = (set(HOMES) - {"sklearn"}) | {"pandas", "transformers", "onnx", "onnxruntime", "bertopic", "keybert"}


def modules_after(code: str) -> set[str]:
    return set(printed(f"{code}\nimport sys; print(*sys.modules)").split())


def test_import_minibert_loads_no_heavy_library_until_one_is_used() -> None:
    loaded = modules_after("import minibert; minibert.__version__; dir(minibert)")
    assert "minibert" in loaded
    assert not loaded & {*HEAVY, "numpy"}
    loaded = modules_after("import minibert\nfor name in minibert.__all__: getattr(minibert, name)")
    assert "minibert.models.heads" in loaded
    assert not loaded & HEAVY


def test_import_minibert_does_not_change_how_other_modules_are_imported() -> None:
    code = "import sys; before = [*sys.meta_path], [*sys.path_hooks]; import minibert, minibert.cross_encoder as n; "
    code += "print(n.CrossEncoder.__name__, before == (sys.meta_path, sys.path_hooks))"
    assert printed(code).split() == ["CrossEncoder", "True"]


def test_a_run_on_numpy_imports_neither_numba_nor_the_hub_client(tmp_path: Path) -> None:
    from tests.support.checkpoints import random_checkpoint

    random_checkpoint(tmp_path)
    code = f"import minibert; minibert.BertModel.from_pretrained({str(tmp_path)!r}, backend='numpy')([[1, 2]])"
    assert not modules_after(code) & (HEAVY - {"safetensors"})
    (tmp_path / "texts.txt").write_text("the\n")
    words = ["embed", "--backend", "numpy", "-m", str(tmp_path), "-i", str(tmp_path / "texts.txt")]
    words += ["-o", str(tmp_path / "v.npy")]
    loaded = modules_after(f"from minibert.cli import main; assert not main({words!r})")
    assert "minibert.corpus.runs" in loaded
    assert not loaded & {"numba", "llvmlite"}
    assert json.loads((tmp_path / "v.npy.manifest.json").read_text())["processors"] == [platform.machine()]


# --- who may import what ----------------------------------------------------------------------------------------------


def test_each_outside_library_is_imported_in_one_place() -> None:
    homes: dict[str, set[str]] = {}
    for name, tree in TREES.items():
        for dotted in imports(tree):
            library = dotted.split(".")[0]
            if library not in {"numpy", "minibert", *sys.stdlib_module_names}:
                homes.setdefault(library, set()).add(folder_of(name))
    assert homes == HOMES


def test_imports_run_one_way() -> None:
    """Between the rings; bert/ has a rule of its own."""
    assert set(RING_OF) == set(map(folder_of, TREES)) - {""}
    exceptions = set()
    for name in TREES:
        folder = folder_of(name)
        if folder == "":
            assert our_imports(name, at_once=True) <= {"_utils.foreign", "_version"}
            continue
        for ours in our_imports(name):
            other = folder_of(ours)
            allowed = other in PAPER if folder == "bert" else RING_OF[other] <= RING_OF[folder]
            assert allowed or (name, other) in EXCEPTIONS, f"{name} imports {ours}"
            exceptions |= set() if allowed else {(name, other)}
    assert exceptions == EXCEPTIONS


# Lines of code (without docstrings, comments and blank lines) of each ring, of tests/ and of benchmarks/, and words of
# the pages without the changelog and the list of mistakes, which are data. What adds lines raises a number in the same
# commit, and the commit says what the lines are for. What removes lines lowers the number: at most SLACK may be free.
BUDGET = {
    "core": 14_445,
    "vectors": 4_930,
    "lenses": 5_303,
    "apps": 7_995,
    "tests": 34_199,
    "benchmarks": 4_253,
    "words": 53_777,
}
SLACK = {"words": 300}


def counted() -> dict[str, int]:
    """Return what is there of each part of the budget."""
    found = dict.fromkeys(BUDGET, 0)
    for ring, folders in RINGS.items():
        paths = (
            path for folder in folders for path in (*PACKAGE.glob(f"{folder}.py"), *PACKAGE.glob(f"{folder}/**/*.py"))
        )
        found[ring] = sum(lines_of_code(path.read_text(encoding="utf-8")) for path in paths)
    for top in ("tests", "benchmarks"):
        found[top] = sum(lines_of_code(path.read_text(encoding="utf-8")) for path in (ROOT / top).rglob("*.py"))
    pages = [
        ROOT / "README.md",
        *(path for top in ("minibert", "tests", "benchmarks") for path in (ROOT / top).rglob("*.md")),
    ]
    pages = [path for path in pages if path.name != "mistakes.md"]
    found["words"] = sum(len(path.read_text(encoding="utf-8").split()) for path in pages)
    return found


def test_each_part_keeps_its_budget() -> None:
    """The message names the numbers to write, if the change is worth its lines."""
    found = counted()
    over = {name: count for name, count in found.items() if count > BUDGET[name]}
    assert not over, f"over the budget: {over}; take lines away, or raise BUDGET and say in the commit what for"
    loose = {name: count for name, count in found.items() if count < BUDGET[name] - SLACK.get(name, 30)}
    assert not loose, f"less than the budget: {loose}; lower BUDGET to these numbers"


def test_no_modules_import_each_other() -> None:
    """Not in a circle either, and not for types or inside a function."""
    imported = {name: our_imports(name) - {name, ""} for name in TREES}
    reached = {name: reachable(imported, name) for name in TREES}
    circles = {frozenset(other for other in reached[name] if name in reached[other]) for name in TREES} - {frozenset()}
    assert circles == {*map(frozenset, FACES)}


def reachable(imported: dict[str, set[str]], name: str) -> set[str]:
    """Return all modules that a module imports, directly or through others; itself only in a circle."""
    modules: set[str] = set()
    todo = [*imported[name]]
    while todo:
        if (other := todo.pop()) not in modules:
            modules.add(other)
            todo += imported[other]
    return modules


def test_a_module_uses_no_private_attributes_of_another_one() -> None:
    own = {name: {*attributes(tree)} for name, tree in TREES.items()}
    found: dict[str, set[str]] = {}
    for name, tree in TREES.items():
        others = set[str]().union(*(names for other, names in own.items() if other != name)) - own[name]
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute) or ast.unparse(node.value) in ("self", "cls"):
                continue
            if re.match("_[^_]", node.attr) and node.attr in others:
                found.setdefault(name, set()).add(node.attr)
    assert found == PRIVATE


def attributes(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module defines, of functions, classes, variables and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


def test_only_the_standard_library_and_numpy_are_imported_at_the_top_of_a_module() -> None:
    """The modules for Numba are imported only if a model needs them, the classes of a library only by its users."""
    for name, tree in TREES.items():
        if folder_of(name) not in ("kernels", "scikit", "integrations"):
            for dotted in imports_at_the_top(tree):
                home = HOMES.get(dotted.split(".")[0])  # minibert serve imports the web side, and nothing else does
                assert home is None or home == {"serving"} == {folder_of(name)}, f"{name} imports {dotted}"
                assert not dotted.startswith(("minibert.kernels", "minibert.scikit")), f"{name} imports {dotted}"


def test_nothing_pickled_and_no_code_of_a_model_can_run() -> None:
    """No module uses pickle, exec or eval, or imports a name from a file."""
    tables = {
        "",
        "_utils.foreign",
        "integrations",
        "compat.sentence_transformers",
        "util",
        "integrations.bertopic_keybert",
    }  # they look names up there
    for name, tree in TREES.items():
        for dotted in imports(tree):
            assert dotted.split(".")[0] not in {"pickle", "marshal", "shelve", "dill", "runpy"}, name
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"exec", "eval", "compile", "__import__"}, f"{name}:{node.lineno}"
                assert node.func.id != "import_module" or name in tables, f"{name}:{node.lineno}"


def test_the_runtime_packages_are_the_ones_imported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = {requirement.split(">")[0].replace("-", "_") for requirement in project["dependencies"]}
    imported = {dotted.split(".")[0] for tree in TREES.values() for dotted in imports(tree)}
    assert required - {"filelock"} == REQUIRED
    assert required <= imported
    names = {re.split("[>;]", requirement)[0] for requirement in project["optional-dependencies"]["serve"]}
    web = {library.replace("_", "-") for library, homes in HOMES.items() if homes == {"serving"}}
    assert web == names - {"uvloop", "httptools"}  # uvicorn imports these


# --- public names -----------------------------------------------------------------------------------------------------


def test_the_package_gives_its_names_and_no_others() -> None:
    assert (PACKAGE / "py.typed").is_file()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert minibert.__version__ == project["version"]
    assert set(minibert.__all__) <= set(dir(minibert))
    for name in minibert.__all__:
        assert getattr(minibert, name).__doc__
    for statement, error, word in (
        ("minibert.Nothing", AttributeError, "Nothing"),
        ("minibert.Trainer", AttributeError, "minibert has no Trainer"),
        ("minibert.Pipeline", AttributeError, "nearest names are pipeline"),
        ("from minibert import Trainer", ImportError, "minibert has no Trainer"),
        ("from minibert import TextEmbedding", ImportError, "use SentenceTransformer"),
    ):
        with pytest.raises(error, match=word):
            exec(statement, {"minibert": minibert})


def messages(tree: ast.Module) -> Iterator[str]:
    """Yield the texts of a module that have a space and are not docstrings; a part of an f-string is a text."""
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and " " in node.value
            and id(node) not in docs
        ):
            yield node.value


# Names in texts that belong to other libraries, and words that look like names.
OTHERS = re.findall(
    r"\w+",
    """
    AdamW ColBERT BertClient BoW BertNormalizer BertPreTokenizer BertProcessing TemplateProcessing WordPiece NoneType
    PanicException ColumnTransformer HookedEncoder TransformerBridge InputExample TrainingArguments ModelCardData
    SentenceTransformerTrainer SentenceTransformerModelCardData DefaultBatchSampler MultiDatasetDefaultBatchSampler
    ParallelSentencesDataset SpladePooling StaticEmbedding TextEmbedding WeightedLayerPooling
    WordEmbeddings PreTrainedTokenizerFast ElectraForPreTraining MLMTransformer ReLU SiLU ByteBuffer ByteOrder
    FacebookAI OpenVINO GiB IsNext NotNext JavaScript NaN NumPy OpenAI TensorFlow TransformerLens
    """,
)
CAMEL = re.compile(r"(?<![\w./`'-])[A-Z]\w*[a-z]\w*[A-Z]\w*(?:\.[a-z_]\w*)?(?![\w/-])")
DOTTED = re.compile(r"(?<![\w./@-])minibert(?:\.[A-Za-z_]\w*)+(?![\w/-])")


def exists(name: str) -> bool:
    """Return whether `name`, with dots, is a module of the package, or can be reached from it and used."""
    if name in TREES or f"minibert.{name}" in ALIASES:
        return True
    module, _, last = name.rpartition(".")
    value: Any = import_module(f"minibert.{module}") if module in TREES and module else minibert
    for part in [last] if value is not minibert else name.split("."):
        value = getattr(value, part, None)
    return value is not None and "minibert has no " not in (value.__doc__ or "")


def test_every_name_in_a_message_exists() -> None:
    inside = {
        node.name if isinstance(node, ast.ClassDef) else node.id
        for tree in TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    }
    asked = [name for names in _INSTEAD.values() for name in names]
    asked += [f"{begin}{end}" for begin in ("T5", "Electra", "Auto", "GPT2") for end in ENDS]
    hints = []
    for module, name in product(("minibert", "minibert.util", "minibert.models", "minibert.inside"), asked):
        if hint := _message(module, name):
            hints.append(hint.partition(": ")[2])
    for text in [*hints, *(text for tree in TREES.values() for text in messages(tree))]:
        for name in CAMEL.findall(text):
            known = exists(name) or exists(f"Bert{name}") or name.partition(".")[0] in OTHERS or name in inside
            assert known, f"{name!r} in {text!r}"
        for name in DOTTED.findall(text):
            assert exists(name.removeprefix("minibert.")), f"{name!r} in {text!r}"


ENDS = (
    *("Tokenizer", "TokenizerFast", "Config", "Model", "Encoder", "ForPreTraining", "ForCausalLM", "ForMaskedLM"),
    *("ForNextSentencePrediction", "ForSequenceClassification", "ForConditionalGeneration"),
)


# `minibert` on PyPI is another project: a command with this name, or with an extra of it, installs that one. Ours is
# `minibert-numpy`. A wheel's file name is not such a command.
STRANGER = re.compile(
    r"(?:pipx?|uv|conda) (?:install|add)(?:\s+-\S+)*\s+[\"'`]?mini" r"bert\b(?!-numpy|\S*\.whl)|mini" r"bert\["
)


def test_no_file_says_to_install_the_other_project_of_this_name() -> None:
    folders = [path for name in ("minibert", "tests", "benchmarks", ".github") for path in (ROOT / name).rglob("*")]
    texts = [path for path in folders if path.suffix in (".py", ".md", ".yml", ".toml", ".html")]
    for path in (*texts, ROOT / "README.md", ROOT / "pyproject.toml"):
        found = STRANGER.search(path.read_text(encoding="utf-8"))
        assert found is None, f"{path}: {found[0]!r}"


@pytest.mark.parametrize(
    ("library", "install", "statement"),
    [
        ("sklearn", "scikit-learn", "import minibert.scikit"),
        ("pyarrow", "pyarrow", "from minibert.corpus.writers import output_suffix; output_suffix('x.parquet')"),
    ],
)
def test_a_library_that_is_missing_is_named(library: str, install: str, statement: str) -> None:
    code = f"import sys; sys.modules[{library!r}] = None; {statement}"
    done = python("-c", code)
    assert done.returncode == 1
    assert f"pip install {install}" in done.stderr.splitlines()[-1]
