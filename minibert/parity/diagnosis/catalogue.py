"""The mistakes that ports of BERT have, each with its remedy.

The kinds: G activation, N LayerNorm, A attention, E inputs and embeddings, T ids, W weights, C residual and order,
D dropout and precision, P the vector of a text, H names of the hidden states.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from minibert._utils.validation import FloatArray, IntArray
from minibert.bert.config import BertConfig
from minibert.bert.ops import LayerNorm, PreparedLinear
from minibert.bert.reference import ACTIVATION_FUNCTIONS
from minibert.bert.weights import LayerWeights
from minibert.parity.diagnosis.forward import Here, Part, state_name
from minibert.parity.diagnosis.mistakes import DENSE, NORMS, VECTOR, Mistake, symbol_of
from minibert.parity.subject import InapplicableError, Padded
from minibert.parity.truth import to_bfloat16, to_float16, to_tf32
from minibert.trace.names import EMBEDDINGS, LAYER, POOLER

# Id and text of each mistake, then, after "=", the remedy of those above it.
_TEXTS = """\
G1.tanh hidden_act: in the feed forward gelu_tanh is applied; config.json has another hidden_act
G2.ggml hidden_act: in the feed forward gelu in a table of float16 is applied; config.json has another hidden_act
G3.quick hidden_act: in the feed forward quick_gelu is applied; config.json has another hidden_act
G3.relu hidden_act: in the feed forward relu is applied; config.json has another hidden_act
G3.silu hidden_act: in the feed forward silu is applied; config.json has another hidden_act
G3.none hidden_act: in the feed forward no activation is applied; config.json has another hidden_act
G3.leaky hidden_act: in the feed forward leaky_relu is applied; config.json has another hidden_act
G3.erf-3 hidden_act: in the feed forward gelu with a short erf is applied; config.json has another hidden_act
G3.erf-5 hidden_act: in the feed forward gelu with the erf of Abramowitz and Stegun 7.1.26 is applied; config.json has
  another hidden_act
G3.tanh hidden_act: in the feed forward tanh is applied; config.json has another hidden_act
= hidden_act "gelu" is x / 2 * (1 + erf(x / sqrt(2))): torch gelu(approximate="none"); candle .gelu_erf(); ggml:
  ggml_gelu_erf; burn Gelu; Keras gelu(approximate=False); JAX gelu(approximate=False).
G1.erf hidden_act: in the feed forward gelu is applied; config.json has another hidden_act
= hidden_act "gelu_new" and "gelu_pytorch_tanh" are the tanh formula: torch gelu(approximate="tanh"); candle .gelu();
  ggml: ggml_gelu; JAX gelu(approximate=True).
G3.pooler pooler: tanh is missing; the pooler's output is tanh(dense(first token))
= Apply tanh after pooler.dense: torch.tanh; candle .tanh(); ggml_tanh.
N1.1e-5 layer_norm_eps: LayerNorm adds 1e-5 to the variance; config.json has another layer_norm_eps
N1.1e-6 layer_norm_eps: LayerNorm adds 1e-6 to the variance; config.json has another layer_norm_eps
N1.0.001 layer_norm_eps: LayerNorm adds 0.001 to the variance; config.json has another layer_norm_eps
N1.1e-7 layer_norm_eps: LayerNorm adds 1e-7 to the variance; config.json has another layer_norm_eps
N1.1e-12 layer_norm_eps: LayerNorm adds 1e-12 to the variance; config.json has another layer_norm_eps
N1.zero layer_norm_eps: LayerNorm adds nothing to the variance
N2.1e-6 layer_norm: 1e-6 is added to sqrt(variance); layer_norm_eps is added to the variance, in the root
N2.1e-5 layer_norm: 1e-5 is added to sqrt(variance); layer_norm_eps is added to the variance, in the root
= Take layer_norm_eps of config.json: torch nn.LayerNorm(hidden_size, eps=1e-12); Keras
  LayerNormalization(epsilon=1e-12); candle layer_norm(size, 1e-12, vb); burn
  LayerNormConfig::new(d).with_epsilon(1e-12). The defaults of the frameworks are 1e-5, 1e-3 or 1e-6.
N3.unbiased layer_norm: the variance is divided by hidden_size - 1; it must be divided by hidden_size
= Divide by hidden_size: torch x.var(-1, unbiased=False); numpy x.var(-1, ddof=0).
N2.outside layer_norm_eps: it is added to sqrt(variance); it belongs inside the root, to the variance
= LayerNorm is (x - mean) / sqrt(variance + eps) * weight + bias, the variance divided by hidden_size. torch
  nn.LayerNorm and candle layer_norm do so.
N3.annotated layer_norm: the standard deviation is the unbiased one, and 1e-6 is added to it
= LayerNorm is (x - mean) / sqrt(variance + eps) * weight + bias, the variance divided by hidden_size. The Annotated
  Transformer has another formula; use torch nn.LayerNorm.
N4.last layer_norm: the last LayerNorm of the encoder is skipped
= BERT has a LayerNorm after each attention and after each feed forward, also in the last layer.
N4.no-attention layer_norm: the LayerNorm after attention is missing
= Apply attention.output.LayerNorm to dense + residual.
N4.no-output layer_norm: the LayerNorm after the feed forward is missing
= Apply output.LayerNorm to dense + residual.
N4.swapped layer_norm: weight and bias are exchanged
N4.plain layer_norm: neither weight nor bias is applied
N4.no-weight layer_norm: the weight is not applied
N4.no-bias layer_norm: the bias is not applied
= LayerNorm is (x - mean) / sqrt(variance + eps) * weight + bias, the variance divided by hidden_size. Old checkpoints
  name the weight gamma and the bias beta. torch: LayerNorm.weight, LayerNorm.bias.
N4.rms layer_norm: the mean is not subtracted (RMSNorm)
= LayerNorm is (x - mean) / sqrt(variance + eps) * weight + bias, the variance divided by hidden_size. Use LayerNorm;
  ggml: ggml_norm, not ggml_rms_norm.
N5.float16 layer_norm: the variance overflows in float16, so that the output is the bias
= Compute LayerNorm in float32: torch x.float(); onnxruntime: keep LayerNormalization in float32.
W3.norms weights: the two LayerNorms of each layer are exchanged
= attention.output.LayerNorm follows attention, output.LayerNorm follows the feed forward.
A1.none attention: the scores are not divided by sqrt(D), D = hidden_size / num_attention_heads
A2.hidden attention: the scores are divided by sqrt(hidden_size); right is sqrt(hidden_size / num_attention_heads)
A2.heads attention: the scores are divided by sqrt(num_attention_heads); right is the root of the size of a head
A2.twice attention: the scores are divided by sqrt(D) twice, so by D = hidden_size / num_attention_heads
= Divide query key^T by sqrt(D), D = hidden_size / num_attention_heads, once: torch scaled_dot_product_attention does
  it by itself; ggml_soft_max_ext takes 1 / sqrt(D) as its scale.
