from __future__ import annotations

import os
import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from scse.data import DataConfig, Tokenizer, corpus_documents, open_corpus
from scse.data.encoding import SAFE_CUT, chunks, token_dtype
from scse.errors import UserError

PUBLISHED = Path(os.environ.get("SCSE_DATA") or Path(__file__).parents[2].parent / "shared" / "data")

# Weighted towards what the pre-tokeniser distinguishes: contractions, white space of many kinds, digits, other scripts.
SPACES = (" ", "  ", "\n", "\r\n", "\t", "\xa0", "\u3000", "\u2028", "\x1c", "\x85", "\u180e", "\u200b")
WORDS = ("a", "Zq", "1", "42", "²", "Ⅷ", "é", "e\u0301", "日本", "。", "🦊", "<|endoftext|>")
SIGNS = ("'s", "'", "'re", "'ll", "!", "--", "_", "\x00")
FRAGMENTS = st.sampled_from([*SPACES, *WORDS, *SIGNS])
TEXT = st.one_of(
    st.lists(FRAGMENTS, max_size=60).map("".join),
    st.text("\n a's1!", max_size=60),  # few characters, so that runs of white space that merge are common
    st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
)


def words(text: str) -> list[str]:
    return [word for word, _ in pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text)]


@settings(max_examples=400)
@given(TEXT, st.integers(1, 9), st.integers(1, 12))
def test_chunks_encode_as_the_whole_text_does(gpt2: Tokenizer, text: str, size: int, step: int) -> None:
    pieces = [text[i : i + step] for i in range(0, len(text), step)]
    cut = list(chunks(pieces, "text", size))
    assert "".join(cut) == text
    assert [word for chunk in cut for word in words(chunk)] == words(text)
    assert [i for ids in gpt2.encode_batch(cut) for i in ids] == gpt2.encode(text)


def test_every_safe_cut_is_a_boundary_of_the_pretokeniser() -> None:
    """For each character of the basic plane, before white space and before punctuation."""
    characters = [chr(c) for c in range(0x10000) if not 0xD800 <= c < 0xE000]
    text = "".join(f"a{c} b{c}'s" for c in characters)
    found = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text)
    boundaries = {start for _, (start, _) in found}
    cuts = [match.start() for match in SAFE_CUT.finditer(text)]
    assert len(cuts) > 60_000
    assert not [text[cut - 3 : cut + 3] for cut in cuts if cut not in boundaries]


def test_chunks_are_of_the_size_asked_for() -> None:
    lengths = [len(chunk) for chunk in chunks(["some words here\n"] * 10_000, "text", 1000)]
    assert max(lengths) < 1020
    assert min(lengths[:-1]) >= 1000


def test_text_without_white_space_is_cut_at_punctuation_or_kept_whole(gpt2: Tokenizer) -> None:
    minified = '{"key":12,"other":[1,2,3]},' * 2000
    cut = list(chunks([minified], "text", 500))
    assert max(map(len, cut)) < 600
    solid = "ab" * 20_000
    assert list(chunks([solid[:30_000], solid[30_000:]], "text", 500)) == [solid]


