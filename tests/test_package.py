"""The package: the cost of `import minibert`, the allowed imports, and the public names."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import pkgutil
import platform
import re
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

import minibert
import minibert.integrations
from tests.support import slowest, workers
from tests.support.report import REPORT

ROOT = Path(__file__).parent.parent
PACKAGE = Path(minibert.__file__).parent

# The folders, and the modules beside them. Each one imports only those above it in this list.
ORDER = (
    *("errors", "_utils", "checkpoint", "bert", "kernels", "trace", "exact", "models", "tokenizer"),
    "quantized",
    *("similarity", "search", "index", "tokens", "sentence", "tasks", "inside", "parity", "corpus", "serving"),
    *("util", "plot", "scikit"),
    *("integrations", "compat", "cli", "__main__"),
)
# bert/ uses NumPy and _utils/ only. One function loads a config, and imports the modules for that inside.
PAPER = {"errors", "_utils", "bert"}
EXCEPTIONS = {("bert.config", "checkpoint")}

# The modules that may import each external library.
HOMES = {
    "huggingface_hub": {"checkpoint.hub_answers", "checkpoint.repository"},
    "tqdm": {"_utils.reporting"},
    "tokenizers": {
        "tokenizer.files",  # the others for types only
        *("tokenizer.long_texts", "tokenizer.raw_encodings", "tokenizer.saving", "tokenizer.vocabulary"),
    },
    "safetensors": {"checkpoint.tensors", "trace.files"},
    "numba": {"kernels"},
    "llvmlite": {"kernels"},
    "sklearn": {"scikit"},
    "matplotlib": {"plot"},
    "jinja2": {"tokenizer.chat"},
    "torch": {"_utils.torch_interop", "cli.bench"},  # cli.bench times it
    "transformers": {"cli.bench", "parity.peers"},  # timed, and compared, beside minibert if they are installed
    "onnxruntime": {"parity.peers"},
    "onnx": {"parity.peers"},
    "openvino": {"parity.peers"},
    "pyarrow": {"corpus.writers"},
    "bertopic": {"integrations.bertopic"},
    "chromadb": {"integrations.chroma"},
    "haystack": {"integrations.haystack"},
    "keybert": {"integrations.keybert"},
    "langchain_core": {"integrations.langchain"},
    "llama_index": {"integrations.llama_index"},
    "mteb": {"integrations.mteb"},
    "ray": {"integrations.ray"},
    "scipy": {"sentence.sparse_vectors"},
    "faiss": {"index"},
    "usearch": {"index"},
    "msgspec": {"serving.wire", "serving.openapi"},
    "orjson": {"serving.answers"},
    "prometheus_client": {"serving.metrics"},
    "starlette": {"serving.asgi", "serving.gates", "serving.post_route"},
    "uvicorn": {"serving.connection", "serving.server"},
}


def sources() -> Iterator[tuple[str, ast.Module]]:
    """Yield each module's name within the package ("" is the package itself) and its syntax tree."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        yield name, ast.parse(path.read_text(encoding="utf-8"))


TREES = dict(sources())


def for_types_only(tree: ast.Module) -> set[ast.AST]:
    """Return the nodes under `if TYPE_CHECKING:`, which never run."""
    blocks = [n for n in ast.walk(tree) if isinstance(n, ast.If) and ast.unparse(n.test).endswith("TYPE_CHECKING")]
    return {inner for block in blocks for statement in block.body for inner in ast.walk(statement)}


def imports(tree: ast.Module, *, types_too: bool) -> Iterator[tuple[ast.AST, str]]:
    """Yield every import in a module, also those inside functions, as dotted names."""
    skipped = set() if types_too else for_types_only(tree)
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            yield from ((node, f"{node.module}.{alias.name}") for alias in node.names)


def our_modules(dotted: str, names: set[str]) -> str | None:
    """Return our module that "minibert.x.y" means, or None."""
    if dotted.split(".")[0] != "minibert":
        return None
    parts = dotted.split(".")[1:]
    while parts and ".".join(parts) not in names:
        parts.pop()
    return ".".join(parts)


