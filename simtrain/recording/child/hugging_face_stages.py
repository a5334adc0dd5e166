"""The stages of a decoder of Hugging Face transformers: its list of layers, cut into equal parts.

The first stage has the embedding, the last one norm and head. Other models have no such list.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from simtrain.recording.child.hugging_face import train
from simtrain.recording.child.problems import WrongStage


def stage(config: str, stage: int, num_stages: int, pp: int, **arguments: Any) -> tuple[Any, ...]:
    """Return a stage of a model, with a batch, its loss and AdamW.

    Args:
        config: path of config.json.
        stage, num_stages: the number of the stage, and of how many.
        pp: stages of the pipeline, of one or several of these.
        arguments: as those of `hugging_face.train`.
    """

    def cut(model: Any) -> DecoderStage:
        return DecoderStage(model, stage, num_stages)

    return train(config, pp=pp, cut=cut, **arguments)


class DecoderStage(nn.Module):
    """A part of a decoder, which runs it on hidden states in place of tokens."""

    def __init__(self, model: Any, number: int, of: int) -> None:
        super().__init__()
        base: Any = model.base_model
        head = model.get_output_embeddings()
        layers = getattr(base, "layers", None)
        names = "embed_tokens", "norm"
        has_parts = head is not None and all(hasattr(base, name) for name in names)
        if (
            model.config.is_encoder_decoder
            or not has_parts
            or not isinstance(layers, nn.ModuleList)
        ):
            raise WrongStage(
                f"{type(model).__name__} is no decoder with embed_tokens, layers, norm and a head"
            )
        if model.config.tie_word_embeddings:
            raise WrongStage(
                "its embedding and its head share weights, which stages would have to reduce: set "
                "tie_word_embeddings to false in the config"
            )
        if len(layers) % of:
            raise WrongStage(f"{len(layers)} layers cannot be cut into {of} equal stages")
        size = len(layers) // of
        first = number * size
        base.layers = layers[first : first + size]
        base.config.num_hidden_layers = size
        if getattr(base.config, "layer_types", None):
            base.config.layer_types = base.config.layer_types[first : first + size]
        self._no_split_modules = model._no_split_modules
        self.is_first = number == 0
        if not self.is_first:
            base.embed_tokens = None
        self.head: Any = head if number == of - 1 else None
        if self.head is None:
            base.norm = nn.Identity()
        self.model, self.loss = base, model.loss_function

    def forward(self, hidden: torch.Tensor | None = None, **batch: Any) -> Any:
        """Return hidden states, or of the last stage what has the loss."""
        inputs = {"input_ids": batch["input_ids"]} if self.is_first else {"inputs_embeds": hidden}
        states = self.model(**inputs, use_cache=False).last_hidden_state
        if self.head is None:
            return states
        logits, labels = self.head(states), batch["labels"]
        return SimpleNamespace(loss=self.loss(logits, labels, vocab_size=logits.shape[-1]))