def test_text_without_any_place_to_cut_is_refused_beyond_a_bound(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "solid.txt"
    path.write_bytes(b"x" * 3_000_000)
    with pytest.raises(UserError, match=r"solid\.txt train: .*1,048,576 characters without white space"):
        open_corpus(DataConfig(str(path)), progress=False).split("train")
    assert not list(cache.glob("solid*"))
    with pytest.raises(UserError, match="without white space"):
        list(chunks(["y" * 2_000_000 + " end"], "one piece"))


def test_token_width_follows_the_vocabulary() -> None:
    assert token_dtype(65536) == np.uint16
    assert token_dtype(65537) == np.uint32


def test_documents_are_each_followed_by_the_separator(gpt2: Tokenizer, write_jsonl, tmp_path: Path) -> None:
    long = "many words of one document " * 3000
    texts = ["first", "", long, "last\n"]
    folder = write_jsonl(tmp_path / "docs" / "train.jsonl", texts).parent
    expected = [i for text in texts if text for i in [*gpt2.encode(text), gpt2.eot_id]]
    tokens = open_corpus(DataConfig(str(folder)), progress=False).split("train").tokens
    assert tokens.tolist() == expected


def test_batches_do_not_show(gpt2: Tokenizer, write_jsonl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(0)
    texts = ["word " * rng.randrange(9) for _ in range(300)]
    folder = write_jsonl(tmp_path / "docs" / "train.jsonl", texts).parent
    expected = [i for text in texts if text for i in [*gpt2.encode(text), gpt2.eot_id]]
    for characters, count in ((1, 4096), (50, 4096), (10**6, 1), (10**6, 7)):
        monkeypatch.setattr("scse.data.encoding.BATCH_CHARACTERS", characters)
        monkeypatch.setattr("scse.data.encoding.BATCH_TEXTS", count)
        config = DataConfig(str(folder), cache_dir=str(tmp_path / f"{characters}-{count}"))
        assert open_corpus(config, progress=False).split("train").tokens.tolist() == expected


def test_tokens_are_mapped_and_read_only(story: Path) -> None:
    split = open_corpus(DataConfig(str(story)), progress=False).split("train")
    assert isinstance(split.tokens, np.memmap)
    assert split.tokens.dtype == np.uint16
    with pytest.raises(ValueError, match="read-only"):
        split.tokens[0] = 1


def test_one_text_file_is_divided_without_loss(story: Path, gpt2: Tokenizer) -> None:
    corpus = open_corpus(DataConfig(str(story)), progress=False)
    parts = [gpt2.decode(corpus.split(name).tokens) for name in ("train", "val", "test")]
    text = story.read_text("utf-8")
    assert "".join(parts) == text
    assert all(part.endswith("\n") for part in parts)
    assert [round(len(part) / len(text), 2) for part in parts] == [0.9, 0.05, 0.05]


@given(st.text(st.sampled_from("aé日🦊\n"), min_size=1, max_size=150))
def test_division_never_splits_a_character(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("division") / "text.txt"
    path.write_bytes(text.encode())
    config = DataConfig(str(path))
    try:
        parts = ["".join(corpus_documents(config, name)) for name in ("train", "validation", "test")]
    except UserError as error:
        assert "too short to divide" in str(error)  # noqa: PT017 - only one of the two outcomes is an error
        assert len(text) < 90
    else:
        assert "".join(parts) == text
        assert all(parts)


@pytest.fixture
def wikitext(tmp_path: Path) -> Path:
    """A folder with a split as WikiText has it: blank lines of one space, headings, tokens set apart."""
    articles = (f" \n = Article {n} = \n \n The <unk> of {n} , a town ; it 's old . \n \n \n" for n in range(300))
    folder = tmp_path / "published" / "wikitext-2-v1"
    folder.mkdir(parents=True)
    (folder / "valid.txt").write_text("".join(articles), "utf-8")
    return folder


def test_wikitext_is_encoded_as_one_text(wikitext: Path, gpt2: Tokenizer) -> None:
    corpus = open_corpus(DataConfig("wikitext-2-v1", data_dir=str(wikitext.parent)), progress=False)
    assert corpus.split("valid").tokens.tolist() == gpt2.encode((wikitext / "valid.txt").read_text("utf-8"))


def test_wikitext_rows_of_the_hub_equal_the_text(wikitext: Path, write_parquet, write_jsonl, tmp_path: Path) -> None:
    """The hub's rows are the lines, blank ones stored as empty strings."""
    lines = (wikitext / "valid.txt").read_text("utf-8").splitlines(keepends=True)
    rows = [line if line.strip() else "" for line in lines]
    assert rows.count("") > 1000
    write_parquet(tmp_path / "a" / "wikitext-2-v1" / "validation-00000-of-00001.parquet", rows)
    write_jsonl(tmp_path / "b" / "wikitext-2-v1" / "validation.jsonl", rows)
    digests = {
        open_corpus(DataConfig("wikitext-2-v1", data_dir=str(root)), progress=False).split("validation").digest
        for root in (wikitext.parent, tmp_path / "a", tmp_path / "b")
    }
    assert len(digests) == 1


if (PUBLISHED / "wikitext-2-v1").is_dir():  # the numbers of the published files, where they lie on this machine

    def test_published_wikitext_has_its_known_number_of_tokens() -> None:
        corpus = open_corpus(DataConfig("wikitext-2-v1", data_dir=str(PUBLISHED)), progress=False)
        counts = [len(corpus.split(name).tokens) for name in ("valid", "test")]  # the other takes eight times as long
        assert counts == [258_659, 295_877]


def test_stdlib_is_there_and_divided_by_file(gpt2: Tokenizer) -> None:
    config = DataConfig()
    groups = {name: list(corpus_documents(config, name)) for name in ("train", "validation", "test")}
    sizes = {name: sum(map(len, texts)) for name, texts in groups.items()}
    assert sum(sizes.values()) > 5_000_000
    assert 0.8 < sizes["train"] / sum(sizes.values()) < 0.96
    assert all(len(texts) > 10 for texts in groups.values())
    corpus = open_corpus(config, progress=False)
    tokens = corpus.split("test").tokens
    assert corpus.name == "stdlib"
    assert np.count_nonzero(tokens == gpt2.eot_id) == sum(1 for text in groups["test"] if text)
    ends = [-1, *np.flatnonzero(tokens == gpt2.eot_id).tolist()]
    decoded = [gpt2.decode(tokens[start + 1 : stop]) for start, stop in pairwise(ends)]
    assert decoded == [text for text in groups["test"] if text]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak memory is read from /proc")
def test_memory_stays_flat(tmp_path: Path) -> None:
    """20 MB of text take no more memory than 1 MB does; as Python's lists, their tokens would take 60 MB."""
    vocabulary = ["the", "of", "international", "government", "development", "environment", "administration"]
    rng = random.Random(0)
    script = (
        "import re, sys; from pathlib import Path; from scse.data import *;"
        "tokens = open_corpus(DataConfig(sys.argv[1]), progress=False).split('train').tokens;"
        # ru_maxrss would include the memory of the parent that was forked.
        "print(len(tokens), re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])"
    )
    found = {}
    for megabytes in (1, 20):
        path = tmp_path / f"{megabytes}.txt"
        with path.open("w") as handle:
            for _ in range(megabytes):
                block = " ".join(rng.choices(vocabulary, k=1000)) + "\n"
                handle.write(block * (1_000_000 // len(block)))
        done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
        found[megabytes] = list(map(int, done.stdout.split()))
    assert found[20][0] > 1_500_000
    assert found[20][1] < found[1][1] + 15_000


def test_importing_is_light() -> None:
    script = (
        "import sys, scse.data;"
        "print([m for m in ('torch', 'tokenizers', 'pyarrow', 'datasets', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
