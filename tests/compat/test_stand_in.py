"""The stand-in for sentence_transformers: registered in its own process, with small libraries made here."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from tests.support import outcomes


def printed(code: str, folder: Path, **options: Any) -> list[str]:
    """Run a program with the stand-in; return the lines that it prints."""
    code = "import minibert.compat.sentence_transformers\n" + textwrap.dedent(code)
    return outcomes.printed(code, "-W", "error", folder=folder, **options).split("\n")[:-1]


def test_the_class_is_the_one_of_minibert(tmp_path: Path, short_folder: Path) -> None:
    code = f"""
        import warnings
        import sentence_transformers
        from sentence_transformers import SentenceTransformer, util
        from sentence_transformers.SentenceTransformer import SentenceTransformer as old
        from sentence_transformers.sentence_transformer.model import SentenceTransformer as new
        import minibert, minibert.util
        warnings.simplefilter("ignore")
        model = minibert.SentenceTransformer({str(short_folder)!r})
        print(isinstance(model, sentence_transformers.SentenceTransformer))
        print(SentenceTransformer is sentence_transformers.SentenceTransformer is minibert.SentenceTransformer)
        from minibert.compat.sentence_transformers import SentenceTransformer as from_here, util as util_from_here
        print(old is new is SentenceTransformer is from_here, util_from_here is util)
        print("sentence_transformers" in str(type(model)))    # KeyBERT and BERTopic look at this
        print(util.cos_sim is minibert.util.cos_sim is sentence_transformers.util.cos_sim)
        import pickle
        print(type(pickle.loads(pickle.dumps(model))) is SentenceTransformer)
    """
    assert printed(code, tmp_path) == ["True", "True", "True True", "True", "True", "True"]


def test_names_of_old_and_new_versions(tmp_path: Path) -> None:
    code = """
        from sentence_transformers import LoggingHandler, SimilarityFunction, quantize_embeddings
        from sentence_transformers.quantization import quantize_embeddings as a
        from sentence_transformers.similarity_functions import SimilarityFunction as b
        from sentence_transformers.util import community_detection, paraphrase_mining, pytorch_cos_sim, semantic_search
        from sentence_transformers.util.similarity import cos_sim
        from sentence_transformers.util import *
        import sentence_transformers as st
        print(a is quantize_embeddings, b is SimilarityFunction, dot_score is st.util.dot_score, "util" in dir(st))
        print(hasattr(st, "models"), hasattr(st, "nothing"), hasattr(st.util, "nothing"), st.__file__[-28:])
    """
    assert printed(code, tmp_path) == ["True True True True", "True False False pat/sentence_transformers.py"]


def test_the_checks_that_libraries_make(tmp_path: Path) -> None:
    code = """
        import importlib.metadata, importlib.util, sys
        from packaging.version import Version
        import sentence_transformers
        version = sentence_transformers.__version__
        print(importlib.metadata.version("sentence-transformers") == version)
        print(importlib.metadata.version("sentence_transformers") == version)
        print(importlib.metadata.distribution("sentence-transformers").metadata["Name"])
        print(importlib.metadata.packages_distributions()["sentence_transformers"][0])
        print((6, 2) <= Version(version).release < (7,), "minibert" in version)
        print(importlib.util.find_spec("sentence_transformers.util") is not None)
        print(importlib.util.find_spec("sentence_transformers.nothing"))
        print(bool(importlib.metadata.version("numpy")), "torch" in sys.modules)
    """
    assert printed(code, tmp_path) == [
        *("True", "True", "sentence-transformers", "sentence-transformers", "True True"),
        *("True", "None", "True False"),
    ]


# What a program does, the type of the error, and a part of its message.
NOT_THERE = (
    ("from sentence_transformers import no_such_name", "ImportError", "compat/sentence_transformers.py"),
    ("import sentence_transformers.no_such_module", "ModuleNotFoundError", "no_such_module"),
    ("import sentence_transformers as s; s.no_such_name", "AttributeError", "no_such_name is not in minibert"),
    ("from sentence_transformers import SentenceTransformerTrainer as T; T()", "NotImplementedError", "train"),
    ("from sentence_transformers.losses import CosineSimilarityLoss as L; L()", "NotImplementedError", "train"),
    ("from sentence_transformers.losses import BatchHard as B; B.cosine(1)", "NotImplementedError", "train"),
    ("from sentence_transformers.models import Dense; Dense(1, 2)", "NotImplementedError", "(folder)"),
    ("from sentence_transformers.evaluation import E; E()", "NotImplementedError", "evaluate"),
    ("from sentence_transformers.util import mine_hard_negatives as f; f()", "NotImplementedError", "train"),
)


def test_what_is_not_there_says_so_and_placeholders_are_types(tmp_path: Path) -> None:
    """Libraries name the placeholders in annotations, inherit from them, and ask isinstance."""
    code = f"""
        for program in {[program for program, _, _ in NOT_THERE]!r}:
            try:
                exec(program, {{}})
            except Exception as error:
                print(type(error).__name__, "|", error)
        from sentence_transformers import SentenceTransformerTrainer
        from sentence_transformers.losses import CosineSimilarityLoss, Distances
        class Trainer(SentenceTransformerTrainer):
            def __init__(self, model: SentenceTransformerTrainer | None = None, metric=Distances.cosine): pass
        print(isinstance(1, SentenceTransformerTrainer), issubclass(Trainer, SentenceTransformerTrainer))
        print(CosineSimilarityLoss)
    """
    *lines, types, name = printed(code, tmp_path)
    for line, (_, kind, message) in zip(lines, NOT_THERE, strict=True):
        assert line.startswith(f"{kind} | "), line
        assert message in line
    assert (types, name) == ("False True", "<class 'sentence_transformers.losses.CosineSimilarityLoss'>")


def test_the_real_library_must_not_be_loaded_yet(tmp_path: Path) -> None:
    (tmp_path / "sentence_transformers.py").write_text("class SentenceTransformer: pass\n", encoding="utf-8")
    code = "import sentence_transformers, minibert.compat.sentence_transformers"
    done = outcomes.python("-W", "error", "-c", code, folder=tmp_path, path=tmp_path)
    assert done.returncode == 1
    error = done.stderr.splitlines()[-1]
    assert error.startswith("ImportError: sentence_transformers is loaded already, from ")
    assert "Put `import minibert.compat.sentence_transformers` before every import of a library that uses" in error
    # if it is only installed, the stand-in is found, and stays
    again = """
        import importlib, sentence_transformers, minibert.compat.sentence_transformers
        importlib.reload(minibert.compat.sentence_transformers)
        import sentence_transformers as again
        print(sentence_transformers is again, sentence_transformers.SentenceTransformer.__module__.split(".")[0])
    """
    assert printed(again, tmp_path, path=tmp_path) == ["True minibert"]


# --- the stand-in for transformers ------------------------------------------------------------------------------------


def test_transformers_has_the_names_of_minibert_and_a_clear_error_for_others(tmp_path: Path) -> None:
    programs = (
        "from transformers import nothing",
        "from transformers.utils import logging",
        "import transformers as t; t.no_such_name",
        "from transformers import GPT2Model as M; M.from_pretrained('x')",
        "from transformers import PreTrainedModel as M; M()",
    )
    code = f"""
        import minibert, minibert.compat.transformers, transformers, importlib.util, sys
        from transformers import AutoModel, AutoTokenizer, BertModel, RobertaModel, XLNetModel, pipeline
        print(BertModel is minibert.BertModel, pipeline is minibert.pipeline, transformers.__version__.split("+")[0])
        print(importlib.util.find_spec("transformers").name, "torch" in sys.modules)
        class Own(transformers.PreTrainedTokenizer): pass
        for program in {programs!r}:
            try:
                exec(program, {{}})
            except Exception as error:
                print(type(error).__name__, "|", error)
    """
    code = "import minibert\n" + textwrap.dedent(code)
    same, found, *errors = outcomes.printed(code, "-W", "error", folder=tmp_path).split("\n")[:-1]
    assert (same, found) == ("True True 5.24.0", "transformers False")
    wanted = (
        ("ImportError", str(Path("compat", "transformers.py"))),
        ("ModuleNotFoundError", "transformers.utils is not in minibert"),
        ("AttributeError", "no_such_name is not in minibert"),
        ("AttributeError", "use AutoModel"),
        ("TypeError", "use AutoModel"),
    )
    for line, (kind, message) in zip(errors, wanted, strict=True):
        assert line.startswith(f"{kind} | "), line
        assert message in line


def test_the_real_transformers_must_not_be_loaded_yet(tmp_path: Path) -> None:
    (tmp_path / "transformers.py").write_text("class BertModel: pass\n", encoding="utf-8")
    done = outcomes.python("-c", "import transformers, minibert.compat.transformers", folder=tmp_path, path=tmp_path)
    assert done.returncode == 1
    assert "ImportError: transformers is loaded already, from " in done.stderr.splitlines()[-1]
