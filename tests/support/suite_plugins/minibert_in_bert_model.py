"""For ModelTesterMixin of transformers: its BertModel whose forward pass is minibert's, and the small model it tests.

MINIBERT_SUITE_SIDE is "minibert", or "theirs" to run the same tests on the BertModel of transformers itself.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

import torch
from transformers import BertConfig, BertModel
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

import minibert

__all__ = ["Model", "ModelTester"]

TEXTS, TOKENS, WORDS, TYPES = 13, 7, 99, 16  # as in transformers' own tests of BertModel


class OnMinibert(BertModel):
    """Made, saved and loaded by transformers; each call saves the weights, and minibert computes with them."""

    def forward(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        token_type_ids: Any = None,
        position_ids: Any = None,
        inputs_embeds: Any = None,
        *,
        output_attentions: Any = None,
        output_hidden_states: Any = None,
        return_dict: Any = None,
        **keywords: Any,
    ) -> Any:
        """Compute in float32, and answer in the type of this model; its config has the defaults."""
        attentions = self.config.output_attentions if output_attentions is None else output_attentions
        states = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            model = minibert.BertModel.from_pretrained(folder, add_pooling_layer=self.pooler is not None)
        output = model(
            input_ids,
            attention_mask,
            token_type_ids,
            position_ids,
            None if inputs_embeds is None else inputs_embeds.float(),
            output_attentions=attentions,
            output_hidden_states=states,
            **keywords,
        )
        fields = ("last_hidden_state", "pooler_output", "hidden_states", "attentions")
        result = BaseModelOutputWithPoolingAndCrossAttentions(
            **{name: self._in_own_type(getattr(output, name)) for name in fields}
        )
        return result if self.config.return_dict and return_dict is not False else result.to_tuple()

    def _in_own_type(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(self._in_own_type, value))
        return None if value is None else value.to(self.dtype)


OnMinibert.__name__ = "BertModel"  # the mixin looks for the class by its name
Model = OnMinibert if os.environ["MINIBERT_SUITE_SIDE"] == "minibert" else BertModel


class ModelTester:
    """What the mixin asks about the model: its sizes, a config, and inputs."""

    batch_size, seq_length = TEXTS, TOKENS
    hidden_size, num_hidden_layers, num_attention_heads = 32, 2, 4
    is_training = True

    def get_config(self) -> BertConfig:
        return BertConfig(
            vocab_size=WORDS,
            hidden_size=self.hidden_size,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            intermediate_size=37,
            type_vocab_size=TYPES,
        )

    def prepare_config_and_inputs_for_common(self) -> tuple[BertConfig, dict[str, torch.Tensor]]:
        shape = (TEXTS, TOKENS)
        mask = torch.randint(2, shape)
        mask[:, 0] = 1
        inputs = {"input_ids": torch.randint(WORDS, shape), "token_type_ids": torch.randint(TYPES, shape)}
        return self.get_config(), {**inputs, "attention_mask": mask}
