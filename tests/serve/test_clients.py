"""The clients people use, against a live server."""

from __future__ import annotations

import pytest
import torch
from liveserver import TEXT

from scse.generation import GREEDY, Depth, Generation, Sampling, continue_text

pytestmark = pytest.mark.filterwarnings("ignore")
PROMPT = "the state moves"


@pytest.fixture(scope="module")
def client(live):
    import openai

    with openai.OpenAI(base_url=f"{live.address}/v1", api_key="none", max_retries=0) as found:
        yield found


def expected(served, prompt, loops=4, count=8, sampling=GREEDY, threshold=None, seed=0):
    wanted = Generation(Depth(loops, threshold), count, sampling, served.tokenizer.eot_id)
    *_, (last,) = continue_text(served.model, served.tokenizer, prompt, wanted, (seed,))
    return last


def test_models(client):
    (model,) = client.models.list().data
    assert model.id == "tiny"
    assert client.models.retrieve("tiny").max_model_len == 48


def test_a_completion_is_what_generate_writes(client, served):
    found = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=8, temperature=0)
    alone = expected(served, PROMPT)
    assert found.choices[0].text == alone.text
    assert found.choices[0].finish_reason == "length"
    assert found.choices[0].loops == alone.loops
    assert (found.usage.completion_tokens, found.usage.loops, found.usage.mean_loops) == (8, 32, 4.0)
    assert found.usage.prompt_tokens == len(served.tokenizer.encode(PROMPT))


def test_depth_is_a_field_of_the_request(client, served):
    more = {"loops": 9, "exit_threshold": 0.2, "exit_rule": "update"}
    found = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=8, temperature=0, extra_body=more)
    alone = expected(served, PROMPT, loops=9, threshold=0.2)
    assert (found.choices[0].text, found.choices[0].loops) == (alone.text, alone.loops)
    found = client.completions.create(
        model="tiny", prompt=PROMPT, max_tokens=8, temperature=0, extra_body={"loops": 9, "budget": 2.5}
    )
    assert found.usage.mean_loops == 2.5


def test_several_prompts_and_choices_draw_as_each_alone(client, served):
    prompts = [PROMPT, TEXT[:20]]
    found = client.completions.create(
        model="tiny", prompt=prompts, n=2, max_tokens=6, temperature=0.9, top_p=0.9, seed=5
    )
    assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
    for choice, (prompt, seed) in zip(found.choices, [(p, s) for p in prompts for s in (5, 6)], strict=True):
        alone = expected(served, prompt, count=6, sampling=Sampling(0.9, 0.9), seed=seed)
        assert choice.text == alone.text


def test_a_stream_adds_up_to_the_whole(client, served):
    asked = {"model": "tiny", "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "logprobs": 2}
    parts = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    whole = client.completions.create(**asked).choices[0]
    assert "".join(part.choices[0].text for part in parts[:-1]) == whole.text
    assert [n for part in parts[:-1] for n in part.choices[0].loops] == whole.loops
    scores = [part.choices[0].logprobs for part in parts[:-1] if part.choices[0].logprobs]
    assert [s for score in scores for s in score.token_logprobs] == pytest.approx(
        whole.logprobs.token_logprobs, abs=1e-4
    )
    assert parts[-2].choices[0].finish_reason == "length"
    assert parts[-1].usage.completion_tokens == 8


def test_stop_strings_cut_the_text(client, served):
    text = expected(served, PROMPT, count=12).text
    stop = text[5:8]
    cut = text[: text.index(stop)]
    asked = {"model": "tiny", "prompt": PROMPT, "max_tokens": 12, "temperature": 0, "stop": ["\0never", stop]}
    found = client.completions.create(**asked)
    assert (found.choices[0].text, found.choices[0].finish_reason) == (cut, "stop")
    streamed = [part.choices[0] for part in client.completions.create(**asked, stream=True)]
    assert ("".join(part.text for part in streamed), streamed[-1].finish_reason) == (cut, "stop")


def test_a_chat(client, served):
    messages = [{"role": "system", "content": "rest"}, {"role": "user", "content": "and move"}]
    asked = {"model": "tiny", "messages": messages, "max_tokens": 6, "temperature": 0}
    found = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2)
    alone = expected(served, "System: rest\nUser: and move\nAssistant:", count=6)
    assert found.choices[0].message.content == alone.text
    assert len(found.choices[0].logprobs.content) == 6
    assert found.choices[0].logprobs.content[0].top_logprobs[0].token == found.choices[0].logprobs.content[0].token
    parts = list(client.chat.completions.create(**asked, stream=True))
    assert parts[0].choices[0].delta.role == "assistant"
    assert "".join(part.choices[0].delta.content or "" for part in parts) == alone.text


@torch.no_grad()
def test_echo_scores_the_prompt(client, served):
    ids = served.tokenizer.encode(TEXT)[:20]
    found = client.completions.create(
        model="tiny", prompt=ids, max_tokens=0, echo=True, logprobs=1, extra_body={"loops": 3}
    )
    choice = found.choices[0]
    scores = served.model(torch.tensor([ids]), 3)[0].log_softmax(-1)
    assert choice.text == served.tokenizer.decode(ids)
    assert choice.logprobs.token_logprobs[0] is None
    right = [float(scores[place, token]) for place, token in enumerate(ids[1:])]
    assert choice.logprobs.token_logprobs[1:] == pytest.approx(right, abs=1e-4)
    assert "".join(choice.logprobs.tokens) == choice.text


@torch.no_grad()
def test_lm_eval_measures_it(live, served, tmp_path):
    """Its own client, with the tokenizer it would load; the sums are the model's own."""
    import transformers
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    served.tokenizer.save(tmp_path)
    transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"), eos_token="<|endoftext|>", model_max_length=48
    ).save_pretrained(tmp_path)
    harness = LocalCompletionsAPI(
        base_url=f"{live.address}/v1/completions", model="tiny", tokenizer=str(tmp_path),
        tokenizer_backend="huggingface", batch_size=2, max_length=48, num_concurrent=1,
    )  # fmt: skip
    pairs = [("the state", " moves from"), ("its anchor and", " rests"), ("the loop", " again")]
    asked = [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(pairs)]
    for (prompt, answer), (found, greedy) in zip(pairs, harness.loglikelihood(asked, disable_tqdm=True), strict=True):
        context, ids = served.tokenizer.encode(prompt), served.tokenizer.encode(prompt + answer)
        scores = served.model(torch.tensor([ids]), 4)[0].log_softmax(-1)
        places = range(len(context), len(ids))
        assert found == pytest.approx(sum(float(scores[place - 1, ids[place]]) for place in places), abs=1e-4)
        assert greedy == all(int(scores[place - 1].argmax()) == ids[place] for place in places)
    until = Instance("generate_until", {}, (PROMPT, {"until": ["\0never"], "max_gen_toks": 5}), 0)
    assert harness.generate_until([until], disable_tqdm=True) == [expected(served, PROMPT, count=5).text]
