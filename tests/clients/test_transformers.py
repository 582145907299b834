"""transformers' TokenizerTesterMixin, run on minibert's tokenizer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.support.report import REPORT
from tests.support.text_data import data_path, needs_data
from tests.support.tokenizer_files import model_folder

pytestmark = pytest.mark.clients

# What fails, and why. Each has a reason that stays.
FAILING = {
    "test_added_tokens_serialization": "reads the private attribute _special_tokens_map",
    "test_chat_template": "runs a template of a model's files; minibert runs one only if the caller hands it over",
    "test_chat_template_return_assistant_tokens_mask": "masks for training",
    "test_chat_template_return_assistant_tokens_mask_truncated": "masks for training",
    "test_maximum_encoding_length_pair_input": "expects a record of the logger of transformers",
    "test_maximum_encoding_length_single_input": "expects a record of the logger of transformers",
    "test_tokenize_special_tokens": "asks a cased tokenizer for do_lower_case=True, which is refused",
    "test_tokenizer_initialization_with_conflicting_key": "expects AttributeError for a wrong keyword; it is TypeError",
}

SUITE = """
import os, unittest
from minibert import BertTokenizer
from .test_tokenization_common import TokenizerTesterMixin

class OursTest(TokenizerTesterMixin, unittest.TestCase):
    tokenizer_class = BertTokenizer
    from_pretrained_id = [os.environ["TOKENIZER_FOLDER"]]
"""


@needs_data
def test_the_suite_of_transformers_tokenizers(transformers_tests: Path, tmp_path: Path) -> None:
    """The tokenizer is cased, because most tests ask for do_lower_case=False."""
    settings = {"do_lower_case": False, "model_max_length": 512, "tokenizer_class": "BertTokenizer"}
    folder = model_folder(tmp_path / "cased", tokenizer_config=settings, config={"model_type": "bert"})
    shutil.copyfile(data_path("vocab/bert-base-cased.txt"), folder / "vocab.txt")
    (transformers_tests / "test_ours.py").write_text(SUITE)
    results = tmp_path / "results.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib"]
    command += [f"--junitxml={results}", "tests/test_ours.py"]
    environment = os.environ | {
        "TOKENIZER_FOLDER": str(folder),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path]),
        "HF_HUB_OFFLINE": "1",
    }
    subprocess.run(command, cwd=transformers_tests.parent, env=environment, check=False, capture_output=True)
    outcomes: dict[str, str] = {}
    for case in ElementTree.parse(results).iter("testcase"):
        outcome = next((kind for kind in ("failure", "error", "skipped") if case.find(kind) is not None), "passed")
        name = case.get("name", "").partition("[")[0].partition(" ")[0]
        outcomes[name] = max(outcome, outcomes.get(name, ""), key=["", "passed", "skipped", "failure", "error"].index)
    failed = {name for name, outcome in outcomes.items() if outcome in ("failure", "error")}
    passed = sum(outcome == "passed" for outcome in outcomes.values())
    REPORT.append(f"TokenizerTesterMixin of transformers: {passed} of {passed + len(failed)} tests pass")
    assert failed == set(FAILING), json.dumps(sorted(failed ^ set(FAILING)))
    assert passed >= 45
