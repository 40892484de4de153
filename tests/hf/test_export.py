"""An exported run, through the installed command and in the libraries people use it with."""

from __future__ import annotations

import ast
import importlib
import json
import math
import os
import shutil
import subprocess
import sys
from itertools import count

import numpy as np
import pytest
import torch
import transformers
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer

import scse.hf
from runs import run, write_corpus
from runs import scse as command
from scse.cli import main as in_process
from scse.config import assemble
from scse.errors import RunFailure, UserError
from scse.evaluation.completion import complete, last_word_completions
from scse.hf.export import export, made_of
from scse.hf.remote import by_homes
from scse.runs import open_run

pytestmark = pytest.mark.filterwarnings("ignore")
TEXT = "the state moves from its anchor"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A trained run, and what the installed command exports of it."""
    base = tmp_path_factory.mktemp("export")
    run(write_corpus(base / "corpus"), base / "run")
    made = command(
        ["export", str(base / "run"), str(base / "out"), "--loops", "3", "--cache-dir", str(base / "cache"), "--json"]
    )
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["loops"] == 3
    return base


@pytest.fixture
def loaded(folders):
    return AutoModelForCausalLM.from_pretrained(folders / "out"), AutoTokenizer.from_pretrained(folders / "out")


@torch.no_grad()
def test_the_folder_loads_with_the_auto_classes(folders, loaded):
    model, tokenizer = loaded
    opened = open_run(folders / "run")
    assert type(model) is scse.hf.ScseForCausalLM
    ids = torch.tensor([opened.tokenizer.encode(TEXT)])
    assert tokenizer(TEXT).input_ids == ids[0].tolist()
    assert tokenizer.decode(ids[0]) == TEXT
    assert torch.equal(model(ids).logits, opened.model(ids, 3))


def test_the_card_holds_the_measured_depth_response(folders):
    card = (folders / "out" / "README.md").read_text()
    arguments = ["--depths", "1,8", "--split", "validation", "--limit", "64", "--cache-dir", str(folders / "cache")]
    rows = json.loads(command(["eval", str(folders / "run"), *arguments, "--json"]).stdout)
    for row in rows:
        assert f"| {row['depth']} | {row['ppl']:.2f} |" in card


@torch.no_grad()
def test_perplexity_agrees_with_a_plain_computation_on_the_export(folders, loaded):
    """Windows, shift and token-weighting as a user of transformers would write them, in float64."""
    model = loaded[0].double()
    opened = open_run(folders / "run")
    tokens = opened.corpus(None, None, str(folders / "cache"), progress=False).split("test").tokens.astype(np.int64)
    total, count = 0.0, 0
    for first in range(0, len(tokens) - 1, 16):
        window = torch.from_numpy(tokens[first : first + 17])[None]
        logits = model(window[:, :-1], num_loops=5).logits[0]
        total += torch.nn.functional.cross_entropy(logits, window[0, 1:], reduction="sum").item()
        count += window.shape[1] - 1
    found = command(["eval", str(folders / "run"), "--depths", "5", "--json", "--cache-dir", str(folders / "cache")])
    (row,) = json.loads(found.stdout)
    assert row["tokens"] == count == len(tokens) - 1
    assert row["ppl"] == pytest.approx(math.exp(total / count), rel=1e-5)


# A process where our package is absent: it loads the libraries once and reads a folder in a fork for each line it gets.
WITHOUT_OUR_PACKAGE = """
import json, os, sys, traceback
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "scse":
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Absent())
import torch
from transformers import AutoModelForCausalLM, GenerationMixin, PreTrainedModel

def read(folder, trust, saved):
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=trust)
    ids = torch.tensor([[3, 9, 40, 7]])
    print("logits", model(ids, num_loops=4).logits.double().sum().item())
    print("generated", model.generate(ids, max_new_tokens=5, do_sample=False, num_loops=2).tolist())
    if saved:
        model.save_pretrained(saved)
    assert not any(name.partition(".")[0] == "scse" for name in sys.modules)