A3.split attention heads: (S, H) is viewed as (A, S, D) without a transposition, so that heads mix tokens
A3.merge attention heads: the context is viewed as (S, H) without the transposition back from (A, S, D)
A3.both attention heads: (S, H) is viewed as (A, S, D) and back without a transposition, so that heads mix tokens
A3.interleaved attention heads: head a has the columns a, a + A, a + 2A, ...; right are the columns a D to (a + 1) D
= Head a owns the columns a D to (a + 1) D: view (B, S, H) as (B, S, A, D), then transpose to (B, A, S, D); undo both
  after attention. torch: x.view(B, S, A, D).transpose(1, 2); ndarray: into_shape, then permuted_axes.
A4.query-key attention.self: the weights of query and key are exchanged
A4.query-value attention.self: the weights of query and value are exchanged
A4.key-value attention.self: the weights of key and value are exchanged
A4.by-head attention.self: the fused query, key and value are sliced as (A, 3, D); the layout is (3, A, D)
= A fused weight is [query; key; value], hidden_size rows of each. Compare each third with attention.self.query, .key
  and .value of the checkpoint.
A5.none attention_mask: padding is attended, as if no token were masked
A6.minus-ten attention_mask: hidden keys get -10 added to their scores, which is too little to hide them
A6.added attention_mask: the mask of ones and zeros is added to the scores, so that hidden keys stay visible
A6.multiplied attention_mask: the scores are multiplied by the mask, so that hidden keys have the score 0
A6.after attention_mask: the mask is applied after softmax, so that the probs of a token do not sum to 1
A6.inverted attention_mask: 0 and 1 are exchanged, so that only the padding is attended
A6.ten-thousand attention_mask: hidden keys get -10000 added to their scores
= Give the scores of hidden keys minus infinity before softmax: torch scores.masked_fill(mask == 0, float('-inf')),
  attention_mask= of the model, (1 - mask) * -1e9 or less, on the axis of the keys; candle: pass attention_mask.
A6.length attention_mask: it is read as a length, the number of its ones; holes and padding on the left are wrong
= Give attention the mask itself, not its sum. onnxruntime's fused attention (optimize_model) takes a length: do not
  fuse attention, or give padding on the right only.
A7.causal attention: a causal mask is left on, so that a token does not see the tokens after it
= BERT attends in both directions: is_causal=False; llama.cpp: causal_attn = false (pooling or embedding mode).
A8.rope attention: rotary position embeddings (RoPE, halves) turn query and key
A8.rope-pairs attention: rotary position embeddings (RoPE, neighbouring pairs) turn query and key
= BERT adds position_embeddings to the words, once. Leave rotary embeddings out.
A9.queries softmax: it is over the queries, not the keys
A9.heads softmax: it is over the heads, not the keys
= softmax is over the keys, the last axis of (B, A, S, S): torch softmax(scores, dim=-1).
A9.float16 softmax: it is computed in float16
= Compute softmax in float32: torch softmax(scores, dim=-1, dtype=torch.float32).
A9.no-shift softmax: the maximum is not subtracted before exp
= Subtract each row's maximum, because exp of a large score overflows.
E1.first token_type_ids: they are ignored; all tokens have the type 0
E1.second token_type_ids: all tokens have the type 1
= Give token_type_ids of the tokenizer to the model: 0 for the first text with its [SEP], 1 for the second one.
  llama.cpp takes row 0 for all tokens.
E3.plus-1 position_ids: they are 1 too large; they begin with 1
E3.plus-2 position_ids: they are 2 too large, as RoBERTa has them (pad_token_id + 1 with pad 1)
E3.zero position_ids: they are all 0
E3.visible position_ids: they count the visible tokens only, cumsum(attention_mask) - 1
E3.visible-1 position_ids: they count the visible tokens only, from 1 on: cumsum(attention_mask)
E3.segments position_ids: they begin with 0 again in the second segment
E3.backwards position_ids: they run backwards
= Positions are 0, 1, 2, ... by column in every row, also with padding on the left: torch.arange(S). RoBERTa, not BERT,
  begins with pad_token_id + 1.
E5.swapped attention_mask and token_type_ids are exchanged: the types are the mask, and the mask is the types
= Pass inputs by name. The order differs: onnx exports often have input_ids, attention_mask, token_type_ids;
  transformers' tokenizers return input_ids, token_type_ids, attention_mask.
E2.missing embeddings: token_type_embeddings are not added, not even row 0
E4.positions embeddings: position_embeddings are not added
E4.scaled embeddings: word_embeddings are multiplied by sqrt(hidden_size)
E4.sinusoids embeddings: positions are sines and cosines; BERT has learned position_embeddings
E4.order embeddings: the three look-ups are added in another order
= The input of embeddings.LayerNorm is word + token_type + position embeddings, three look-ups, unscaled.
E4.norm embeddings: embeddings.LayerNorm is missing
= Apply embeddings.LayerNorm to the sum of the three embeddings.
T1.unknown input_ids: words became [UNK], as without lower-casing or with another vocabulary
T1.shifted input_ids: all ids are 1 too large, as with a vocabulary that is one line longer
= Compare the ids first. Use the model's own tokenizer.json or vocab.txt and its do_lower_case; [CLS] and [SEP] are
  tokens too.
P4.cut-64 truncation: texts are cut after 64 tokens; the inputs are longer
P4.cut-128 truncation: texts are cut after 128 tokens; the inputs are longer
P4.cut-256 truncation: texts are cut after 256 tokens; the inputs are longer
= Cut where the model does: max_seq_length of sentence_bert_config.json, else model_max_length of
  tokenizer_config.json. The truncation that is stored in tokenizer.json is often 128.
W1.attention.self.query weights: attention.self.query.weight is transposed
W1.attention.self.key weights: attention.self.key.weight is transposed
W1.attention.self.value weights: attention.self.value.weight is transposed
W1.attention.output.dense weights: attention.output.dense.weight is transposed
W1.pooler.dense weights: pooler.dense.weight is transposed
= A weight of the checkpoint is (outputs, inputs): y = x W^T + b. torch nn.Linear, candle Linear and ggml_mul_mat take
  it as it is; Keras Dense and tf kernels take its transpose.
