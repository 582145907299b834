"""The course: BERT in eleven functions. They are checked on real weights, and told what is wrong.

>>> import minibert.learn
>>> def softmax(scores):
...     powers = 2.718 ** (scores - scores.max(axis=-1, keepdims=True))
...     return powers / powers.sum(axis=-1, keepdims=True)
>>> minibert.learn.check("softmax", softmax).right
False
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minibert.learn.checking import Result, check, check_file

__all__ = ["Result", "check", "check_file"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from minibert.learn import checking  # the process of a student does not need it

    return getattr(checking, name)