for line in sys.stdin:
    out, err, *asked = json.loads(line)
    process = os.fork()
    if process == 0:
        for place, file in ((1, out), (2, err)):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), place)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        code = 1
        try:
            read(*asked)
            code = 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def without_our_package(tmp_path_factory):
    """A function that loads a folder, with or without trust, where our package is absent, and may save it again."""
    base = tmp_path_factory.mktemp("elsewhere")
    process = subprocess.Popen(
        [sys.executable, "-c", WITHOUT_OUR_PACKAGE],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "HF_HOME": str(base / "home"), "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    numbers = count()

    def read(folder, trust, saved=None):
        number = next(numbers)
        out, err = base / f"{number}.out", base / f"{number}.err"
        process.stdin.write(json.dumps([str(out), str(err), str(folder), trust, saved and str(saved)]) + "\n")
        process.stdin.flush()
        code = int(process.stdout.readline())
        return subprocess.CompletedProcess([], code, out.read_text(), err.read_text())

    yield read
    process.stdin.close()
    process.stdout.close()
    process.wait()


@torch.no_grad()
@pytest.mark.usefixtures("one_thread")
def test_remote_code_works_without_our_package(folders, loaded, without_our_package):
    found = without_our_package(folders / "out", trust=True)
    assert found.returncode == 0, found.stderr
    ids = torch.tensor([[3, 9, 40, 7]])
    model = loaded[0]
    assert f"logits {model(ids, num_loops=4).logits.double().sum().item()}" in found.stdout
    assert f"generated {model.generate(ids, max_new_tokens=5, do_sample=False, num_loops=2).tolist()}" in found.stdout


@pytest.mark.usefixtures("one_thread")
def test_a_fine_tuned_model_loads_without_our_package_wherever_it_was_saved(loaded, without_our_package, tmp_path):
    """Saved by the package, then loaded and saved again where the package is absent: both folders are whole."""
    model = loaded[0]
    model.config.auto_map = None  # as after any change of the configuration
    with torch.no_grad():
        model.model.tokens.weight.mul_(1.25)
    first, second = tmp_path / "first", tmp_path / "second"
    model.save_pretrained(first)
    again = without_our_package(first, trust=True, saved=second)
    assert again.returncode == 0, again.stderr
    found = without_our_package(second, trust=True)
    assert found.returncode == 0, found.stderr
    with torch.no_grad():
        logits = model(torch.tensor([[3, 9, 40, 7]]), num_loops=4).logits.double().sum().item()
    assert f"logits {logits}" in again.stdout
    assert again.stdout == found.stdout


def test_only_the_main_process_writes(loaded, tmp_path):
    loaded[0].save_pretrained(tmp_path / "out", is_main_process=False)
    assert not list(tmp_path.rglob("*.py"))


@pytest.mark.parametrize("mask", [0o022, 0o077], ids=["022", "077"])
def test_what_is_exported_follows_the_umask(folders, tmp_path, mask):
    before = os.umask(mask)
    try:
        export(open_run(folders / "run"), tmp_path / "out", 3, cache_dir=str(folders / "cache"))
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()}
    assert "model.safetensors" in modes
    assert set(modes.values()) == {0o666 & ~mask}, modes


def test_a_folder_that_is_there_is_refused_before_anything_is_measured(folders, monkeypatch, capsys):
    def measured(*_, **__):
        pytest.fail("measured first")

    monkeypatch.setattr("scse.hf.export.perplexity_over_depths", measured)
    assert in_process(["export", str(folders / "run"), str(folders / "out"), "--quiet"]) == 2
    assert "already exists and is not empty" in capsys.readouterr().err


def test_nothing_in_a_folder_runs_unless_asked(folders, without_our_package, tmp_path):
    evil = tmp_path / "evil"
    shutil.copytree(folders / "out", evil)
    for source in evil.glob("*.py"):
        source.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    AutoModelForCausalLM.from_pretrained(evil)  # ours is registered, so the folder's code is not needed
    refused = without_our_package(evil, trust=False)
    assert refused.returncode != 0
    assert "trust_remote_code" in refused.stderr
    assert not (tmp_path / "ran").exists()


def test_pipeline_and_trainer(folders, loaded, tmp_path):
    model, tokenizer = loaded
    pipe = transformers.pipeline("text-generation", model=model, tokenizer=tokenizer)
    (answer,) = pipe(TEXT, max_new_tokens=4, num_loops=2, do_sample=False)
    assert answer["generated_text"].startswith(TEXT)
    ids = tokenizer([TEXT, "the loop rests ."] * 8, padding=True, return_tensors="pt")
    rows = [
        {"input_ids": i, "attention_mask": m, "labels": i.masked_fill(m == 0, -100)}
        for i, m in zip(ids.input_ids, ids.attention_mask, strict=True)
    ]
    before = {name: p.clone() for name, p in model.named_parameters()}
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=6, per_device_train_batch_size=4, learning_rate=1e-2, report_to=[],
        save_strategy="no", logging_steps=1, disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    assert any(not torch.equal(before[name], p) for name, p in model.named_parameters())


