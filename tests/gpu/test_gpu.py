"""The whole story on a real GPU: `make test-gpu`. Without one everything here is skipped.

Nothing in this file has ever run; docs/gpu.md says what is expected of it.
"""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from runs import config_for, final_tensors, options, run, write_corpus
from scse.bench.training import StepBench
from scse.cli import main
from scse.devices import resolve_device
from scse.evaluation.adaptive import offline, online
from scse.evaluation.perplexity import perplexity_over_depths
from scse.evaluation.profile import profile
from scse.evaluation.rules import RULES, Stopping
from scse.generation import Depth, Generation, KVCache, Sampling, settle
from scse.generation.generate import stream
from scse.model import LoopedLM, model_config
from scse.testing import check_family
from scse.training.trainer import train
from tinymodels import TINY, some_ids, tiny

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
TOKENS = np.random.default_rng(0).integers(0, TINY.vocabulary, 16 * 9 + 6).astype(np.uint16)


@pytest.fixture(scope="module")
def device():
    return resolve_device("cuda")


@pytest.fixture
def no_waiting(device):
    """Whatever would make the host wait for the device raises."""
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def test_logits_and_gradients_are_the_hosts(family, device):
    host, there = tiny(family), tiny(family).to(device)
    ids, targets = some_ids(), some_ids(seed=6)
    torch.testing.assert_close(there(ids.to(device), 5).cpu(), host(ids, 5), rtol=1e-8, atol=1e-8)
    host.nll(ids, targets, 3).backward()
    there.nll(ids.to(device), targets.to(device), 3).backward()
    for name, parameter in host.named_parameters():
        if parameter.grad is not None:
            found = there.get_parameter(name).grad.cpu()
            torch.testing.assert_close(found, parameter.grad, rtol=1e-7, atol=1e-9)


def test_no_loop_waits(family, device, no_waiting):
    model = tiny(family, dtype=torch.float32).to(device).train()
    ids, targets = model.place(some_ids(), some_ids(seed=6))
    model.nll(ids, targets, 4).backward()
    with torch.no_grad():
        model.eval()(ids, 4)


def test_the_laws(family, device):
    """Equal bits are promised on one device only; a law that fails by rounding is worth a report."""
    assert [verdict.fault for verdict in check_family(family, device=device) if verdict.fault] == []


