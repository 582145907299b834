"""The course: BERT in ten functions, which are checked on real weights, and told what is wrong with them.

>>> import minibert.learn
>>> def softmax(scores):
...     powers = 2.718 ** (scores - scores.max(axis=-1, keepdims=True))
...     return powers / powers.sum(axis=-1, keepdims=True)
>>> minibert.learn.check("softmax", softmax).right
False
"""

from minibert.learn.checking import Result, check, check_file

__all__ = ["Result", "check", "check_file"]
