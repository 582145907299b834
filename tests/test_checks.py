"""The checks that all modules share, and arguments that once gave another library's exception or a wrong answer."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from minibert import SentenceTransformer
from minibert._utils.validation import brief, check_int
from minibert.vectors.layers import join_subwords
from tests.support.refusals import Raises, array, nested

HUGE = 10**5000


@pytest.fixture(scope="module")
def sentences(small_folder: Path) -> SentenceTransformer:
    with pytest.warns(UserWarning, match=r"no modules\.json"):
        return SentenceTransformer(small_folder)


# --- the checks themselves -------------------------------------------------------------------------------------------


def test_ints_are_returned_as_python_ints() -> None:
    for value in (3, np.int8(3), np.uint64(3)):
        assert check_int("n", value, 1, 3) == 3
        assert type(check_int("n", value)) is int
    assert check_int("n", HUGE, 1) == HUGE


def test_refused_ints() -> None:
    for value, limits, error in (
        *((value, (1,), TypeError) for value in (True, np.True_, 1.0, None)),
        *((value, limits, ValueError) for value, limits in ((0, (1,)), (np.int8(-1), (0,)), (5, (1, 4)))),
        *((value, (1, 4), ValueError) for value in (HUGE, -HUGE)),
    ):
        with pytest.raises(error, match=rf"^n={re.escape(brief(value))}; expected an int"):
            check_int("n", value, *limits)


def test_any_value_can_be_shown() -> None:
    assert brief([1, "a", None]) == "[1, 'a', None]"
    assert brief(10**30) == str(10**30)
    assert brief([HUGE]) == "[<an integer of 16610 bits>]"
    assert brief({"a": -HUGE}) == "{'a': <an integer of 16610 bits>}"
    assert "\ud800" not in brief("\ud800")
    for value in (nested(3000), "a" * 10**6, np.zeros(10**5), Raises(), array(), [array()], {HUGE: nested(3000)}):
        assert 0 < len(brief(value)) < 200


# --- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strides", [(0, 4), (4, 4), (20, 0), (12, 4), (-16, 4), (0, 0)])
def test_rows_of_out_must_not_overlap(sentences: SentenceTransformer, strides: tuple[int, int]) -> None:
    space = np.zeros(100, np.float32)
    out = np.lib.stride_tricks.as_strided(space[50:], (3, 5), strides)
    texts = ["a cat", "the dog", "on the mat"]
    for call in (sentences.encode, lambda *a, **k: list(sentences.encode_iter(*a, **k))):
        with pytest.raises(ValueError, match="overlap"):
            call(texts, truncate_dim=5, out=out)
    assert not space.any()


def test_rows_of_out_that_lie_apart(sentences: SentenceTransformer) -> None:
    texts, wide = ["a cat", "the dog", "on the mat"], np.zeros((7, 11), np.float32)
    expected = sentences.encode(texts, truncate_dim=5)
    deep, fortran = np.zeros((3, 2, 5), np.float32)[:, 1], np.zeros((3, 5), np.float32, order="F")
    for out in (np.zeros((3, 5)), np.zeros((3, 5), ">f4"), fortran, wide[1:4, 2:7], wide[::-2, ::2][:3, :5], deep):
        np.testing.assert_array_equal(sentences.encode(texts, truncate_dim=5, out=out), expected)
        np.testing.assert_array_equal(out, expected)
    single = np.lib.stride_tricks.as_strided(wide, (1, 5), (0, 4))  # one row cannot overlap another
    np.testing.assert_array_equal(sentences.encode(texts[:1], truncate_dim=5, out=single), expected[:1])
    empty = np.lib.stride_tricks.as_strided(wide, (0, 5), (0, 0))
    assert sentences.encode([], truncate_dim=5, out=empty) is empty
    with pytest.raises(TypeError, match="masked array"):
        sentences.encode(texts, truncate_dim=5, out=np.ma.zeros((3, 5)))


def test_sums_beyond_float32_are_infinite() -> None:
    large = np.full((2, 3), 3e38, np.float32)
    with np.errstate(all="raise"):
        assert np.isposinf(join_subwords(large, "sum")).all()
        np.testing.assert_array_equal(join_subwords(large, "mean"), large[0])
