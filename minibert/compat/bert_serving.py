"""`minibert.integrations.bert_serving` under its public name."""

from minibert.integrations.bert_serving import BertClient, Response

__all__ = ["BertClient", "Response"]