W2.attention.self.query weights: attention.self.query.bias is missing
W2.attention.self.key weights: attention.self.key.bias is missing
W2.attention.self.value weights: attention.self.value.bias is missing
W2.attention.output.dense weights: attention.output.dense.bias is missing
W2.intermediate.dense weights: intermediate.dense.bias is missing
W2.output.dense weights: output.dense.bias is missing
W2.pooler.dense weights: pooler.dense.bias is missing
W2.all weights: no linear map has its bias
= Load the tensor whose name ends in .bias and add it: candle linear(...), not linear_no_bias(...).
W3.shifted weights: each layer has the weights of the layer after it
W3.reversed weights: the layers are in reversed order
W3.first weights: all layers have the weights of layer 0
= Layer i has the tensors encoder.layer.i.*; compare one row of a weight in each layer.
C1.no-attention residual: attention does not add its input
C1.no-output residual: the feed forward does not add its input
C1.none residual: no block adds its input
C1.twice residual: the input of each block is added twice
C1.before-norm residual: the sum before the LayerNorm is added; right is the output of the LayerNorm
C1.layer-input residual: the feed forward adds the input of the layer; right is its own input, the output of attention
C1.pre-norm layer_norm: each LayerNorm is in front of its block (pre-norm)
C1.norm-inside layer_norm: it is applied before the residual is added, x + LayerNorm(block(x))
= BERT is post-norm: x = LayerNorm(x + attention(x)), then x = LayerNorm(x + feed_forward(x)). x is the output of the
  LayerNorm before.
D1.dropout dropout: it is on, as in training; some numbers are zero and the others are larger
= Call model.eval() in torch; pass training=False in Keras, deterministic=True in Flax; onnx: export in eval mode.
D2.float16-weights weights: the matrices are rounded to float16
D2.bfloat16-weights weights: the matrices are rounded to bfloat16
D2.q8_0-weights weights: the matrices are rounded to 8 bits in blocks of 32 (q8_0 of ggml)
D2.float16-words weights: the word embeddings are rounded to float16
= Convert the checkpoint without rounding: convert_hf_to_gguf.py with outtype f32; dtype=torch.float32.
D2.int8-weights weights: the weights of the linear maps are rounded to 8 bits, with one scale each
= Use the model without quantisation.
D2.int8 linear maps: they multiply in 8 bits with a scale of each call (dynamic quantisation)
= Use the model without quantisation: model.onnx, not model_quantized.onnx; transformers.js dtype: 'fp32'.
D2.float16 precision: every value is rounded to float16
D2.bfloat16 precision: every value is rounded to bfloat16
= Run the model in float32: torch model.float(); onnxruntime: a float32 export; candle DType::F32.
D2.tf32 linear maps: they multiply in TF32, with 11 bits
= torch.backends.cuda.matmul.allow_tf32 = False; NVIDIA_TF32_OVERRIDE=0; JAX jax_default_matmul_precision='highest'.
D3.float16 linear maps: their sums are added up in float16
= Add up in float32: torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False; cuBLAS
  CUBLAS_COMPUTE_32F; TensorRT: keep the layers in float32.
P1.padding pooling: the mean is over the padding too
= Take the pooling of 1_Pooling/config.json: average the visible tokens, (x * mask).sum(1) / mask.sum(1).
P2.cls pooling: the vector is that of the first token, [CLS]
= Take the pooling of 1_Pooling/config.json: this model may average all tokens (pooling_mode_mean_tokens).
P2.mean pooling: the vector is the mean of the tokens
= Take the pooling of 1_Pooling/config.json: this model may take the first token (pooling_mode_cls_token).
P2.max pooling: the vector is the maximum over the tokens
P2.last pooling: the vector is that of the last visible token
P2.pooler pooling: the vector is pooler_output
P2.weighted pooling: the mean is weighted by position
P2.sum pooling: the vector is the sum of the tokens, not divided by their number
P2.special pooling: the mean leaves out [CLS] and [SEP]
P2.first-last pooling: it is the mean of the first and the last state
P2.second-last pooling: the hidden state is that before the last layer
= Take the pooling of 1_Pooling/config.json: which tokens count, and of which hidden state.
P3.raw normalisation: the vector does not have length 1; the model has a Normalize module
= Divide by the length: torch.nn.functional.normalize(x, dim=-1).
P3.unit normalisation: the vector has length 1; the model does not have a Normalize module
= Leave the vector as it is; modules.json has no Normalize.
P3.twice normalisation: the vector is divided by its length twice
= Divide by the length once, not by its square.
H1.late names: each hidden state has the name of the next one (off by one)
H1.early names: each hidden state has the name of the one before it (off by one)
H1.look-up names: hidden state 0 is the look-up of word_embeddings, not the output of embeddings.LayerNorm
H1.before-norm names: the hidden states are the inputs of the LayerNorms, not their outputs
= hidden_states[0] is the output of embeddings.LayerNorm, hidden_states[i + 1] that of
  encoder.layer.i.output.LayerNorm.
