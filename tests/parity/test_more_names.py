"""A dump with more names never loses a cause that fewer names gave, over the mistakes of the catalogue."""

from __future__ import annotations

import functools
import itertools
import zlib
from pathlib import Path

import numpy as np
import pytest

from minibert import load
from minibert.parity.diagnosis.catalogue import MISTAKES
from tests.support.families import SAMPLES, inputs, make
from tests.support.marks import sampled
from tests.support.mistakes import Subject

MODELS = ("bert", "mpnet", "electra", "gte", "modernbert")


@functools.cache
def subject_of(family: str, home: Path) -> Subject:
    """Return a model of a family, with the inputs that its own tests have."""
    ids, mask = inputs(make(home / family, family, **SAMPLES[family].telling).config.pad_token_id)
    given = {"input_ids": ids, "attention_mask": mask}
    if family in ("bert", "electra"):
        given["token_type_ids"] = (np.arange(17) > 9) * np.ones_like(ids)
    return Subject.of_inputs(family, load(home / family, backend="numpy"), given)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("more")


@pytest.mark.parametrize(("family", "id"), sampled(itertools.product(MODELS, MISTAKES), 150))
def test_more_names_lose_no_cause(home: Path, family: str, id: str) -> None:
    """The last state or the hidden states, then more and more of the other names, in an order by chance."""
    subject, mistake = subject_of(family, home), MISTAKES[id]
    if not mistake.is_for(subject.model) or mistake.vector is not None:
        return
    try:
        port = subject.port(mistake)
    except ValueError:  # with these inputs, or this width
        assert id.startswith(("A6", "E5", "P4", "D2.q8_0", "D2.q4_0", "W1"))
        return
    states = [name for name in port if name.count(".") == 2 or name in ("embeddings", "final_norm")]
    others = np.random.default_rng(zlib.crc32(id.encode())).permutation([name for name in port if name not in states])
    given = False
    for names in (states[-1:], states, *([*states, *others[: len(others) * part // 4]] for part in (1, 2, 3, 4))):
        findings = subject.diagnose({name: port[name] for name in port if name in names})
        causes = {cause for finding in findings for cause in finding.candidates}
        assert id in causes or not given, (len(names), [finding.text for finding in findings])
        given = id in causes
