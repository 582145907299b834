"""A dump with more names never loses a cause that fewer names gave, over the mistakes of the catalogue."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest

from minibert import load
from minibert.parity.diagnosis.catalogue import MISTAKES, simulate
from tests.support.families import SAMPLES, inputs, make
from tests.support.mistakes import ODD_FIRST, Subject

MODELS = ("bert", "mpnet", "electra", "gte", "modernbert")


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Subject]:
    """Return a model of some families, with the inputs that its own tests have."""
    made = {}
    for family in MODELS:
        folder: Path = tmp_path_factory.mktemp(family)
        ids, mask = inputs(make(folder, family, **SAMPLES[family].telling).config.pad_token_id)
        given = {"input_ids": ids, "attention_mask": mask}
        if family in ("bert", "electra"):
            given["token_type_ids"] = (np.arange(17) > 9) * np.ones_like(ids)
        made[family] = Subject.of_inputs(family, load(folder, backend="numpy"), given)
    return made


@pytest.mark.parametrize(
    ("family", "id"),
    [
        pytest.param(family, id, marks=[] if zlib.crc32(f"{id}{family}".encode()) % 30 == 0 else pytest.mark.slow)
        for family in MODELS
        for id in MISTAKES
    ],
)
def test_more_names_lose_no_cause(subjects: dict[str, Subject], family: str, id: str) -> None:
    """The last state or the hidden states, then more and more of the other names, in an order by chance."""
    subject, mistake = subjects[family], MISTAKES[id]
    if not mistake.is_for(subject.model) or mistake.vector is not None:
        return
    try:
        port = simulate(subject.model, subject.inputs, [ODD_FIRST, mistake], record="*")
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
