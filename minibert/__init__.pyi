"""The public names and their types, for type checkers and editors; __init__.py imports each at its first use."""

from typing import Any

from minibert import exact, inside, learn, parity
from minibert import search as search
from minibert import similarity as similarity
from minibert import util as util
from minibert._version import __version__
from minibert.bert.config import BertConfig
from minibert.errors import DownloadError, ModelFormatError
from minibert.models.bert import BertModel
from minibert.models.heads import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForNextSentencePrediction,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    load,
)
from minibert.models.outputs import BertModelOutput
from minibert.sentence.cross_encoder import CrossEncoder
from minibert.sentence.multi_vector_encoder import MultiVectorEncoder
from minibert.sentence.sentence_transformers import SentenceTransformer
from minibert.sentence.sparse_encoder import SparseEncoder
from minibert.sentence.sparse_vectors import SparseVectors
from minibert.tasks.pipelines import pipeline
from minibert.tokenizer.bert_tokenizer import AutoTokenizer, BertTokenizer, BertTokenizerFast
from minibert.trace.edits import Edit, head_mask
from minibert.trace.trace import Trace
from minibert.util import LoggingHandler
from minibert.vectors.layers import combine_layers
from minibert.vectors.occurrences import word_occurrences
from minibert.vectors.similarity import SimilarityFunction, quantize_embeddings
from minibert.vectors.token_vectors import TokenVectors, embed_tokens

__all__ = [
    "AutoConfig",
    "AutoModel",
    "AutoModelForMaskedLM",
    "AutoModelForMultipleChoice",
    "AutoModelForNextSentencePrediction",
    "AutoModelForPreTraining",
    "AutoModelForQuestionAnswering",
    "AutoModelForSequenceClassification",
    "AutoModelForTokenClassification",
    "AutoTokenizer",
    "BertConfig",
    "BertForMaskedLM",
    "BertForMultipleChoice",
    "BertForNextSentencePrediction",
    "BertForPreTraining",
    "BertForQuestionAnswering",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertModel",
    "BertModelOutput",
    "BertTokenizer",
    "BertTokenizerFast",
    "CrossEncoder",
    "DownloadError",
    "Edit",
    "LoggingHandler",
    "ModelFormatError",
    "MultiVectorEncoder",
    "SentenceTransformer",
    "SimilarityFunction",
    "SparseEncoder",
    "SparseVectors",
    "TokenVectors",
    "Trace",
    "__version__",
    "combine_layers",
    "embed_tokens",
    "exact",
    "head_mask",
    "inside",
    "learn",
    "load",
    "parity",
    "pipeline",
    "quantize_embeddings",
    "word_occurrences",
]

# fmt: off
# ruff: noqa: E701
class _Config(BertConfig):
    def __init__(self, **fields: Any) -> None: ...
    def __getattr__(self, name: str) -> Any: ...  # the fields of a family