"""

_EVERY = tuple(entry.symbol for entry in (*EMBEDDINGS, *LAYER, *POOLER))
_LOOKUPS = _EVERY[:3]
_IN_LAYER = tuple(entry.symbol for entry in LAYER if entry.weights)


def _op(symbols: tuple[str, ...] | str, **parts: Callable[..., Any]) -> Mistake:
    """Return a mistake in parts of the ops that compute these values."""
    return Mistake("", "", "", (symbols,) if isinstance(symbols, str) else symbols, parts)


# --- LayerNorm and activation -----------------------------------------------------------------------------------------


def _norm(
    eps: float | None = None,
    *,
    outside: bool = False,
    unbiased: bool = False,
    rms: bool = False,
    weight: bool = True,
    bias: bool = True,
    swapped: bool = False,
) -> Mistake:
    """Return a LayerNorm with another formula."""

    def part(inner: Part, here: Here, x: FloatArray, norm: LayerNorm) -> FloatArray:
        centered = x if rms else x - x.mean(axis=-1, keepdims=True)
        count = x.shape[-1] - 1 if unbiased else x.shape[-1]
        variance = (centered * centered).sum(axis=-1, keepdims=True) / x.dtype.type(count)
        small = x.dtype.type(norm.eps if eps is None else eps)
        scale, shift = (norm.bias, norm.weight) if swapped else (norm.weight, norm.bias)
        y = centered / (np.sqrt(variance) + small if outside else np.sqrt(variance + small))
        y = y * scale if weight else y
        return y + shift if bias else y

    return _op(NORMS, norm=part)


def _norm_in_float16(inner: Part, here: Here, x: FloatArray, norm: LayerNorm) -> FloatArray:
    """Compute the variance in float16; x is scaled, as large activations would be, so that it is infinite."""
    centered = x - x.mean(axis=-1, keepdims=True)
    squares = (centered * x.dtype.type(1024)).astype(np.float16) ** 2
    variance = squares.sum(axis=-1, keepdims=True, dtype=np.float16).astype(x.dtype)
    return centered * x.dtype.type(1024) / np.sqrt(variance + x.dtype.type(norm.eps)) * norm.weight + norm.bias


def _last_norm_skipped(inner: Part, here: Here, x: FloatArray, norm: LayerNorm) -> FloatArray:
    return x if here.layer == here.forward.config.num_hidden_layers - 1 else inner(here, x, norm)


def _no_norm(inner: Part, here: Here, x: FloatArray, norm: LayerNorm) -> FloatArray:
    return x


def _layer_of(here: Here) -> LayerWeights:
    assert here.layer is not None
    return here.forward.weights.layers[here.layer]


def _other_norm(inner: Part, here: Here, x: FloatArray, norm: LayerNorm) -> FloatArray:
    layer = _layer_of(here)
    return inner(here, x, layer.output_norm if here.name.endswith(".attention") else layer.attention_norm)


def _ggml(x: FloatArray) -> FloatArray:
    """Look up the tanh form in a table of float16, as ggml does; beyond 10 there is no table."""
    rounded = x.astype(np.float16).astype(np.float32)
    table = ACTIVATION_FUNCTIONS["gelu_tanh"](rounded).astype(np.float16)
    return np.where(x <= -10, 0, np.where(x >= 10, x, table)).astype(x.dtype)


def _gelu_with(erf: Callable[[FloatArray], FloatArray]) -> Callable[[FloatArray], FloatArray]:
    return lambda x: x * x.dtype.type(0.5) * (1 + erf(x * x.dtype.type(math.sqrt(0.5))))


def _erf_3(x: FloatArray) -> FloatArray:
    """Abramowitz and Stegun 7.1.25, error at most 2.5e-5."""
    t = 1 / (1 + x.dtype.type(0.47047) * np.abs(x))
    return np.sign(x) * (1 - t * (0.3480242 + t * (-0.0958798 + t * 0.7478556)) * np.exp(-x * x))


def _erf_5(x: FloatArray) -> FloatArray:
    """Abramowitz and Stegun 7.1.26, error at most 1.5e-7."""
    t = 1 / (1 + x.dtype.type(0.3275911) * np.abs(x))
    series = 1.421413741 + t * (-1.453152027 + t * 1.061405429)
    return np.sign(x) * (1 - t * (0.254829592 + t * (-0.284496736 + t * series)) * np.exp(-x * x))


CURVES: dict[str, Callable[[FloatArray], FloatArray]] = {
    "gelu_tanh": ACTIVATION_FUNCTIONS["gelu_tanh"],
    "gelu": ACTIVATION_FUNCTIONS["gelu"],
    "gelu in a table of float16": _ggml,
    "quick_gelu": lambda x: x * (x.dtype.type(0.5) * (1 + np.tanh(x.dtype.type(0.5) * (x.dtype.type(1.702) * x)))),
    "relu": ACTIVATION_FUNCTIONS["relu"],
    "silu": ACTIVATION_FUNCTIONS["silu"],
    "none": lambda x: x,
    "leaky_relu": lambda x: np.where(x > 0, x, x.dtype.type(0.01) * x),
    "gelu with a short erf": _gelu_with(_erf_3),
    "gelu with the erf of Abramowitz and Stegun 7.1.26": _gelu_with(_erf_5),
    "tanh": np.tanh,
}
"""The curves that ports apply, by name."""


def _curve(name: str, symbol: str = "intermediate") -> Mistake:
    return _op(symbol, activation=lambda inner, here, x, _: CURVES[name](x).astype(x.dtype, copy=False))


# --- attention --------------------------------------------------------------------------------------------------------


def _scaled(factor: Callable[[int, BertConfig], float]) -> Mistake:
    """Return scores that are multiplied by `factor` (of D and the config) beside the right scale."""

    def part(inner: Part, here: Here, query: FloatArray, key: FloatArray) -> FloatArray:
        scores = inner(here, query, key)
        return scores * scores.dtype.type(factor(query.shape[-1], here.forward.config))

    return _op("scores", scores=part)


def _split_wrongly(inner: Part, here: Here, x: FloatArray, num_heads: int) -> FloatArray:
    """View (S, H) as (A, S, D), without the transposition."""
    return np.ascontiguousarray(x).reshape(len(x), num_heads, x.shape[1], -1)


def _merge_wrongly(inner: Part, here: Here, context: FloatArray) -> FloatArray:
    return np.ascontiguousarray(context).reshape(len(context), context.shape[2], -1)


def _split_interleaved(inner: Part, here: Here, x: FloatArray, num_heads: int) -> FloatArray:
    """Give head a the columns a, a + A, a + 2 A, ..."""
    return x.reshape(*x.shape[:2], -1, num_heads).transpose(0, 3, 1, 2)


def _merge_interleaved(inner: Part, here: Here, context: FloatArray) -> FloatArray:
    return context.transpose(0, 2, 3, 1).reshape(len(context), context.shape[2], -1)


def _instead(*order: int) -> Mistake:
    """Return query, key and value that are computed with the weights of others."""
    return _op(_IN_LAYER[:3], dense=lambda inner, here, x, linear, index: inner(here, x, linear, order[index]))


def _sliced_by_head(inner: Part, here: Here, x: FloatArray, linear: PreparedLinear, index: int) -> FloatArray:
    """Read the fused result as (A, 3, D); it is (3, A, D)."""
    fused = np.concatenate([inner(here, x, linear, i) for i in range(3)], axis=-1)
    heads = here.forward.config.num_attention_heads
    return fused.reshape(len(fused), heads, 3, -1)[:, :, index].reshape(len(fused), -1)


def _mask(change: Callable[[FloatArray, npt.NDArray[np.bool_]], FloatArray]) -> Mistake:
    """Return masked scores of the scores and of `shown`, which is (B, 1, 1, S) and False for hidden keys."""
    return _op("probs", mask=lambda inner, here, scores, shown: change(scores, shown[:, None, None, :]))


def _mask_as(change: Callable[[npt.NDArray[np.bool_]], npt.NDArray[np.bool_]]) -> Mistake:
    """Return the right masking with another mask, of `shown` (B, S)."""
    return _op("probs", mask=lambda inner, here, scores, shown: inner(here, scores, change(shown)))


def _leaking(constant: float) -> Mistake:
    return _mask(lambda scores, shown: scores + ~shown * scores.dtype.type(constant))


def _zeroed(inner: Part, here: Here, masked: FloatArray) -> FloatArray:
    """Set the probs of hidden keys to zero after a softmax over all keys; the rest does not sum to 1."""
    probs, shown = inner(here, masked), here.forward.shown
    return probs * shown[:, None, None, :] if len(probs) == len(shown) else probs


def _causal(inner: Part, here: Here, scores: FloatArray, shown: npt.NDArray[np.bool_]) -> FloatArray:
    later = np.triu(np.ones(scores.shape[-2:], np.bool_), 1)
    # Finite, because a query that sees no key at all must not become NaN.
    return np.where(later, scores.dtype.type(-1e30), np.maximum(inner(here, scores, shown), scores.dtype.type(-1e30)))


def _rotated(x: FloatArray, interleaved: bool) -> FloatArray:
    """Turn pairs of features by angles that grow with the position (RoPE, base 10,000)."""
    length, size = x.shape[-2:]
    half = size // 2
    angles = np.arange(length)[:, None] * 10000.0 ** (-np.arange(half) / max(half, 1))
    cos, sin = np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)
    pairs = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(half), slice(half, 2 * half))
    first, second = (x[..., part] for part in pairs)
    y = x.copy()
    y[..., pairs[0]] = first * cos - second * sin
    y[..., pairs[1]] = second * cos + first * sin
    return y


def _rope(interleaved: bool) -> Mistake:
    def part(inner: Part, here: Here, query: FloatArray, key: FloatArray) -> FloatArray:
        return inner(here, _rotated(query, interleaved), _rotated(key, interleaved))

    return _op("scores", scores=part)


def _softmax_over(axis: int) -> Mistake:
    def part(inner: Part, here: Here, masked: FloatArray) -> FloatArray:
        finite = np.where(np.isfinite(masked), masked, masked.dtype.type(-1e30))
        exponentials = np.exp(finite - finite.max(axis=axis, keepdims=True))
        return exponentials / exponentials.sum(axis=axis, keepdims=True)

    return _op("probs", softmax=part)


def _softmax_in_float16(inner: Part, here: Here, masked: FloatArray) -> FloatArray:
    small = masked.astype(np.float16)
    exponentials = np.exp(small - small.max(axis=-1, keepdims=True))
    total = exponentials.sum(axis=-1, keepdims=True, dtype=np.float32).astype(np.float16)
    return (exponentials / total).astype(masked.dtype)


def _softmax_without_shift(inner: Part, here: Here, masked: FloatArray) -> FloatArray:
    exponentials = np.exp(masked)
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


# --- inputs and embeddings --------------------------------------------------------------------------------------------


def _types(types_of: Callable[[Padded], IntArray], **more: Callable[[Padded], Any]) -> Mistake:
    """Return a mistake with token types, and with other fields of the inputs."""

    def change(inputs: Padded, config: BertConfig) -> Padded:
        types = types_of(inputs).astype(np.int64)
        if types.max(initial=0) >= config.type_vocab_size:
            raise InapplicableError(f"the model has {config.type_vocab_size} token types (type_vocab_size)")
        return dataclasses.replace(inputs, types=types, **{name: field(inputs) for name, field in more.items()})

    return Mistake("", "", "", ("types", "probs") if more else ("types",), inputs=change)


def _positions(positions_of: Callable[[Padded], IntArray]) -> Mistake:
    def change(inputs: Padded, config: BertConfig) -> Padded:
        positions = positions_of(inputs).astype(np.int64)
        if not 0 <= positions.min(initial=0) <= positions.max(initial=0) < config.max_position_embeddings:
            raise InapplicableError(f"the model has {config.max_position_embeddings} positions")
        return dataclasses.replace(inputs, positions=positions)

    return Mistake("", "", "", ("positions",), inputs=change)


def _restart(inputs: Padded) -> IntArray:
    """Count the positions of the second segment from 0 again."""
    columns = np.arange(inputs.ids.shape[1])
    second = (inputs.types > 0) & inputs.mask
    begin = np.where(second.any(axis=1), second.argmax(axis=1), 0)[:, None]
    return np.where(columns >= begin, columns - begin, columns)


def _total(change: Callable[..., FloatArray]) -> Mistake:
    """Return another sum of the look-ups of words, types and positions."""
    return _op("embeddings_sum", total=lambda inner, here, *look_ups: change(*look_ups))


def _sinusoids(inner: Part, here: Here, table: FloatArray, ids: IntArray) -> FloatArray:
    """Return the positions of Vaswani et al. 2017, section 3.5, instead of the learned ones."""
    width, dtype = table.shape[-1], here.forward.dtype
    angles = ids[:, None] / 10000.0 ** (2 * (np.arange(width) // 2) / width)
    return np.where(np.arange(width) % 2, np.cos(angles), np.sin(angles)).astype(dtype)


def _ids(ids_of: Callable[[Padded, int], IntArray]) -> Mistake:
    """Return a mistake with ids, of the inputs and the size of the vocabulary."""

    def change(inputs: Padded, config: BertConfig) -> Padded:
        if inputs.embeds is not None:
            raise InapplicableError("the inputs are inputs_embeds, without ids")
        return dataclasses.replace(inputs, ids=ids_of(inputs, config.vocab_size))

    return Mistake("", "", "", ("words",), inputs=change)


def _unknown(inputs: Padded, vocab_size: int) -> IntArray:
    """Replace every third token inside a row by [UNK]."""
    count = inputs.mask.cumsum(axis=1)
    inside = inputs.mask & (count > 1) & (count < count.max(axis=1, keepdims=True))
    return np.where(inside & (count % 3 == 0), 100 if vocab_size > 1000 else 1, inputs.ids)


def _cut(length: int) -> Mistake:
    """Return a cut after `length` tokens; the last one is that which ends the row, [SEP]."""

    def change(inputs: Padded, config: BertConfig) -> Padded:
        count = inputs.mask.cumsum(axis=1)
        longer = count[:, -1:] > length
        if not longer.any():
            raise InapplicableError(f"no row has more than {length} tokens")
        ends = inputs.ids[np.arange(len(count)), count.argmax(axis=1)][:, None]
        ids = np.where(longer & inputs.mask & (count == length), ends, inputs.ids)
        return dataclasses.replace(inputs, ids=ids, mask=inputs.mask & (count <= length))

    return Mistake("", "", "", ("words", "probs"), inputs=change)


# --- weights and residuals --------------------------------------------------------------------------------------------


def _weights(symbols: tuple[str, ...] | str, change: Callable[[FloatArray, FloatArray], Any]) -> Mistake:
    """Return another weight and bias of a linear map."""
    return _op(symbols, weights=lambda inner, here, weight, bias: change(*inner(here, weight, bias)))


def _transposed(weight: FloatArray, bias: FloatArray) -> tuple[FloatArray, FloatArray]:
    if weight.shape[0] != weight.shape[1] or np.array_equal(weight, weight.T):
        raise InapplicableError(f"a weight of shape {weight.shape} cannot be transposed without an error of shapes")
    return weight.T, bias


def _without_bias(weight: FloatArray, bias: FloatArray) -> tuple[FloatArray, FloatArray]:
    return weight, np.zeros_like(bias)


def _layer(choose: Callable[[int, int], int]) -> Mistake:
    """Return the weights of another layer, of the number of this one and that of all."""
    return _op(_IN_LAYER, layer=lambda inner, here, layers: layers[choose(here.layer, len(layers))])


def _value(here: Here, name: str, like: FloatArray) -> FloatArray:
    """Return a value that was computed before, in the form of another one."""
    if name not in here.forward.values:
        raise InapplicableError(f"{name} is not known here")
    return here.forward.values[name].reshape(like.shape)


def _sum_before_norm(inner: Part, here: Here, dense: FloatArray, residual: FloatArray) -> FloatArray:
    """Add the sum whose LayerNorm gives the residual."""
    assert here.layer is not None
    before = f"encoder.layer.{here.layer}.attention.output"
    if here.name == f"{before}.LayerNorm.input":
        before = f"encoder.layer.{here.layer - 1}.output" if here.layer else "embeddings"
    return inner(here, dense, _value(here, f"{before}.LayerNorm.input", residual))


def _layer_input(inner: Part, here: Here, dense: FloatArray, residual: FloatArray) -> FloatArray:
    assert here.layer is not None
    return inner(here, dense, _value(here, state_name(here.layer), residual))


def _norm_in_front(inner: Part, here: Here, x: FloatArray, linear: PreparedLinear, index: int) -> FloatArray:
    """Apply the block's LayerNorm to its input."""
    layer = _layer_of(here)
    norm = layer.output_norm if here.name.endswith("intermediate.dense") else layer.attention_norm
    at = here._replace(name=f"encoder.layer.{here.layer}.norm-in-front")
    return inner(here, here.forward.part("norm", at, x, norm), linear, index)