def test_lora_fine_tuning_trains_only_the_adapters(loaded):
    import peft

    model, tokenizer = loaded
    config = peft.LoraConfig(r=4, target_modules=["qkv", "out", "gate_up", "down"], task_type="CAUSAL_LM")
    tuned = peft.get_peft_model(model, config).train()
    ids = tokenizer(TEXT, return_tensors="pt").input_ids
    optimiser = torch.optim.Adam([p for p in tuned.parameters() if p.requires_grad], lr=3e-2)
    losses = []
    for _ in range(40):
        loss = tuned(input_ids=ids, labels=ids, num_loops=2).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 0.1
    assert all("lora" in name for name, p in tuned.named_parameters() if p.requires_grad)
    merged = tuned.eval().merge_and_unload()
    with torch.no_grad():
        assert float(merged(ids, labels=ids, num_loops=2).loss) < losses[0]


def test_lm_eval_agrees_with_scse_lambada(folders, tmp_path, monkeypatch):
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    import scse.hf.lm_eval as harness

    passages = [f"the state moves from its {'very ' * n}anchor and rests again" for n in range(9)]
    (tmp_path / "lambada").mkdir()
    lines = "".join(json.dumps({"text": text}) + "\n" for text in passages)
    (tmp_path / "lambada" / "test.jsonl").write_text(lines)
    monkeypatch.setenv("SCSE_DATA", str(tmp_path))
    monkeypatch.setenv("SCSE_CACHE", str(tmp_path / "cache"))
    manager = TaskManager(include_path=str(harness.TASKS), include_defaults=False)
    results = {}
    for model, arguments in (
        ("scse", f"path={folders / 'out'},num_loops=5"),
        ("hf", f"pretrained={folders / 'out'}"),
        ("scse", f"path={folders / 'out'}"),
    ):
        found = simple_evaluate(
            model, arguments, ["scse_lambada"], task_manager=manager, batch_size=4, bootstrap_iters=0, device="cpu"
        )
        results[arguments] = found["results"]["scse_lambada"]
    five, default_hf, default_ours = results.values()
    assert default_hf == default_ours
    opened = open_run(folders / "run")
    examples = list(last_word_completions(passages, opened.tokenizer))
    tokens = sum(example.answer for example in examples)
    for loops, theirs in ((5, five), (3, default_ours)):
        (ours,) = complete(opened.model, examples, [loops], 4)
        # lm-eval's perplexity is per answer, ours per token of the answers
        assert theirs["perplexity,none"] == pytest.approx(ours.target_ppl ** (tokens / len(examples)), rel=1e-4)
        assert theirs["acc,none"] == ours.exact_accuracy


def test_lm_eval_is_told_where_an_export_comes_from(tmp_path):
    from scse.hf.lm_eval import ScseLM

    with pytest.raises(UserError, match=r"no exported model in .*; write one with 'scse export RUN"):
        ScseLM(str(tmp_path))


def test_a_mistake_under_lm_eval_is_one_line(monkeypatch, capsys):
    import lm_eval.__main__ as theirs

    from scse.hf.lm_eval import ScseLM, main

    monkeypatch.setattr(sys, "argv", ["lm_eval"])
    monkeypatch.setattr(theirs, "cli_evaluate", lambda: ScseLM("nowhere"))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("scse: no exported model in nowhere")


GUEST = """import math
from scse import Anchor as Middle, family_of  # mine
from scse import (
    Coordinates,  # a base class
    register,
)

def later():
    from scse import train
    return train
"""