class RobertaConfig(_Config): ...
class RobertaTokenizer(BertTokenizer): ...
RobertaTokenizerFast = RobertaTokenizer
class RobertaModel(BertModel): ...
class RobertaForMaskedLM(BertForMaskedLM): roberta: RobertaModel
class RobertaForSequenceClassification(BertForSequenceClassification): roberta: RobertaModel
class RobertaForTokenClassification(BertForTokenClassification): roberta: RobertaModel
class RobertaForQuestionAnswering(BertForQuestionAnswering): roberta: RobertaModel
class RobertaForMultipleChoice(BertForMultipleChoice): roberta: RobertaModel
class XLMRobertaConfig(_Config): ...
class XLMRobertaTokenizer(BertTokenizer): ...
XLMRobertaTokenizerFast = XLMRobertaTokenizer
class XLMRobertaModel(BertModel): ...
class XLMRobertaForMaskedLM(BertForMaskedLM): roberta: XLMRobertaModel
class XLMRobertaForSequenceClassification(BertForSequenceClassification): roberta: XLMRobertaModel
class XLMRobertaForTokenClassification(BertForTokenClassification): roberta: XLMRobertaModel
class XLMRobertaForQuestionAnswering(BertForQuestionAnswering): roberta: XLMRobertaModel
class XLMRobertaForMultipleChoice(BertForMultipleChoice): roberta: XLMRobertaModel
class CamembertConfig(_Config): ...
class CamembertTokenizer(BertTokenizer): ...
CamembertTokenizerFast = CamembertTokenizer
class CamembertModel(BertModel): ...
class CamembertForMaskedLM(BertForMaskedLM): roberta: CamembertModel
class CamembertForSequenceClassification(BertForSequenceClassification): roberta: CamembertModel
class CamembertForTokenClassification(BertForTokenClassification): roberta: CamembertModel
class CamembertForQuestionAnswering(BertForQuestionAnswering): roberta: CamembertModel
class CamembertForMultipleChoice(BertForMultipleChoice): roberta: CamembertModel
class Data2VecTextConfig(_Config): ...
class Data2VecTextTokenizer(BertTokenizer): ...
Data2VecTextTokenizerFast = Data2VecTextTokenizer
class Data2VecTextModel(BertModel): ...
class Data2VecTextForMaskedLM(BertForMaskedLM): data2vec_text: Data2VecTextModel
class Data2VecTextForSequenceClassification(BertForSequenceClassification): data2vec_text: Data2VecTextModel
class Data2VecTextForTokenClassification(BertForTokenClassification): data2vec_text: Data2VecTextModel
class Data2VecTextForQuestionAnswering(BertForQuestionAnswering): data2vec_text: Data2VecTextModel
class Data2VecTextForMultipleChoice(BertForMultipleChoice): data2vec_text: Data2VecTextModel
class ErnieConfig(_Config): ...
class ErnieTokenizer(BertTokenizer): ...
ErnieTokenizerFast = ErnieTokenizer
class ErnieModel(BertModel): ...
class ErnieForMaskedLM(BertForMaskedLM): ernie: ErnieModel
class ErnieForSequenceClassification(BertForSequenceClassification): ernie: ErnieModel
class ErnieForTokenClassification(BertForTokenClassification): ernie: ErnieModel
class ErnieForQuestionAnswering(BertForQuestionAnswering): ernie: ErnieModel
class ErnieForMultipleChoice(BertForMultipleChoice): ernie: ErnieModel
class DistilBertConfig(_Config): ...
class DistilBertTokenizer(BertTokenizer): ...
DistilBertTokenizerFast = DistilBertTokenizer
class DistilBertModel(BertModel): ...
class DistilBertForMaskedLM(BertForMaskedLM): distilbert: DistilBertModel
class DistilBertForSequenceClassification(BertForSequenceClassification): distilbert: DistilBertModel
class DistilBertForTokenClassification(BertForTokenClassification): distilbert: DistilBertModel
class DistilBertForQuestionAnswering(BertForQuestionAnswering): distilbert: DistilBertModel
class DistilBertForMultipleChoice(BertForMultipleChoice): distilbert: DistilBertModel
class MPNetConfig(_Config): ...
class MPNetTokenizer(BertTokenizer): ...
MPNetTokenizerFast = MPNetTokenizer
class MPNetModel(BertModel): ...
class MPNetForMaskedLM(BertForMaskedLM): mpnet: MPNetModel
class MPNetForSequenceClassification(BertForSequenceClassification): mpnet: MPNetModel
class MPNetForTokenClassification(BertForTokenClassification): mpnet: MPNetModel
class MPNetForQuestionAnswering(BertForQuestionAnswering): mpnet: MPNetModel
class MPNetForMultipleChoice(BertForMultipleChoice): mpnet: MPNetModel
class ElectraConfig(_Config): ...
class ElectraTokenizer(BertTokenizer): ...
ElectraTokenizerFast = ElectraTokenizer
class ElectraModel(BertModel): ...
class ElectraForMaskedLM(BertForMaskedLM): electra: ElectraModel
class ElectraForSequenceClassification(BertForSequenceClassification): electra: ElectraModel
class ElectraForTokenClassification(BertForTokenClassification): electra: ElectraModel
class ElectraForQuestionAnswering(BertForQuestionAnswering): electra: ElectraModel
class ElectraForMultipleChoice(BertForMultipleChoice): electra: ElectraModel
class AlbertConfig(_Config): ...
class AlbertTokenizer(BertTokenizer): ...
AlbertTokenizerFast = AlbertTokenizer
class AlbertModel(BertModel): ...
class AlbertForMaskedLM(BertForMaskedLM): albert: AlbertModel
class AlbertForSequenceClassification(BertForSequenceClassification): albert: AlbertModel
class AlbertForTokenClassification(BertForTokenClassification): albert: AlbertModel
class AlbertForQuestionAnswering(BertForQuestionAnswering): albert: AlbertModel
class AlbertForMultipleChoice(BertForMultipleChoice): albert: AlbertModel
class NomicBertConfig(_Config): ...
class NomicBertTokenizer(BertTokenizer): ...
NomicBertTokenizerFast = NomicBertTokenizer
class NomicBertModel(BertModel): ...
class NomicBertForMaskedLM(BertForMaskedLM): nomic_bert: NomicBertModel
class NomicBertForSequenceClassification(BertForSequenceClassification): nomic_bert: NomicBertModel
class NomicBertForTokenClassification(BertForTokenClassification): nomic_bert: NomicBertModel
class NomicBertForQuestionAnswering(BertForQuestionAnswering): nomic_bert: NomicBertModel
class NomicBertForMultipleChoice(BertForMultipleChoice): nomic_bert: NomicBertModel
class GteConfig(_Config): ...
class GteTokenizer(BertTokenizer): ...
GteTokenizerFast = GteTokenizer
class GteModel(BertModel): ...
class GteForMaskedLM(BertForMaskedLM): gte: GteModel
class GteForSequenceClassification(BertForSequenceClassification): gte: GteModel
class GteForTokenClassification(BertForTokenClassification): gte: GteModel
class GteForQuestionAnswering(BertForQuestionAnswering): gte: GteModel
class GteForMultipleChoice(BertForMultipleChoice): gte: GteModel
class JinaEmbeddingsV3Config(_Config): ...
class JinaEmbeddingsV3Tokenizer(BertTokenizer): ...
JinaEmbeddingsV3TokenizerFast = JinaEmbeddingsV3Tokenizer
class JinaEmbeddingsV3Model(BertModel): ...
class JinaEmbeddingsV3ForMaskedLM(BertForMaskedLM): roberta: JinaEmbeddingsV3Model
class JinaEmbeddingsV3ForSequenceClassification(BertForSequenceClassification): roberta: JinaEmbeddingsV3Model
class JinaEmbeddingsV3ForTokenClassification(BertForTokenClassification): roberta: JinaEmbeddingsV3Model
class JinaEmbeddingsV3ForQuestionAnswering(BertForQuestionAnswering): roberta: JinaEmbeddingsV3Model
class JinaEmbeddingsV3ForMultipleChoice(BertForMultipleChoice): roberta: JinaEmbeddingsV3Model
class ModernBertConfig(_Config): ...
class ModernBertTokenizer(BertTokenizer): ...
ModernBertTokenizerFast = ModernBertTokenizer
class ModernBertModel(BertModel): ...
class ModernBertForMaskedLM(BertForMaskedLM): model: ModernBertModel
class ModernBertForSequenceClassification(BertForSequenceClassification): model: ModernBertModel
class ModernBertForTokenClassification(BertForTokenClassification): model: ModernBertModel
class ModernBertForQuestionAnswering(BertForQuestionAnswering): model: ModernBertModel
class ModernBertForMultipleChoice(BertForMultipleChoice): model: ModernBertModel
class EuroBertConfig(_Config): ...
class EuroBertTokenizer(BertTokenizer): ...
EuroBertTokenizerFast = EuroBertTokenizer
class EuroBertModel(BertModel): ...
class EuroBertForMaskedLM(BertForMaskedLM): model: EuroBertModel
class EuroBertForSequenceClassification(BertForSequenceClassification): model: EuroBertModel
class EuroBertForTokenClassification(BertForTokenClassification): model: EuroBertModel
class EuroBertForQuestionAnswering(BertForQuestionAnswering): model: EuroBertModel
class EuroBertForMultipleChoice(BertForMultipleChoice): model: EuroBertModel
class UltrabertConfig(_Config): ...
class UltrabertTokenizer(BertTokenizer): ...
UltrabertTokenizerFast = UltrabertTokenizer
class UltrabertModel(BertModel): ...
class UltrabertForMaskedLM(BertForMaskedLM): model: UltrabertModel
class UltrabertForSequenceClassification(BertForSequenceClassification): model: UltrabertModel
class UltrabertForTokenClassification(BertForTokenClassification): model: UltrabertModel
class UltrabertForQuestionAnswering(BertForQuestionAnswering): model: UltrabertModel
class UltrabertForMultipleChoice(BertForMultipleChoice): model: UltrabertModel
class EsmConfig(_Config): ...
class EsmTokenizer(BertTokenizer): ...
EsmTokenizerFast = EsmTokenizer
class EsmModel(BertModel): ...
class EsmForMaskedLM(BertForMaskedLM): esm: EsmModel
class EsmForSequenceClassification(BertForSequenceClassification): esm: EsmModel
class EsmForTokenClassification(BertForTokenClassification): esm: EsmModel
class EsmForQuestionAnswering(BertForQuestionAnswering): esm: EsmModel
class EsmForMultipleChoice(BertForMultipleChoice): esm: EsmModel
class MegatronBertConfig(_Config): ...
class MegatronBertTokenizer(BertTokenizer): ...
MegatronBertTokenizerFast = MegatronBertTokenizer
class MegatronBertModel(BertModel): ...
class MegatronBertForMaskedLM(BertForMaskedLM): bert: MegatronBertModel
class MegatronBertForSequenceClassification(BertForSequenceClassification): bert: MegatronBertModel
class MegatronBertForTokenClassification(BertForTokenClassification): bert: MegatronBertModel
class MegatronBertForQuestionAnswering(BertForQuestionAnswering): bert: MegatronBertModel
class MegatronBertForMultipleChoice(BertForMultipleChoice): bert: MegatronBertModel
class XLMRobertaXLConfig(_Config): ...
class XLMRobertaXLTokenizer(BertTokenizer): ...
XLMRobertaXLTokenizerFast = XLMRobertaXLTokenizer
class XLMRobertaXLModel(BertModel): ...
class XLMRobertaXLForMaskedLM(BertForMaskedLM): roberta: XLMRobertaXLModel
class XLMRobertaXLForSequenceClassification(BertForSequenceClassification): roberta: XLMRobertaXLModel
class XLMRobertaXLForTokenClassification(BertForTokenClassification): roberta: XLMRobertaXLModel
class XLMRobertaXLForQuestionAnswering(BertForQuestionAnswering): roberta: XLMRobertaXLModel
class XLMRobertaXLForMultipleChoice(BertForMultipleChoice): roberta: XLMRobertaXLModel
