"""transformers' TokenizerTesterMixin on minibert's tokenizer, and its ModelTesterMixin on the forward pass."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.client_suites import PLUGINS, ROOT
from tests.support.report import REPORT
from tests.support.text_data import data_path, needs_data
from tests.support.tokenizer_files import model_folder

pytestmark = pytest.mark.clients

# What fails of the tokenizer, and why. Each has a reason that stays.
FAILING = {
    "test_added_tokens_serialization": "reads the private attribute _special_tokens_map",
    "test_chat_template": "chat templates, which no BERT has",
    "test_chat_template_return_assistant_tokens_mask": "masks for training",
    "test_chat_template_return_assistant_tokens_mask_truncated": "masks for training",
    "test_maximum_encoding_length_pair_input": "expects a record of the logger of transformers",
    "test_maximum_encoding_length_single_input": "expects a record of the logger of transformers",
    "test_tokenize_special_tokens": "asks a cased tokenizer for do_lower_case=True, which is refused",
    "test_tokenizer_initialization_with_conflicting_key": "expects AttributeError for a wrong keyword; it is TypeError",
}

# What passes on transformers' own model only: minibert does not compute gradients.
WITH_GRADIENTS = {
    "test_enable_input_require_grads_with_gradient_checkpointing",
    "test_retain_grad_hidden_states_attentions",
}

TOKENIZER_SUITE = """
import os, unittest
from minibert import BertTokenizer
from .test_tokenization_common import TokenizerTesterMixin

class OursTest(TokenizerTesterMixin, unittest.TestCase):
    tokenizer_class = BertTokenizer
    from_pretrained_id = [os.environ["TOKENIZER_FOLDER"]]
"""

MODEL_SUITE = """
import unittest
from minibert_in_bert_model import Model, ModelTester
from .test_modeling_common import ModelTesterMixin

class OursTest(ModelTesterMixin, unittest.TestCase):
    all_model_classes = (Model,)

    def setUp(self):
        self.model_tester = ModelTester()
"""

# Modules of the suite that its source distribution does not hold. The mixin only derives from these classes.
ABSENT = {"exporters/test_export.py": "ExportTesterMixin", "generation/test_utils.py": "GenerationTesterMixin"}


def run_mixin(suite: Path, tests: str, results: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Run the tests of a mixin in a process of their own; return the outcome of each by its name."""
    (suite / "test_ours.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib"]
    command += [f"--junitxml={results}", "tests/test_ours.py"]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(PLUGINS), *sys.path]),
        "HF_HUB_OFFLINE": "1",
        **variables,
    }
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
        environment.pop(name, None)
    subprocess.run(command, cwd=suite.parent, env=environment, check=False, capture_output=True)
    outcomes: dict[str, str] = {}
    for case in ElementTree.parse(results).iter("testcase"):
        outcome = next((kind for kind in ("failure", "error", "skipped") if case.find(kind) is not None), "passed")
        name = case.get("name", "").partition("[")[0].partition(" ")[0]
        outcomes[name] = max(outcome, outcomes.get(name, ""), key=["", "passed", "skipped", "failure", "error"].index)
    return outcomes


@needs_data
def test_the_suite_of_transformers_tokenizers(transformers_tests: Path, tmp_path: Path) -> None:
    """The tokenizer is cased, because most tests ask for do_lower_case=False."""
    settings = {"do_lower_case": False, "model_max_length": 512, "tokenizer_class": "BertTokenizer"}
    folder = model_folder(tmp_path / "cased", tokenizer_config=settings, config={"model_type": "bert"})
    shutil.copyfile(data_path("vocab/bert-base-cased.txt"), folder / "vocab.txt")
    outcomes = run_mixin(
        transformers_tests, TOKENIZER_SUITE, tmp_path / "results.xml", {"TOKENIZER_FOLDER": str(folder)}
    )
    failed = {name for name, outcome in outcomes.items() if outcome in ("failure", "error")}
    passed = sum(outcome == "passed" for outcome in outcomes.values())
    REPORT.append(f"TokenizerTesterMixin of transformers: {passed} of {passed + len(failed)} tests pass")
    assert failed == set(FAILING), json.dumps(sorted(failed ^ set(FAILING)))
    assert passed >= 45


def test_the_suite_of_transformers_models(transformers_tests: Path, tmp_path: Path) -> None:
    """About 40 of the tests call the forward pass; the others pass because transformers makes and saves the model."""
    for name, mixin in ABSENT.items():
        (transformers_tests / name).parent.mkdir(exist_ok=True)
        (transformers_tests / name).write_text(f"class {mixin}: pass\n")
    theirs, ours = (
        run_mixin(transformers_tests, MODEL_SUITE, tmp_path / f"{side}.xml", {"MINIBERT_SUITE_SIDE": side})
        for side in ("theirs", "minibert")
    )
    wanted = {name for name, outcome in theirs.items() if outcome == "passed"}
    missing = {name for name in wanted if ours.get(name) != "passed"}
    REPORT.append(f"ModelTesterMixin of transformers: {len(wanted) - len(missing)} of {len(wanted)} tests pass")
    assert len(wanted) >= 100
    assert missing == WITH_GRADIENTS, json.dumps(sorted(missing ^ WITH_GRADIENTS))