# --- the cost of an import --------------------------------------------------------------------------------------------


def python(code: str, *options: str) -> str:
    command = [sys.executable, *options, "-c", code]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def test_import_minibert_takes_less_than_150_milliseconds() -> None:
    """The limit is below the import time of any heavy library; the best of five runs counts."""
    timed = "import time; t = time.perf_counter(); import minibert; print(time.perf_counter() - t)"
    seconds = min(float(python(timed)) for _ in range(5))
    REPORT.append(f"import minibert: {1000 * seconds:.1f} ms")
    assert seconds < 0.15


HEAVY = (
    *("numba", "llvmlite", "tokenizers", "huggingface_hub", "safetensors", "torch", "transformers", "tqdm", "scipy"),
    "matplotlib",
    *("starlette", "uvicorn", "msgspec", "orjson", "prometheus_client"),
)


def modules_after(code: str) -> set[str]:
    return set(python(f"{code}\nimport sys; print(*sys.modules)").split())


def test_import_minibert_loads_no_heavy_library() -> None:
    loaded = modules_after("import minibert; minibert.__version__; dir(minibert)")
    assert "minibert" in loaded
    assert not loaded & {*HEAVY, "numpy"}


@pytest.fixture(scope="module")
def loaded_by() -> dict[str, set[str]]:
    """Return the modules that are loaded after each import of a public name, one after the other in one process."""
    code = "import sys, minibert\nfor name in minibert.__all__: getattr(minibert, name); print(name, *sys.modules)"
    return {line.split()[0]: set(line.split()[1:]) for line in python(code).splitlines()}


@pytest.mark.parametrize("name", minibert.__all__)
def test_a_public_name_loads_no_heavy_library_until_it_is_used(name: str, loaded_by: dict[str, set[str]]) -> None:
    assert "minibert" in loaded_by[name]
    assert not loaded_by[name] & set(HEAVY)


def test_a_model_on_numpy_needs_neither_numba_nor_tokenizers_nor_the_hub_client(tmp_path: Path) -> None:
    from tests.support.checkpoints import random_checkpoint

    random_checkpoint(tmp_path)
    code = f"import minibert; minibert.BertModel.from_pretrained({str(tmp_path)!r}, backend='numpy')([[1, 2]])"
    assert not modules_after(code) & (set(HEAVY) - {"safetensors"})


def test_a_run_on_numpy_imports_neither_numba_nor_llvmlite(tmp_path: Path) -> None:
    from tests.support.checkpoints import random_checkpoint

    random_checkpoint(tmp_path)
    (tmp_path / "texts.txt").write_text("the\n")
    words = ["embed", "--backend", "numpy", "-m", str(tmp_path), "-i", str(tmp_path / "texts.txt")]
    words += ["-o", str(tmp_path / "v.npy")]
    loaded = modules_after(f"from minibert.cli import main; assert not main({words!r})")
    assert "minibert.corpus.runs" in loaded
    assert not loaded & {"numba", "llvmlite"}
    assert json.loads((tmp_path / "v.npy.manifest.json").read_text())["processors"] == [platform.machine()]


def test_no_other_library_is_ever_imported() -> None:
    known = {*HOMES, "numpy", "minibert", *sys.stdlib_module_names}
    foreign = {
        (name, dotted)
        for name, tree in TREES.items()
        for _, dotted in imports(tree, types_too=True)
        if dotted.split(".")[0] not in known
    }
    assert not foreign


# --- allowed imports --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", HOMES)
def test_each_outside_library_is_imported_in_one_place(library: str) -> None:
    importers = {
        "kernels" if folder_of(name) == "kernels" else name
        for name, tree in TREES.items()
        for _, dotted in imports(tree, types_too=True)
        if dotted.split(".")[0] == library
    }
    assert importers <= HOMES[library]


def folder_of(name: str) -> str:
    """Return the folder of a module, or the module itself if it is beside the folders."""
    return name.split(".")[0]


def our_imports(name: str) -> set[str]:
    """Return our modules that a module imports, also inside functions and for types only."""
    found = (our_modules(dotted, set(TREES)) for _, dotted in imports(TREES[name], types_too=True))
    return {ours for ours in found if ours}


