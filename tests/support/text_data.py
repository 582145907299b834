"""The test data that is not part of the repository: real texts and vocabularies in the folder MINIBERT_TEST_DATA."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.real_texts import VARIABLE, data_path, udhr_languages, udhr_lines

__all__ = ["VARIABLE", "data_path", "english_texts", "naughty_lines", "needs_data", "tokenization_cases", "udhr_lines"]

REASON = f"{VARIABLE} is not set; set it to the folder with the real texts and vocabularies"

needs_data = pytest.mark.skipif(not os.environ.get(VARIABLE), reason=REASON)


def english_texts() -> list[str]:
    """Return lines of the Declaration of Human Rights, or, without the test data, paragraphs of the licence."""
    if os.environ.get(VARIABLE):
        return udhr_languages()["eng"]
    license_ = Path(__file__).resolve().parents[2] / "LICENSE"
    return [" ".join(paragraph.split()) for paragraph in license_.read_text(encoding="utf-8").split("\n\n")]


@functools.cache
def naughty_lines() -> tuple[str, ...]:
    """Read the big list of naughty strings, with its comments and empty lines."""
    return tuple(data_path("blns.txt").read_text(encoding="utf-8").split("\n"))


@functools.cache
def tokenization_cases() -> tuple[dict[str, Any], ...]:
    """Read inputs and tokens from the tests of transformers and of google-research/bert."""
    return tuple(json.loads(data_path("tokenization_cases.json").read_text(encoding="utf-8")))