def test_a_guests_imports_find_the_modules_they_are_from(tmp_path):
    file = tmp_path / "guest.py"
    file.write_text(GUEST.replace(", family_of", ""))
    tree = ast.parse(by_homes(file))
    found = [(n.module, n.names[0].name, n.names[0].asname) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    homes = importlib.import_module("scse")._HOMES
    wanted = [("Anchor", "Middle"), ("Coordinates", None), ("register", None), ("train", None)]
    assert found == [(homes[name], name, other) for name, other in wanted]
    file.write_text(GUEST)
    with pytest.raises(UserError, match="unknown name of scse 'family_of'"):
        by_homes(file)
    file.write_text("import math, scse\n")
    with pytest.raises(UserError, match="py:1: an export can carry"):
        by_homes(file)


@pytest.mark.parametrize(
    ("arguments", "added"),
    [
        (["run", "--tasks", "scse_lambada"], True),
        (["run", "--include_path", "elsewhere"], False),
        (["--help"], False),
    ],
    ids=["run", "own tasks", "help"],
)
def test_our_tasks_are_added_to_lm_evals_command_line(monkeypatch, arguments, added):
    import lm_eval.__main__ as theirs

    from scse.hf.lm_eval import TASKS, main

    seen = []
    monkeypatch.setattr(sys, "argv", ["lm_eval", *arguments])
    monkeypatch.setattr(theirs, "cli_evaluate", lambda: seen.extend(sys.argv[1:]))
    main()
    assert seen == arguments + (["--include_path", str(TASKS)] if added else [])


@pytest.mark.parametrize(
    ("family", "settings", "said"),
    [
        (
            "scse",
            {},
            ["One Transformer block, applied `num_loops` times", "trained at depths 1 to 8."],
        ),
        (
            "huginn",
            {"prelude": 1, "core": 2, "coda": 3, "depths": "fixed:6"},
            ["2 Transformer blocks, applied", "1 before the loops and 3 after the loops applied once", "at depth 6."],
        ),
        ("looped", {"depths": "poisson:4/sequence"}, ["depths drawn as `poisson:4/sequence`"]),
        ("unshared-3", {}, ["One Transformer block for each of 3 steps, which share no weights."]),
    ],
)
def test_the_card_says_what_is_looped_and_how_deep_it_was_trained(family, settings, said):
    text = made_of(assemble(family, {"steps": 1, **settings}))
    assert [part for part in said if part not in text] == []


def test_the_card_says_when_the_text_to_measure_on_is_gone(folders, tmp_path, capsys):
    shutil.copytree(folders / "run", tmp_path / "run")
    (folders / "corpus").rename(folders / "moved")
    try:
        made = in_process(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--quiet", "--json"])
    finally:
        (folders / "moved").rename(folders / "corpus")
    assert made == 0, capsys.readouterr().err
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"Not measured: there is no file or folder {folders / 'corpus'}" in card
    assert "| loops |" not in card


class WithoutTransformers:
    """An import system that does not find the package."""

    def find_spec(self, name, *_):
        if name == "transformers":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_exporting_without_transformers_names_the_remedy(folders, tmp_path, monkeypatch, capsys):
    for name in [name for name in sys.modules if name.split(".")[0] == "transformers"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [WithoutTransformers(), *sys.meta_path])
    assert in_process(["export", str(folders / "run"), str(tmp_path / "new")]) == 2
    message = "scse: exporting needs the package 'transformers'; pip install 'scse[hf]'\n"
    assert capsys.readouterr().err == message


@pytest.mark.parametrize(("change", "message"), [
    (["{run}", "{out}"], "already exists and is not empty"),
    (["{run}", "{new}", "--loops", "0"], "loops must be at least 1"),
    (["{new}", "{new}2"], "no run in"),
])  # fmt: skip
def test_mistakes_get_one_line(folders, tmp_path, change, message):
    words = {"run": folders / "run", "out": folders / "out", "new": tmp_path / "new"}
    arguments = [word.format(**words) for word in change]
    made = command(["export", *arguments, "--quiet", "--cache-dir", str(folders / "cache")])
    assert made.returncode == 2
    assert message in made.stderr
    assert len(made.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "new").exists()
    assert not list(tmp_path.glob(".new*"))


def test_a_full_disk_is_one_failure_whatever_the_library_calls_it(folders, tmp_path, monkeypatch):
    def full(self, folder):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(scse.hf.ScseForCausalLM, "save_pretrained", full)
    with pytest.raises(RunFailure, match=r"No space left.*run the same command again"):
        export(open_run(folders / "run"), tmp_path / "out", 8, cache_dir=str(folders / "cache"))
    assert list(tmp_path.iterdir()) == []


def misspell_the_family(folder):
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"family": "scse"', '"family": "scze"'))


@pytest.mark.parametrize(("damage", "message"), [
    (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors"),
    (lambda folder: (folder / "model.safetensors").write_bytes(b"no"), ""),
    (misspell_the_family, "did you mean"),
])  # fmt: skip
def test_a_damaged_folder_does_not_load(folders, tmp_path, damage, message):
    copy = tmp_path / "copy"
    shutil.copytree(folders / "out", copy)
    damage(copy)
    with pytest.raises(Exception, match=message):
        AutoModelForCausalLM.from_pretrained(copy)