def _norm_before_sum(inner: Part, here: Here, x: FloatArray, norm: LayerNorm) -> FloatArray:
    """Compute residual + LayerNorm(dense)."""
    block = "attention.output" if here.name.endswith(".attention") else "output"
    dense = _value(here, f"encoder.layer.{here.layer}.{block}.dense", x)
    return inner(here, dense, norm) + (x - dense)


# --- dropout and low precision ----------------------------------------------------------------------------------------

_DROPOUT = 0.1


def _dropped(name: str, value: FloatArray) -> FloatArray:
    """Set a tenth of the numbers to zero, and scale the others; the same ones each time."""
    keep = np.random.default_rng([*name.encode()]).random(value.shape) >= _DROPOUT
    return value * keep / value.dtype.type(1 - _DROPOUT)


def _drop(inner: Part, here: Here, *arguments: FloatArray) -> FloatArray:
    return _dropped(here.name, inner(here, *arguments))


def _drop_dense(inner: Part, here: Here, dense: FloatArray, residual: FloatArray) -> FloatArray:
    return inner(here, _dropped(here.name, dense), residual)


def _q8_0(weight: FloatArray) -> FloatArray:
    """Round to 8 bits in blocks of 32 with a scale in float16, as ggml does."""
    if weight.shape[-1] % 32:
        raise InapplicableError("rows of a weight in q8_0 are multiples of 32")
    blocks = weight.reshape(*weight.shape[:-1], -1, 32)
    scale = np.abs(blocks).max(axis=-1, keepdims=True) / weight.dtype.type(127)
    whole = np.round(blocks / np.where(scale, scale, 1))
    return (whole * to_float16(scale)).reshape(weight.shape)