def test_compiled_equals_plain(family, device):
    torch._dynamo.reset()
    model, (ids,) = tiny(family, dtype=torch.float32, spread=0.08).to(device), (some_ids().to(device),)
    with torch.no_grad():
        plain = [model(ids, depth) for depth in (1, 8, 48)]
        model.compile_step()
        for depth, expected in zip((1, 8, 48), plain, strict=True):
            torch.testing.assert_close(model(ids, depth), expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_compiled_generation_equals_plain(family, device):
    torch._dynamo.reset()
    model = tiny(family, dtype=torch.float32, spread=0.08).to(device)
    wanted = Generation(Depth(3), 8, Sampling(0))
    plain = list(stream(model, [[3, 1, 4], [1]], wanted))
    model.compile_step()
    assert list(stream(model, [[3, 1, 4], [1]], wanted)) == plain


@torch.no_grad()
def test_a_token_is_captured_and_replayed(family, device):
    """One CUDA graph for all tokens after the third: it reads the id and the column where they always stand."""
    model, given = tiny(family, dtype=torch.float32, spread=0.08).to(device), some_ids(2, 10).to(device)
    expected, depth = model(given, 3), Depth(3)
    cache, ids = KVCache(model, 2, 3, 12, fixed=True), given[:, :1].clone()
    settle(model, given[:, :3], cache.append(3), depth)
    side = torch.cuda.Stream()  # a graph is captured after the same work has been done once elsewhere
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        ids.copy_(given[:, 3:4])
        settle(model, ids, cache.append(1), depth)
    torch.cuda.current_stream().wait_stream(side)
    ids.copy_(given[:, 4:5])
    view, graph = cache.append(1), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = model.head(settle(model, ids, view, depth).outputs)
    graph.replay()  # capturing computes nothing
    torch.testing.assert_close(logits, expected[:, 4:5], rtol=1e-4, atol=1e-4)
    for n in range(5, 10):
        ids.copy_(given[:, n : n + 1])
        cache.append(1)
        graph.replay()
        torch.testing.assert_close(logits, expected[:, n : n + 1], rtol=1e-4, atol=1e-4)


def test_evaluation_and_generation_are_the_hosts(device):
    host, there = tiny("scse", spread=0.08), tiny("scse", spread=0.08).to(device)
    for here, gpu in zip(*(perplexity_over_depths(m, TOKENS, [1, 8, 48]) for m in (host, there)), strict=True):
        assert gpu.ppl == pytest.approx(here.ppl, rel=1e-7)
    rule = RULES.find("update")
    (full,) = offline(there, TOKENS, Stopping(rule, 12, 4), [0.05])
    early = online(there, TOKENS, Stopping(rule, 12, 4), 0.05)
    assert np.abs(full.depths - early.depths).max() <= 1
    assert early.nll == pytest.approx(full.nll, rel=1e-3)
    wanted = Generation(Depth(6), 8, Sampling(0))
    texts = [[token.id for new in stream(m, [[3, 1, 4], [1]], wanted) for token in new] for m in (host, there)]
    assert texts[0] == texts[1]


def test_a_run_resumes_to_the_same_bits_on_one_device(tmp_path, device):
    corpus = write_corpus(tmp_path / "corpus")
    run(corpus, tmp_path / "whole", run_options={"device": "cuda"})
    whole = final_tensors(tmp_path / "whole")
    config = config_for(corpus)
    how = options(tmp_path / "cache", device="cuda")
    with pytest.MonkeyPatch.context() as patch:
        plainly = train.__globals__["Trainer"]._step

        def until_killed(trainer, step, meter):
            if step == 4:
                raise KeyboardInterrupt
            return plainly(trainer, step, meter)

        patch.setattr(train.__globals__["Trainer"], "_step", until_killed)
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "parts", how)
    assert train(config, tmp_path / "parts", how).finished
    for expected, found in zip(whole, final_tensors(tmp_path / "parts"), strict=True):
        assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_gpus_train_what_one_does(tmp_path, strategy):
    corpus = write_corpus(tmp_path / "corpus")
    run(corpus, tmp_path / "one", run_options={"device": "cuda"}, dropout=0.0, micro_batches=2)
    settings = {"tokenizer": "bpe-300", "width": 24, "heads": 2, "ff_width": 48, "context": 16, "batch": 4, "warmup": 2}
    settings |= {"lr": 3e-3, "max_loops": 3, "dropout": 0.0, "micro_batches": 2}
    told = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    how = ["--data", str(corpus), "--steps", "9", "--precision", "float32", "--strategy", strategy, "--quiet"]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "scse"]
    out = tmp_path / "two"
    subprocess.run([*command, "train", "--out", str(out), "--device", "cuda", *how, *told], check=True, timeout=300)
    one, two = final_tensors(tmp_path / "one")[0], final_tensors(out)[0]
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize(("scale", "sequences"), [("50m", 16), ("96m", 8)])
def test_profile_at_the_papers_shapes(scale, sequences, device):
    """The paper: 17.6 and 77.8 ms at 50M, 19.6 and 89.9 ms at 95.6M for SCSE, 1.3 GB, on a GPU it does not name."""
    model = LoopedLM(model_config("scse", scale)).to(device).eval()
    shallow, deep = profile(model, [8, 48], batch=sequences, length=128, repeats=7)
    weights = sum(p.numel() for p in model.parameters()) * 4 / 2**20
    assert shallow.peak_allocated_mib > weights
    assert deep.peak_allocated_mib < 1.2 * shallow.peak_allocated_mib
    assert shallow.latency_ms < deep.latency_ms


def test_bench_and_the_commands(tmp_path, device, capsys):
    rows = list(StepBench("mini", 1024, 2, device).run())
    assert any(row.unit == "GFLOP/s" and row.value > 0 for row in rows)
    folder = tmp_path / "run"
    run(write_corpus(tmp_path / "corpus"), folder, run_options={"device": "cuda"})
    for low in ([], ["--precision", "bfloat16"], ["--compile"]):
        told = ["--limit", "4", "--depths", "1,8", "--json", "--quiet"]
        assert main(["eval", str(folder), "--device", "cuda", *told, *low]) == 0
    first, *others = (json.loads(line)[-1]["ppl"] for line in capsys.readouterr().out.splitlines())
    assert all(other == pytest.approx(first, rel=0.02) for other in others)