def test_every_module_is_in_the_order() -> None:
    assert {folder_of(name) for name in TREES} == {"", *ORDER}
    assert len(list(PACKAGE.iterdir())) - (PACKAGE / "__pycache__").exists() <= 30


@pytest.mark.parametrize("name", [name for name in TREES if name])
def test_imports_run_one_way_between_folders(name: str) -> None:
    folder = folder_of(name)
    allowed = PAPER if folder == "bert" else {*ORDER[: ORDER.index(folder) + 1]}
    for ours in our_imports(name):
        assert folder_of(ours) in allowed or (name, folder_of(ours)) in EXCEPTIONS, f"{name} imports {ours}"


def test_imports_have_no_cycle() -> None:
    rest = {name: our_imports(name) - {name} for name in TREES if name}
    while rest:
        free = [name for name, needed in rest.items() if not needed & set(rest)]
        assert free, f"these import each other: {', '.join(sorted(rest))}"
        for name in free:
            del rest[name]


def test_the_map_is_printed() -> None:
    for folder in ORDER:
        names = [name for name in TREES if folder_of(name) == folder]
        above = {folder_of(ours) for name in names for ours in our_imports(name)} - {folder}
        REPORT.append(f"{folder:13} imports {', '.join(sorted(above, key=ORDER.index)) or 'nothing of ours'}")


def test_the_map_is_correct() -> None:
    """minibert/README.md names every folder and module beside it, and the line counts of the files, rounded to tens."""
    text = (PACKAGE / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE)
    named = {name.rstrip("/") for row in rows for name in re.findall(r"`([a-z]+/?)`", row)}
    assert named == {*ORDER} - {"__main__"}
    counted = re.findall(r"\[([\w/.]+)\]\(([\w/.]+)\) \((\d+)(?: lines)?\)", text)
    assert len(counted) == 15
    for shown, linked, lines in counted:
        assert shown == linked
        found = len((PACKAGE / linked).read_text(encoding="utf-8").splitlines())
        assert int(lines) == round(found, -1), f"minibert/README.md says {lines} lines of {linked}; it has {found}"


def test_the_package_itself_imports_only_the_names_of_other_libraries() -> None:
    found = {our_modules(dotted, set(TREES)) for _, dotted in imports(TREES[""], types_too=False)}
    assert found <= {None, "_utils.foreign"}


def test_only_the_standard_library_and_numpy_are_imported_at_the_top_of_a_module() -> None:
    """The modules for Numba are imported only if a model needs them, scikit only by its users."""
    for name, tree in TREES.items():
        if name.startswith("kernels") or name == "scikit":
            continue
        skipped = for_types_only(tree)
        top = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom) and n not in skipped]
        for _, dotted in imports(ast.Module(body=list(top), type_ignores=[]), types_too=True):
            assert dotted.split(".")[0] not in HOMES, f"{name} imports {dotted}"
            assert not dotted.startswith(("minibert.kernels", "minibert.scikit")), f"{name} imports {dotted}"


def test_nothing_pickled_and_no_code_of_a_model_can_run() -> None:
    """No module uses pickle, exec or eval, or imports a name from a file."""
    for name, tree in TREES.items():
        for _, dotted in imports(tree, types_too=True):
            library = dotted.split(".")[0]
            assert library not in {"pickle", "marshal", "shelve", "dill", "runpy"}, name
            assert library != "torch" or name in ("_utils.torch_interop", "cli.bench"), name
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"exec", "eval", "compile", "__import__"}, f"{name}:{node.lineno}"
                # these look a name up in a table of their own
                tables = ("", "integrations", "compat.stand_in")
                assert node.func.id != "import_module" or name in tables, f"{name}:{node.lineno}"


# --- public names -----------------------------------------------------------------------------------------------------


# Importing one of these does something: the command line runs, or a stand-in is registered.
NOT_IMPORTED = ("minibert.__main__", "minibert.compat.sentence_transformers")