def _int8(weight: FloatArray) -> FloatArray:
    """Round to 8 bits with one scale for the whole weight."""
    scale = np.abs(weight).max() / weight.dtype.type(127)
    return np.round(weight / scale) * scale if scale else weight


def _dynamic_int8(x: FloatArray, weight: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Round both factors to 8 bits: one scale for the weight, a scale and a zero point for all rows of x."""
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    scale = x.dtype.type((high - low) / 255 or 1.0)
    zero = np.round(-low / scale)
    rounded = (np.clip(np.round(x / scale) + zero, 0, 255) - zero) * scale
    return rounded.astype(x.dtype), _int8(weight)


def _sums_in_float16(inner: Part, here: Here, x: FloatArray, weight: FloatArray) -> FloatArray:
    """Add up in float16, sixteen products at a time."""
    x, weight = x.astype(np.float32), weight.astype(np.float32)
    y = np.zeros((len(x), len(weight)), np.float16)
    for start in range(0, x.shape[1], 16):
        y = (y.astype(np.float32) + x[:, start : start + 16] @ weight[:, start : start + 16].T).astype(np.float16)
    return y.astype(here.forward.dtype)


def _rounded_weights(rounding: Callable[[FloatArray], FloatArray]) -> Mistake:
    """Return matrices and tables of embeddings that are rounded; biases stay."""
    return _op(
        (*_LOOKUPS, *DENSE),
        **_weights(DENSE, lambda weight, bias: (rounding(weight), bias)).parts,
        rows=lambda inner, here, table, ids: rounding(inner(here, table, ids)),
    )


def _product(change: Callable[[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]) -> Mistake:
    """Return products of changed factors."""
    return _op(DENSE, product=lambda inner, here, x, weight: inner(here, *change(x, weight)))


def _stored(rounding: Callable[[FloatArray], FloatArray]) -> Mistake:
    return _op(_EVERY, value=lambda inner, here, value: rounding(inner(here, value)))


# --- vectors and names ------------------------------------------------------------------------------------------------


def _pooled(pooling: str) -> Mistake:
    return Mistake("", "", "", (VECTOR,), vector=lambda right: right._replace(pooling=pooling))


def _lengths(scaling: str) -> Mistake:
    return Mistake("", "", "", (VECTOR,), vector=lambda right: right._replace(scaling=scaling))


def _renamed(symbols: tuple[str, ...], source: Callable[[int, int], str]) -> Mistake:
    """Return a dump whose hidden state i has the values of another name, of i and the number of layers."""

    def change(values: dict[str, FloatArray], depth: int) -> dict[str, FloatArray]:
        pairs = {state_name(i): source(i, depth) for i in range(depth + 1)}
        return values | {name: values[held] for name, held in pairs.items() if held in values}

    return Mistake("", "", "", symbols, dump=change)


_MODULES = {entry.symbol: entry.path.removeprefix("encoder.layer.{i}.") for entry in (*LAYER, *POOLER)}
_SUMS = ("attention_sum", "output_sum")
_ATTENDED = (*_IN_LAYER[:3], "intermediate_dense", "attention", "output")
_OTHERS = ("quick", "relu", "silu", "none", "leaky", "erf-3", "erf-5", "tanh")
_ACTIVATIONS = ("G1.tanh", "G1.erf", "G2.ggml", *(f"G3.{one}" for one in _OTHERS))
_WHAT_IS: dict[str, Mistake] = {
    **{id: _curve(name) for id, name in zip(_ACTIVATIONS, CURVES, strict=True)},
    "G3.pooler": _curve("none", "pooler"),
    **{f"N1.{eps:g}".replace("e-0", "e-"): _norm(eps) for eps in (1e-5, 1e-6, 1e-3, 1e-7, 1e-12)},
    "N1.zero": _norm(0.0),
    "N2.outside": _norm(outside=True),
    "N2.1e-6": _norm(1e-6, outside=True),
    "N2.1e-5": _norm(1e-5, outside=True),
    "N3.unbiased": _norm(unbiased=True),
    "N3.annotated": _norm(1e-6, unbiased=True, outside=True),
    "N4.last": _op("output", norm=_last_norm_skipped),
    "N4.no-attention": _op("attention", norm=_no_norm),
    "N4.no-output": _op("output", norm=_no_norm),
    "N4.swapped": _norm(swapped=True),
    "N4.plain": _norm(weight=False, bias=False),
    "N4.no-weight": _norm(weight=False),
    "N4.no-bias": _norm(bias=False),
    "N4.rms": _norm(rms=True),
    "N5.float16": _op(NORMS, norm=_norm_in_float16),
    "W3.norms": _op(("attention", "output"), norm=_other_norm),
    "A1.none": _scaled(lambda size, config: math.sqrt(size)),
    "A2.hidden": _scaled(lambda size, config: math.sqrt(size / config.hidden_size)),
    "A2.heads": _scaled(lambda size, config: math.sqrt(size / config.num_attention_heads)),
    "A2.twice": _scaled(lambda size, config: 1 / math.sqrt(size)),
    "A3.split": _op(("scores", "context"), split=_split_wrongly),
    "A3.merge": _op("context", merge=_merge_wrongly),
    "A3.both": _op(("scores", "context"), split=_split_wrongly, merge=_merge_wrongly),
    "A3.interleaved": _op(("scores", "context"), split=_split_interleaved, merge=_merge_interleaved),
    "A4.query-key": _instead(1, 0, 2),
    "A4.query-value": _instead(2, 1, 0),
    "A4.key-value": _instead(0, 2, 1),
    "A4.by-head": _op(_IN_LAYER[:3], dense=_sliced_by_head),
    "A5.none": _mask(lambda scores, shown: scores),
    "A6.minus-ten": _leaking(-10.0),
    "A6.added": _mask(lambda scores, shown: scores + shown),
    "A6.multiplied": _mask(lambda scores, shown: scores * shown),
    "A6.after": _op("probs", mask=lambda inner, here, scores, shown: scores, softmax=_zeroed),
    "A6.inverted": _mask_as(lambda shown: ~shown | shown.all(axis=1, keepdims=True)),
    "A6.length": _mask_as(lambda shown: np.arange(shown.shape[1]) < shown.sum(axis=1, keepdims=True)),
    "A6.ten-thousand": _leaking(-1e4),
    "A7.causal": _op("probs", mask=_causal),
    "A8.rope": _rope(False),
    "A8.rope-pairs": _rope(True),
    "A9.queries": _softmax_over(-2),
    "A9.heads": _softmax_over(1),
    "A9.float16": _op("probs", softmax=_softmax_in_float16),
    "A9.no-shift": _op("probs", softmax=_softmax_without_shift),
    "E1.first": _types(lambda inputs: np.zeros_like(inputs.types)),
    "E1.second": _types(lambda inputs: np.ones_like(inputs.types)),
    "E3.plus-1": _positions(lambda inputs: inputs.positions + 1),
    "E3.plus-2": _positions(lambda inputs: inputs.positions + 2),
    "E3.zero": _positions(lambda inputs: np.zeros_like(inputs.positions)),
    "E3.visible": _positions(lambda inputs: np.maximum(inputs.mask.cumsum(axis=1) - 1, 0)),
    "E3.visible-1": _positions(lambda inputs: inputs.mask.cumsum(axis=1)),
    "E3.segments": _positions(_restart),
    "E3.backwards": _positions(lambda inputs: inputs.positions[:, ::-1]),
    "E5.swapped": _types(lambda inputs: inputs.mask.astype(np.int64), mask=lambda inputs: inputs.types > 0),
    "E2.missing": _total(lambda words, types, positions: words + positions),
    "E4.positions": _total(lambda words, types, positions: words + types),
    "E4.scaled": _total(
        lambda words, types, positions: words * words.dtype.type(np.sqrt(words.shape[-1])) + types + positions
    ),
    "E4.sinusoids": _op("positions", rows=_sinusoids),
    "E4.norm": _op("embeddings", norm=_no_norm),
    "E4.order": _total(lambda words, types, positions: words + (positions + types)),
    "T1.unknown": _ids(_unknown),
    "T1.shifted": _ids(lambda inputs, vocab_size: (inputs.ids + 1) % vocab_size),
    **{f"P4.cut-{length}": _cut(length) for length in (64, 128, 256)},
    **{
        f"W1.{_MODULES[one]}": _weights(one, _transposed)
        for one in DENSE
        if one not in ("intermediate_dense", "output_dense")
    },
    **{f"W2.{_MODULES[one]}": _weights(one, _without_bias) for one in DENSE},
    "W2.all": _weights(DENSE, _without_bias),
    "W3.shifted": _layer(lambda i, count: (i + 1) % count),
    "W3.reversed": _layer(lambda i, count: count - 1 - i),
    "W3.first": _layer(lambda i, count: 0),
    "C1.no-attention": _op("attention_sum", add=lambda inner, here, dense, residual: dense),
    "C1.no-output": _op("output_sum", add=lambda inner, here, dense, residual: dense),
    "C1.none": _op(_SUMS, add=lambda inner, here, dense, residual: dense),
    "C1.twice": _op(_SUMS, add=lambda inner, here, dense, residual: dense + residual + residual),
    "C1.before-norm": _op(_SUMS, add=_sum_before_norm),
    "C1.layer-input": _op("output_sum", add=_layer_input),
    "C1.pre-norm": _op(_ATTENDED, dense=_norm_in_front, norm=_no_norm),
    "C1.norm-inside": _op(("attention", "output"), norm=_norm_before_sum),
    "D1.dropout": _op(("embeddings", "probs", *_SUMS), norm=_drop, softmax=_drop, add=_drop_dense),
    "D2.float16-weights": _rounded_weights(to_float16),
    "D2.bfloat16-weights": _rounded_weights(to_bfloat16),
    "D2.q8_0-weights": _rounded_weights(_q8_0),
    "D2.float16-words": _op("words", rows=lambda inner, here, table, ids: to_float16(inner(here, table, ids))),
    "D2.int8-weights": _weights(DENSE, lambda weight, bias: (_int8(weight), bias)),
    "D2.int8": _product(_dynamic_int8),
    "D2.float16": _stored(to_float16),
    "D2.bfloat16": _stored(to_bfloat16),
    "D2.tf32": _product(lambda x, weight: (to_tf32(x), to_tf32(weight))),
    "D3.float16": _op(DENSE, product=_sums_in_float16),
    "P1.padding": _pooled("mean with padding"),
    "P2.cls": _pooled("cls"),
    "P2.mean": _pooled("mean"),
    "P2.max": _pooled("max"),
    "P2.last": _pooled("lasttoken"),
    "P2.pooler": _pooled("pooler"),
    "P2.weighted": _pooled("weightedmean"),
    "P2.sum": _pooled("sum"),
    "P2.special": _pooled("mean without [CLS] and [SEP]"),
    "P2.first-last": _pooled("mean of the first and last state"),
    "P2.second-last": _pooled("mean of the last state but one"),
    "P3.raw": _lengths("none"),
    "P3.unit": _lengths("unit"),
    "P3.twice": _lengths("twice"),
    "H1.late": _renamed(("output",), lambda i, depth: state_name(max(i - 1, 0))),
    "H1.early": _renamed(("embeddings", "output"), lambda i, depth: state_name(min(i + 1, depth))),
    "H1.look-up": _renamed(("embeddings",), lambda i, depth: state_name(i) if i else "embeddings.word_embeddings"),
    "H1.before-norm": _renamed(
        ("embeddings", "output"), lambda i, depth: f"{state_name(i)}{'.output' if i else ''}.LayerNorm.input"
    ),
}

_ROUND = ("G2.ggml", "A9.float16", "D2.int8", "D2.float16", "D2.bfloat16", "D2.tf32", "D3.float16")


def _always(config: BertConfig) -> bool:
    return True


_HARMLESS: dict[str, tuple[str, Callable[[BertConfig], bool]]] = {
    "G3.erf-5": ("this erf is within 1.5e-7 of the true one", lambda config: config.activation == "gelu"),
    "N1.zero": ("1e-12 is below the rounding of a variance in float32", lambda config: config.layer_norm_eps <= 1e-9),
    "N2.outside": (
        "an eps of 1e-12 is below the rounding of the root too",
        lambda config: config.layer_norm_eps <= 1e-9,
    ),
    "A6.ten-thousand": (
        "exp(-10000) is 0 in every format, unless the scores are in the thousands",
        lambda config: True,
    ),
    "A9.no-shift": ("the maximum cancels, as long as nothing overflows", lambda config: True),
    "E4.order": ("the order of a sum of three numbers changes rounding only", lambda config: True),
    "W2.attention.self.key": ("a constant of all keys cancels in softmax", lambda config: True),
}


def _parsed() -> dict[str, Mistake]:
    """Put the texts and the remedies into the mistakes."""
    found: dict[str, Mistake] = {}
    above: list[str] = []
    for line in _TEXTS.replace("\n  ", " ").splitlines():
        id, text = line.split(" ", 1)
        if id == "=":
            found |= {one: dataclasses.replace(found[one], remedy=text) for one in above}
            above = []
            continue
        harmless, condition = _HARMLESS.get(id, ("", _always))
        found[id] = dataclasses.replace(
            _WHAT_IS[id], id=id, text=text, rounds=id in _ROUND, harmless=harmless, harmless_if=condition
        )
        above.append(id)
    return found


MISTAKES = _parsed()
"""All mistakes by id."""


# --- mistakes with a number that is fitted ----------------------------------------------------------------------------


def eps_mistake(eps: float, *, outside: bool = False) -> Mistake:
    """Return a LayerNorm with this eps, inside or outside the root."""
    like = MISTAKES["N2.1e-5" if outside else "N1.1e-5"]
    number = f"{eps:g}".replace("e-0", "e-")
    text = like.text.replace("1e-5", number)
    return dataclasses.replace(_norm(eps, outside=outside), id=f"{like.kind}.{number}", text=text, remedy=like.remedy)


def scale_mistake(factor: float, more: str = "") -> Mistake:
    """Return scores that are multiplied by `factor` beside the right scale."""
    text = f"attention: the scores are {factor:.6g} times what they must be{more}"
    remedy = MISTAKES["A1.none"].remedy
    return dataclasses.replace(_scaled(lambda size, config: factor), id="A2.fitted", text=text, remedy=remedy)


_FIELDS = {
    **dict.fromkeys(_IN_LAYER[:3], "query_key_value"),
    **{"attention_dense": "attention_output", "intermediate_dense": "intermediate", "output_dense": "output"},
    **{"attention": "attention_norm", "output": "output_norm"},
}


LAYER_OF = "W3.layer-"
"""The begin of the id of a `layer_mistake`."""


def layer_mistake(index: int) -> Mistake:
    """Return ops that have the weights of layer `index`."""

    def linear(inner: Part, here: Here, x: FloatArray, linear: PreparedLinear, part: int) -> FloatArray:
        other = here.forward.weights.layers[index]
        return inner(here, x, getattr(other, _FIELDS[symbol_of(here.name)]), part)

    def norm(inner: Part, here: Here, x: FloatArray, norm: LayerNorm) -> FloatArray:
        return inner(here, x, getattr(here.forward.weights.layers[index], _FIELDS[symbol_of(here.name)]))

    remedy = MISTAKES["W3.first"].remedy
    made = _op(tuple(_FIELDS), dense=linear, norm=norm)
    return dataclasses.replace(
        made, id=f"{LAYER_OF}{index}", text=f"weights: those of layer {index} are used", remedy=remedy
    )


def leak_mistake(constant: float) -> Mistake:
    """Return a mask that adds `constant` to the scores of hidden keys."""
    like = MISTAKES["A6.minus-ten"]
    text = like.text.replace("-10", f"{constant:g}")
    return dataclasses.replace(_leaking(constant), id="A6.weak", text=text, remedy=like.remedy)
