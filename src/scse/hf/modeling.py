"""The one model, dressed for `transformers`: same weights, same unroll, same cache.

Shapes: B rows, L positions, V vocabulary, T loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, GenerationConfig, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from scse.config.use import RULE
from scse.errors import UserError
from scse.evaluation.rules import RULES
from scse.files import share
from scse.generation.cache import KVCache
from scse.generation.decode import Depth, settle
from scse.generation.window import PaddedWindow
from scse.hf.configuration import ScseConfig
from scse.model import LoopedLM
from scse.nn.loss import counted, head_nll
from scse.nn.storage import align_weights
from scse.nn.without_storage import without_storage
from scse.recurrence import Memory

OWN_GENERATION_OPTIONS = ("num_loops", "exit_threshold", "exit_rule")


class ScseCache(Cache):
    """Our cache in the interface that `generate` expects. It is made by the first call that uses it."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.kv: KVCache | None = None

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0 if self.kv is None else self.kv.length

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        if self.kv is not None:
            self.kv.select(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.kv is not None:
            self.kv.select(torch.arange(self.kv.batch, device=self.kv.keys.device).repeat_interleave(repeats))

    def crop(self, max_length: int) -> None:
        raise UserError("this cache cannot be shortened, so assisted generation is not available; generate without it")

    @property
    def is_compileable(self) -> bool:
        return False


class ScseForCausalLM(PreTrainedModel, GenerationMixin):
    """A looped language model whose depth is an argument: `model(ids, num_loops=24)`, also of `model.generate`.

    `num_loops` may also be one number per row, and `exit_threshold` lets each token stop earlier, by
    the rule named `exit_rule`.
    """

    config_class = ScseConfig
    config: ScseConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules = ["Block"]  # noqa: RUF012

    def __init__(self, config: ScseConfig) -> None:
        super().__init__(config)
        self.model = LoopedLM(config.model_config())
        self.gradient_checkpointing = False
        self.post_init()

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """As in `transformers`, but a folder that lacks weights is refused: they would be whatever lay in memory. What
        a family keeps frozen stays so, and not a bit of the function changes.
        """
        told = kwargs.pop("output_loading_info", False)
        loaded: Any = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        model, about = loaded
        if missing := sorted(about["missing_keys"]):
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise UserError(f"the weights lack '{missing[0]}'{more}; is this an export of ours? export the run again")
        align_weights(model)
        with without_storage():
            fresh = dict(LoopedLM(model.config.model_config()).named_parameters())
        for name, parameter in model.model.named_parameters():
            parameter.requires_grad_(fresh[name].requires_grad)
        return (model, about) if told else model

    def save_pretrained(self, save_directory: Any, is_main_process: bool = True, *args: Any, **kwargs: Any) -> None:
        """As in `transformers`, with our code beside the weights: the folder loads also where this package is not.

        Weights get the permissions of an ordinary new file; safetensors writes them for the owner alone.
        """
        ours = not self.is_remote_code()  # the code of a folder is copied by `transformers` itself
        if ours:
            from scse.hf.remote import AUTO_MAP, write_code

            self.config.auto_map = dict(AUTO_MAP)
        super().save_pretrained(save_directory, is_main_process, *args, **kwargs)
        folder = Path(save_directory)
        if is_main_process and folder.is_dir():
            for weights in folder.glob("*.safetensors"):
                share(weights)
            if ours:
                write_code(folder, self.config.family)

    def _init_weights(self, module: nn.Module) -> None:
        """The model inside has drawn its weights already."""

    def get_input_embeddings(self) -> nn.Module:
        tokens: nn.Module = self.model.tokens
        return tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        assert isinstance(value, nn.Embedding)
        self.model.tokens = value
        config = self.model.config
        self.model.config = replace(config, shape=replace(config.shape, vocabulary=value.num_embeddings))

    def get_output_embeddings(self) -> nn.Module | None:
        head: nn.Module | None = self.model.unembedding
        return head

    def set_output_embeddings(self, value: nn.Module) -> None:
        assert isinstance(value, nn.Linear)
        self.model.unembedding = value

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """As in `transformers`, for models whose layers do not add embeddings of their own to their values."""
        if self.model.values:
            raise UserError("the layers of this model embed its tokens too, so it cannot take other tokens")
        return super().resize_token_embeddings(*args, **kwargs)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: ScseCache | None = None,
        inputs_embeds: None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_loops: int | Sequence[int] | Tensor | None = None,
        exit_threshold: float | None = None,
        exit_rule: str = RULE,
        num_items_in_batch: Tensor | int | None = None,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Logits after `num_loops` loops; with labels, the mean loss of predicting each from those before it.

        `hidden_states`, where asked for, are h_0 … h_T. While training with labels no logits are returned, so that
        they never exist all at once. A cache is kept only when one is passed or asked for.
        """
        if input_ids is None or inputs_embeds is not None or output_attentions:
            raise UserError("pass input_ids; inputs_embeds and output_attentions are not supported")
        past = past_key_values if past_key_values is not None or not use_cache else ScseCache()
        loops = _loops(self.config.num_loops if num_loops is None else num_loops)
        depth = Depth(loops, exit_threshold, RULES.find(exit_rule))
        outputs, states, memory = self._outputs(input_ids, attention_mask, past, depth, bool(output_hidden_states))
        _check_positions(position_ids, input_ids, memory)
        loss = None if labels is None else self._loss(outputs, labels, num_items_in_batch)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = None if loss is not None and self.training else self.model.head(outputs[:, kept])
        parts: dict[str, Any] = {"loss": loss, "logits": logits, "past_key_values": past, "hidden_states": states}
        output = CausalLMOutputWithPast(**parts)
        if return_dict is None:
            return_dict = self.config.return_dict
        return output if return_dict else output.to_tuple()

    def _outputs(
        self, ids: Tensor, attention_mask: Tensor | None, past: ScseCache | None, depth: Depth, every: bool
    ) -> tuple[Tensor, tuple[Tensor, ...] | None, Memory | None]:
        """What the head takes, the states of every loop where asked for, and the memory behind them."""
        real = None if attention_mask is None or bool(attention_mask.all()) else attention_mask.bool()
        uneven = depth.threshold is not None or not isinstance(depth.loops, int)
        if uneven and every:
            raise UserError("hidden states of every loop exist only where all tokens take the same number of loops")
        if past is None and uneven:
            past = ScseCache()
        memory: Memory | None = None if real is None else PaddedWindow(real)
        if past is not None:
            view = self._cache(past, ids, depth).append(
                ids.shape[1], None if real is None else real[:, -ids.shape[1] :]
            )
            if uneven:
                return settle(self.model, ids, view, depth).outputs, None, view
            memory = view
        recompute = self.gradient_checkpointing and self.training
        states = self.model.unroll(ids, recompute, memory)
        state = next(states)
        hidden = [state.bare] if every else []
        for state in islice(states, depth.deepest):
            hidden += [state.bare] if every else []
        if past is not None and past.kv is not None and depth.deepest < past.kv.loops:
            state.rest()  # later tokens may take more loops, and see these as they ended
        found = tuple(hidden) if every else None
        return self.model.outputs(state.hidden, None if memory is None else memory.coda()), found, memory

    def _cache(self, past: ScseCache, ids: Tensor, depth: Depth) -> KVCache:
        if torch.is_grad_enabled() and self.training:
            raise UserError("a cache is for generation; switch to model.eval() or leave use_cache out while training")
        if past.kv is None:
            past.kv = KVCache(self.model, len(ids), depth.deepest)
        return past.kv

    def _loss(self, outputs: Tensor, labels: Tensor, items: Tensor | int | None) -> Tensor:
        targets, outputs = labels[:, 1:].flatten(), outputs[:, :-1].flatten(0, 1)
        counts = targets >= 0
        if (chosen := counted(targets)) is not None:
            outputs, targets = outputs[chosen], targets[chosen]
        total = head_nll(self.model.normed(outputs), self.model.head_weight, targets)
        return total / (counts.sum() if items is None else items)

    def generate(self, inputs: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        """As in `transformers`, but a prompt that cannot be continued is refused at once, in a line of ours."""
        ids = kwargs.get("input_ids") if inputs is None else inputs
        _check_prompt(ids, kwargs.get("attention_mask"), self.generation_config.bos_token_id)
        return super().generate(inputs, *args, **kwargs)  # type: ignore[misc]

    def _prepare_generation_config(
        self, generation_config: GenerationConfig | None, **kwargs: Any
    ) -> tuple[GenerationConfig, dict[str, Any]]:
        """Our options come from the call, else from the generation configuration, else from the model's."""
        called = {name: kwargs.pop(name) for name in OWN_GENERATION_OPTIONS if kwargs.get(name) is not None}
        resolved, model_kwargs = super()._prepare_generation_config(generation_config, **kwargs)  # type: ignore[misc]
        for name in OWN_GENERATION_OPTIONS:
            value = called.get(name, getattr(resolved, name, None))
            if value is not None:
                model_kwargs[name] = value
        return resolved, model_kwargs

    def _prepare_cache_for_generation(  # type: ignore[override]
        self, generation_config: GenerationConfig, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        if generation_config.cache_implementation is not None:
            raise UserError("this model brings its own cache; leave cache_implementation out")
        if generation_config.use_cache and model_kwargs.get("past_key_values") is None:
            model_kwargs["past_key_values"] = ScseCache()


def _loops(given: int | Sequence[int] | Tensor) -> int | tuple[int, ...]:
    """A number of loops, or one per row."""
    if isinstance(given, Tensor):
        given = given.tolist()
    rows = given if isinstance(given, Sequence) else [given]
    if not all(isinstance(number, Integral) for number in rows):
        raise UserError(f"num_loops must be a whole number or one for each row, got {given!r}")
    return tuple(map(int, rows)) if isinstance(given, Sequence) else int(given)


def _check_prompt(ids: Tensor | None, mask: Tensor | None, first: int | None) -> None:
    """Something to continue in every row, and nothing but tokens after its first one."""
    if (ids is None and first is None) or (ids is not None and not ids.numel()):
        raise UserError("the prompt is empty; pass input_ids with at least one token in every row")
    if mask is None or mask.dim() != 2:
        return
    real = mask.bool()
    if not real.any(1).all():
        raise UserError("a row of the prompt is nothing but padding; give every row at least one token")
    if (real[:, :-1] & ~real[:, 1:]).any():
        raise UserError("the prompt has padding after its tokens; set tokenizer.padding_side = 'left' to generate")


def _check_positions(position_ids: Tensor | None, ids: Tensor, memory: Memory | None) -> None:
    """`generate` passes positions along; they must be the ones we count, because no others are supported."""
    if position_ids is None:
        return
    counted = torch.arange(ids.shape[1], device=ids.device)[None] if memory is None else memory.positions
    if not torch.equal(position_ids.expand_as(ids), counted.expand_as(ids)):
        raise UserError("position_ids other than those the attention mask implies are not supported; leave them out")