def all_modules() -> Iterator[ModuleType]:
    yield minibert
    for info in pkgutil.walk_packages(minibert.__path__, "minibert."):
        if info.name not in NOT_IMPORTED:
            try:
                yield importlib.import_module(info.name)
            except ImportError as error:  # of a library that need not be installed
                if "which is not installed: pip install" not in str(error):
                    raise


MODULES = {module.__name__: module for module in all_modules()}


def exported(module: ModuleType) -> Iterator[tuple[str, object]]:
    """Yield the public names of a module, without classes for libraries that are not installed."""
    for name in module.__all__:
        if module is not minibert.integrations or f"{module.__name__}.{module._MODULE_OF[name]}" in MODULES:
            yield name, getattr(module, name)


@pytest.mark.parametrize("name", MODULES)
def test_every_module_says_what_it_is_and_what_is_public(name: str) -> None:
    module = MODULES[name]
    assert module.__doc__
    assert len(set(module.__all__)) == len(module.__all__)
    assert dict(exported(module)) or not module.__all__  # raises an AttributeError for a name that is not there


@pytest.mark.parametrize("name", MODULES)
def test_names_that_other_modules_import_are_in_all(name: str) -> None:
    """A module imports only names in the other module's __all__."""
    tree = ast.parse(inspect.getsource(MODULES[name]))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in MODULES and node.module != "minibert":
            for alias in node.names:
                if f"{node.module}.{alias.name}" not in MODULES:
                    assert alias.name in MODULES[node.module].__all__, f"{node.lineno}: {node.module}.{alias.name}"


def public_objects() -> Iterator[tuple[str, object]]:
    for module in MODULES.values():
        for name, value in exported(module):
            if inspect.isfunction(value) or inspect.isclass(value):
                yield f"{module.__name__}.{name}", value


@pytest.mark.parametrize(("name", "value"), list(public_objects()), ids=[name for name, _ in public_objects()])
def test_public_functions_classes_and_methods_have_docstrings(name: str, value: object) -> None:
    assert value.__doc__, name
    if inspect.isclass(value):
        for method_name, method in vars(value).items():
            method = getattr(method, "__func__", method)
            if not method_name.startswith("_") and (inspect.isfunction(method) or isinstance(method, property)):
                assert method.__doc__, f"{name}.{method_name}"


