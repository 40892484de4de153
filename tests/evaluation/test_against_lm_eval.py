"""Completion agrees with the loglikelihoods that lm-eval computes itself, on the same passages."""

from __future__ import annotations

import json
import math
import os
from itertools import islice
from pathlib import Path

import pytest
import torch

from scse import Shape
from scse.data.tokenizer import gpt2_tokenizer
from scse.evaluation.completion import complete, last_word_completions
from tinymodels import tiny

pytestmark = pytest.mark.filterwarnings("ignore")
LAMBADA = Path(os.environ.get("SCSE_DATA", Path(__file__).parents[3] / "shared" / "data")) / "lambada" / "test.jsonl"
SHAPE = Shape(width=24, heads=3, ff_width=48, context=64, vocabulary=50_257)
LOOPS = 3


def passages() -> list[str]:
    """Real LAMBADA passages where they are at hand, a few of our own otherwise; some exceed the context of 64."""
    if LAMBADA.exists():
        with LAMBADA.open(encoding="utf-8") as lines:
            return [json.loads(line)["text"] for line in islice(lines, 24)]
    return ["She closed the book and looked at the " + "very " * n + "old clocktower" for n in range(0, 96, 8)]


def shell(model):
    """As much of a Hugging Face model as lm-eval needs."""
    import transformers

    class Shell(transformers.PreTrainedModel):
        config_class = transformers.PretrainedConfig

        def __init__(self):
            super().__init__(transformers.PretrainedConfig(tie_word_embeddings=False))
            self.inner = model

        def forward(self, input_ids, **_):
            return transformers.modeling_outputs.CausalLMOutput(logits=self.inner(input_ids, LOOPS))

    return Shell()


@pytest.mark.parametrize("family", ["scse", "tuned-adapter"])
def test_completion_agrees_with_lm_eval(family, tmp_path):
    import transformers
    from lm_eval.api.instance import Instance
    from lm_eval.api.metrics import perplexity
    from lm_eval.models.huggingface import HFLM

    model = tiny(family, shape=SHAPE, dtype=torch.float32)
    tokenizer = gpt2_tokenizer()
    tokenizer.save(tmp_path)
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"), eos_token="<|endoftext|>", model_max_length=SHAPE.context
    )
    harness = HFLM(pretrained=shell(model), tokenizer=theirs, max_length=SHAPE.context, batch_size=4, backend="causal")
    texts = passages()
    pairs = [text.rstrip().rpartition(" ") for text in texts]
    requests = [
        Instance(request_type="loglikelihood", doc={}, arguments=(context, space + word), idx=k)
        for k, (context, space, word) in enumerate(pairs)
    ]
    answers = harness.loglikelihood(requests, disable_tqdm=True)

    examples = list(last_word_completions(texts, tokenizer))
    (ours,) = complete(model, examples, [LOOPS], 5)
    tokens = sum(example.answer for example in examples)
    assert ours.target_ppl == pytest.approx(math.exp(-sum(ll for ll, _ in answers) / tokens), rel=1e-5)
    assert ours.word_ppl == pytest.approx(perplexity([ll for ll, _ in answers]), rel=1e-5)
    assert ours.exact_accuracy == sum(greedy for _, greedy in answers) / len(answers)
    for example, (loglikelihood, _) in zip(examples, answers, strict=True):
        (alone,) = complete(model, [example], [LOOPS], 1)
        assert -math.log(alone.target_ppl) * example.answer == pytest.approx(loglikelihood, rel=1e-4)
