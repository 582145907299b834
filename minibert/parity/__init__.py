"""Check other implementations of BERT: say whether a port is right, and if not, where and why it is wrong.

>>> from minibert import BertModel, parity
>>> model = BertModel.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")
>>> inputs = {"input_ids": [[101, 7592, 102]]}
>>> report = parity.check(model, model.trace(**inputs, record="hidden_states.*"), inputs)
>>> report.verdict
'bits'

`check` compares values by name with the true ones; `probe` makes inputs that make mistakes visible. The page is
parity/README.md.
"""

from minibert.parity.checking import check
from minibert.parity.dumps import NothingComparedError
from minibert.parity.finding import Finding
from minibert.parity.inputs import Probe, probe
from minibert.parity.report import Report, Row

__all__ = ["Finding", "NothingComparedError", "Probe", "Report", "Row", "check", "probe"]
