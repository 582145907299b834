"""The tests of sentence-transformers itself, run on minibert: those that pass on the library pass here, but for a list.

Both sides run offline with the same models: the small one of the suite is a random BERT of its size. A test counts if
it passes on the library itself there.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from tests.support.checkpoints import locate_minilm
from tests.support.client_suites import checkout, run_suite
from tests.support.report import REPORT

pytestmark = pytest.mark.clients

SMALL = "sentence-transformers-testing/stsb-bert-tiny-safetensors"

UTIL = [f"tests/util/test_{name}.py" for name in ("similarity", "retrieval", "quantization", "tensor")]
MODEL = ["tests/sentence_transformer/test_model.py"]
EVALUATORS = ["tests/sentence_transformer/evaluation"]

# Test functions, and why they do not pass. Parametrised ones may pass for some of their parameters.
REASONS = {
    "test_mean_maxsim_matches_length_normalized_maxsim": "SimilarityFunction does not have the scores of token vectors",
    "test_push_to_hub": "minibert does not upload; the message says how",
    "test_load_local_without_normalize_directory": "modules of torch are added to the model",
    "test_prompts": "a prompt and its name give a warning of Python, not a line of logging",
    "test_save_load_prompts": "the words of an error",
    "test_prompt_length_calculation": "the tokenizer inside transformers' tokenizer is changed",
    "test_load_with_model_kwargs": "looks at what the class Transformer of the library is given",
    "test_encode_quantization": "the words of an error, for precision='error'",
    "test_encode_truncate": "output_value=None gives arrays unless tensors are asked for; and it refuses "
    "normalize_embeddings=True, which has no effect there",
    "test_model_card_save_update_model_id": "minibert does not write model cards",
    "test_encode_per_call_processing_kwargs": "processing_kwargs is refused; max_seq_length can be set",
    "test_get_model_kwargs": "modules of torch and the words of an error",
    "test_transformers_model_property": "the model is minibert's BertModel, not transformers'",
    "test_parse_model_config_ignores_multi_vector_similarity": "an inner method; such a file is refused by name",
}


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkout("huggingface", "sentence-transformers", tmp_path_factory.mktemp("suite"))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of the size of the suite's own, with the tokenizer of MiniLM."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertModel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    bert, folder = tmp_path_factory.mktemp("bert"), tmp_path_factory.mktemp("sentences")
    torch.manual_seed(0)
    config = BertConfig(hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512)
    BertModel(config).save_pretrained(bert)
    AutoTokenizer.from_pretrained(locate_minilm()).save_pretrained(bert)
    SentenceTransformer(modules=[Transformer(str(bert)), Pooling(128, "mean")]).save(str(folder))
    return folder


@pytest.mark.parametrize(("tests", "share"), [(UTIL, 83 / 85), (MODEL, 459 / 487), (EVALUATORS, 1.0)])
def test_what_passes_there_passes_here(
    suite: Path, small: Path, tmp_path: Path, tests: list[str], share: float
) -> None:
    models = {SMALL: str(small), "sentence-transformers/all-MiniLM-L6-v2": str(locate_minilm())}
    variables = {"MINIBERT_SUITE_MODELS": models}
    theirs, ours = (
        run_suite(suite, "minibert_names", tests, tmp_path, {**variables, "MINIBERT_SUITE_SIDE": side})
        for side in ("theirs", "minibert")
    )
    wanted = [test for test, outcome in theirs.items() if outcome == "PASSED"]
    missing = [test for test in wanted if ours.get(test) != "PASSED"]
    REPORT.append(f"sentence-transformers' {tests[0]}: {len(wanted) - len(missing)} of {len(wanted)} pass on minibert")
    assert len(wanted) >= 16
    without_reason = [test for test in missing if test.split("::")[1].partition("[")[0] not in REASONS]
    assert not without_reason
    assert len(wanted) - len(missing) >= share * len(wanted)