def test_docstrings_of_functions_say_what_they_do() -> None:
    """They begin with a verb, not with "Whether"."""
    for folder in ("minibert", "benchmarks", "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    assert not (ast.get_docstring(node) or "").startswith("Whether"), f"{path}:{node.lineno}"


KERNEL_HEADINGS = (
    *("What", "Order", "Layout", "Registers", "Loop order", "Algorithm", "Edges", "Epilogue", "Prefetch", "Lines"),
    *("Pages", "Reuse", "Files", "Chunks", "Dispatch", "Options", "Time", "Numerics", "Cost", "Contract", "Ctrl-C"),
    *("Fork", "Memory", "Busy core", "Idleness", "The end", "Why not", "Source"),
)


def test_docstrings_of_kernels_have_the_same_headings() -> None:
    """Each begins with "What", has a "Contract", and ends with its "Source" if it has one."""
    for path in sorted((PACKAGE / "kernels").glob("[!_]*.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        found = re.findall(r"^(\S(?:[\w -]{0,10}\w)?) {2,}(?=\S)", text, re.MULTILINE)
        assert set(found) <= set(KERNEL_HEADINGS), path
        assert found[0] == "What", path
        assert "Contract" in found, path
        assert "Source" not in found[:-1], path


def test_the_package_gives_its_names_and_no_others() -> None:
    assert set(minibert.__all__) <= set(dir(minibert))
    for name in minibert.__all__:
        assert getattr(minibert, name) is not None
    with pytest.raises(AttributeError, match="module 'minibert' has no attribute 'Nothing'; it has AutoConfig, "):
        minibert.Nothing  # noqa: B018


def test_names_of_other_libraries_say_what_to_use() -> None:
    """The message is that of the table, for an attribute and for `from minibert import name`; no name is a module."""
    assert not set(minibert._INSTEAD) & set(minibert.__all__)
    for name, instead in minibert._INSTEAD.items():
        assert not hasattr(minibert, name), name
        for statement, error in (
            (f"minibert.{name}", "AttributeError"),
            (f"from minibert import {name}", "ImportError"),
        ):
            code = f"import minibert\ntry: {statement}\nexcept {error} as reason: message = str(reason)"
            found: dict[str, Any] = {}
            exec(code, {}, found)
            assert found["message"] == f"minibert has no {name}. Instead: {instead}."


def test_single_modules_of_sentence_transformers_say_what_to_use() -> None:
    message = "minibert.models has no Transformer. minibert reads the modules of a model from its files"
    with pytest.raises(AttributeError, match=message):
        exec("from minibert import models\nmodels.Transformer('name')", {})
    with pytest.raises(ImportError, match=message):
        exec("from minibert.models import Transformer", {})
    with pytest.raises(AttributeError, match=r"module 'minibert\.models' has no attribute 'other'"):
        exec("from minibert import models\nmodels.other", {})


def test_collators_work_with_rows_of_our_tokenizer() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch and transformers themselves
        from transformers import DataCollatorWithPadding, default_data_collator
    tokenizer = minibert.AutoTokenizer.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")
    rows = [tokenizer(text) for text in ("A cat sleeps.", "Stocks fell.")]
    ours, theirs = tokenizer.pad(rows, return_tensors="pt"), DataCollatorWithPadding(tokenizer)(rows)
    assert {name: values.tolist() for name, values in ours.items()} == {k: v.tolist() for k, v in theirs.items()}
    assert default_data_collator(rows[:1])["input_ids"].tolist() == [rows[0]["input_ids"]]
    assert "tokenizer.pad" in minibert._INSTEAD["DataCollatorWithPadding"]


def test_types_are_shipped() -> None:
    assert (PACKAGE / "py.typed").is_file()


def test_the_version_is_the_one_of_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert minibert.__version__ == project["version"]


# `minibert` on PyPI is another project: a command with this name, or with an extra of it, installs that one. A wheel's
# file name is not such a command.
STRANGER = re.compile(
    r"(?:pipx?|uv|conda) (?:install|add)(?:\s+-\S+)*\s+[\"'`]?mini" r"bert\b(?!\S*\.whl)|mini" r"bert\["
)


def project_files() -> list[Path]:
    """Return the files that git tracks; without git, as in a source distribution, all of its files."""
    try:
        done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        included = [ROOT / name for name in ("minibert", "tests", "benchmarks", "README.md", "pyproject.toml")]
        return [path for one in included for path in ([one] if one.is_file() else one.rglob("*.py"))]
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_no_file_says_to_install_the_other_project_of_this_name() -> None:
    read = 0
    for path in project_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:  # an image
            continue
        found = STRANGER.search(text)
        assert found is None, f"{path}: {found[0]!r}"
        read += 1
    assert read > 100
    name = "mini" + "bert"
    for wrong in (f"pip install {name}", f"pip install -U '{name}'", f"uv add {name}", f"needs {name}[plot]"):
        assert STRANGER.search(wrong), wrong
    for right in ('pip install ".[plot]"', "pip install . && minibert words", f"pip install {name}-0.3.0-py3.whl"):
        assert not STRANGER.search(right), right


@pytest.mark.parametrize(
    ("library", "install", "statement"),
    [
        ("sklearn", "scikit-learn", "import minibert.scikit"),
        ("matplotlib", "matplotlib", "from minibert.plot import require_matplotlib; require_matplotlib()"),
        ("pyarrow", "pyarrow", "from minibert.corpus.writers import output_suffix; output_suffix('x.parquet')"),
    ],
)
def test_a_library_that_is_missing_is_named(library: str, install: str, statement: str) -> None:
    code = f"import sys; sys.modules[{library!r}] = None; {statement}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"pip install {install}" in done.stderr.splitlines()[-1]


def test_the_workflow_matches_the_project() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))["jobs"]
    commands = "\n".join(step.get("run", "") for job in jobs.values() for step in job["steps"])
    markers = {text.partition(":")[0] for text in settings["tool"]["pytest"]["ini_options"]["markers"]}
    assert set(re.findall(r"pytest -m (\w+)", commands)) == {"network", "slow", "clients", "engines"} <= markers
    extras = {extra for found in re.findall(r'"\.\[([\w,]+)\]"', commands) for extra in found.split(",")}
    assert extras == {"test", "ray"} <= {*settings["project"]["optional-dependencies"]}
    assert (ROOT / ".ci" / "run").is_file()
    assert {".ci/run", "pytest"} <= {line.strip() for line in commands.splitlines()}
    matrix = jobs["test"]["strategy"]["matrix"]
    assert matrix["os"] == ["ubuntu-latest", "ubuntu-24.04-arm", "macos-latest", "windows-latest"]
    assert matrix["python"] == ["3.11", "3.14"], "they are strings, because YAML reads 3.10 as the number 3.1"
    assert settings["project"]["requires-python"] == f">={matrix['python'][0]}"


def test_there_are_five_runtime_packages_and_they_are_the_ones_imported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = {requirement.split(">")[0].replace("-", "_") for requirement in project["dependencies"]}
    assert required == {"numpy", "numba", "safetensors", "tokenizers", "huggingface_hub"}
    imported = {dotted.split(".")[0] for tree in TREES.values() for _, dotted in imports(tree, types_too=True)}
    extras = [project["optional-dependencies"][extra] for extra in ("plot", "sklearn", "parquet")]
    assert extras == [["matplotlib>=3.8"], ["scikit-learn>=1.6"], ["pyarrow>=17"]]
    clients = {library for library, homes in HOMES.items() if all(home.startswith("integrations.") for home in homes)}
    web = {library for library, homes in HOMES.items() if all(home.startswith("serving.") for home in homes)}
    names = {re.split("[>;]", requirement)[0] for requirement in project["optional-dependencies"]["serve"]}
    assert {library.replace("_", "-") for library in web} == names - {"uvloop", "httptools"}  # uvicorn imports these
    optional = {"matplotlib", "sklearn", "pyarrow", "scipy", "faiss", "usearch", "jinja2", *clients, *web}
    assert imported - set(sys.stdlib_module_names) - {"minibert"} - required - optional <= {
        "llvmlite",
        "tqdm",
        "torch",
        "transformers",
        "onnx",
        "onnxruntime",
        "openvino",
    }, "the first two come with the others; only bench.py and parity/peers.py import the rest, if they are installed"


# --- the tests themselves ---------------------------------------------------------------------------------------------


def imported_by(path: Path) -> set[str]:
    return {dotted for _, dotted in imports(ast.parse(path.read_text(encoding="utf-8")), types_too=True)}


def is_of_a_test(dotted: str) -> bool:
    """Return whether the name is in tests/ but not in tests/support/, which other tests may import."""
    folder, *rest = dotted.split(".")
    return folder == "tests" and rest[:1] != ["support"]


def test_no_test_file_imports_another_and_benchmarks_import_no_tests() -> None:
    files = sorted((ROOT / "tests").rglob("*.py"))
    assert len(files) > 70
    for path in files:
        assert not [dotted for dotted in imported_by(path) if is_of_a_test(dotted)], path
    for path in sorted((ROOT / "benchmarks").rglob("*.py")):
        assert not [dotted for dotted in imported_by(path) if dotted.split(".")[0] == "tests"], path
    assert is_of_a_test("tests.test_package.ROOT")
    assert is_of_a_test("tests.hub.conftest.server")
    assert not is_of_a_test("tests.support.oracle")


def test_the_page_of_the_tests_names_every_file() -> None:
    text = (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`([\w.]+)/?`", row)]
    there = [path for path in (ROOT / "tests").iterdir() if path.is_dir() or path.suffix in (".py", ".json")]
    assert sorted(named) == sorted({path.name for path in there} - {"__init__.py", "__pycache__"})


def test_no_test_file_is_longer_than_700_lines() -> None:
    for path in (ROOT / "tests").rglob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 700, f"{path}: split it by subject"


def test_the_slowest_tests_get_into_the_readme(tmp_path: Path) -> None:
    assert slowest.README.is_file()
    readme = tmp_path / "README.md"
    readme.write_text("before <!-- slowest -->\nold\n<!-- /slowest --> after", encoding="utf-8")
    named = [(f"tests/test_a.py::test_{i}", float(i)) for i in range(40)]
    reports = [SimpleNamespace(nodeid=name, duration=seconds) for name, seconds in named]
    reports.append(SimpleNamespace(nodeid="tests/test_a.py::test_39", duration=1.0))  # its setup
    slowest.write([*reports, SimpleNamespace(message="a warning")], readme)
    lines = readme.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "before <!-- slowest -->"
    assert lines[3:5] == ["| 40.0 | `test_a.py::test_39` |", "| 38.0 | `test_a.py::test_38` |"]
    assert sum(line.startswith("| ") for line in lines) == 1 + slowest.COUNT
    assert "Together 736 of the 781 seconds of 40 tests." in lines
    assert lines[-1] == "<!-- /slowest --> after"


@pytest.mark.parametrize(
    ("cores", "gigabytes", "expected"),
    [(1, 64, 0), (2, 23, 2), (2, 6, 2), (2, 5, 0), (4, 16, 4), (3, 7, 2), (64, 512, workers.MOST), (2, None, 2)],
)
def test_workers_need_a_core_and_memory_each(cores: int, gigabytes: int | None, expected: int) -> None:
    assert workers.count(cores, gigabytes and gigabytes * 2**30) == expected


def pytest_config(*args: str, **options: object) -> Any:
    """Return what `workers.choose` reads of a pytest that was started in the project's folder with pytest-xdist."""
    option = SimpleNamespace(
        **{"numprocesses": None, "tx": [], "dist": "no", "capture": "fd", "keyword": "", **options}
    )
    return SimpleNamespace(option=option, args=args, invocation_params=SimpleNamespace(dir=ROOT))


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The variables of a user on a machine with two cores."""
    variables = {"MKL_NUM_THREADS": "3", "PYTHONDONTWRITEBYTECODE": "1"}
    monkeypatch.setattr(workers, "available_cores", lambda: 2)
    monkeypatch.setattr(workers, "available_memory", lambda: 16 * 2**30)
    monkeypatch.setattr(workers, "os", SimpleNamespace(environ=variables))
    return variables


@pytest.mark.parametrize(
    ("config", "number"),
    [
        (pytest_config("tests"), 2),
        (pytest_config(str(ROOT / "tests") + os.sep), 2),
        (pytest_config("tests", numprocesses=3), 3),
        (pytest_config("tests/test_package.py", numprocesses=3), 3),
    ],
)
def test_workers_share_the_whole_suite_or_what_they_are_told_to(
    config: Any, number: int, environment: dict[str, str]
) -> None:
    workers.choose(config)
    assert (config.option.numprocesses, config.option.dist) == (number, "worksteal")
    assert environment == {**workers.ENVIRONMENT, "MKL_NUM_THREADS": "3"}, "all but bytecode stays as the user set it"


@pytest.mark.parametrize(
    "config",
    [
        pytest_config("tests/test_package.py"),
        pytest_config("tests", "tests/hub"),
        pytest_config("tests/hub"),
        pytest_config("tests/test_package.py::test_workers_need_a_core_and_memory_each"),
        pytest_config("tests", keyword="hub"),
        pytest_config("tests", usepdb=True),
        pytest_config("tests", capture="no"),
        pytest_config("tests", numprocesses=0),
    ],
)
def test_a_part_of_the_suite_runs_in_one_process(config: Any, environment: dict[str, str]) -> None:
    workers.choose(config)
    assert not config.option.numprocesses
    assert config.option.dist == "no"
    assert environment == {"MKL_NUM_THREADS": "3", "PYTHONDONTWRITEBYTECODE": "1"}


def test_neither_a_worker_nor_a_pytest_without_xdist_starts_workers() -> None:
    worker = pytest_config("tests")
    worker.workerinput = {}
    workers.choose(worker)
    assert worker.option.numprocesses is None
    without = pytest_config("tests")
    del without.option.numprocesses
    workers.choose(without)
    assert without.option.dist == "no"
