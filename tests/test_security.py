"""Nothing gets in: no call in the package that runs foreign data as code, and no name that leads out of its folder."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scse.data import DataConfig, open_corpus
from scse.errors import UserError
from scse.suites import SUITES
from scse.suites.presets import find_preset

PACKAGE = Path(__file__).parent.parent / "src" / "scse"
SOURCES = sorted(PACKAGE.rglob("*.py"))
# Calls that unpickle, evaluate text, or start a shell.
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_ATTRIBUTES = {("torch", "load"), ("os", "system"), ("os", "popen"), ("np", "load"), ("yaml", "load")}
FORBIDDEN_IMPORTS = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"}
LISTENING_IMPORTS = {"socket", "socketserver", "http", "asyncio", "starlette", "uvicorn"}
# The only modules that listen or ask: the live lens, on the loopback address alone (tests/lens/test_serve.py), and the
# server with its load test, on the loopback address unless told otherwise (tests/serve/test_server.py).
NETWORKED = {
    "lens/serve.py",
    *(f"serve/{name}.py" for name in ("app", "connection", "listener", "load", "server", "wire")),
}


def dangerous(tree: ast.AST, may_listen: bool = False) -> list[str]:
    """'line: what' for each use of something that must not be there."""
    found = []
    forbidden = FORBIDDEN_IMPORTS if may_listen else FORBIDDEN_IMPORTS | LISTENING_IMPORTS
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS:
            found.append(f"{node.lineno}: {node.func.id}()")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
            if (owner, node.func.attr) in FORBIDDEN_ATTRIBUTES:
                found.append(f"{node.lineno}: {owner}.{node.func.attr}()")
            if any(k.arg == "shell" and getattr(k.value, "value", False) for k in node.keywords):
                found.append(f"{node.lineno}: shell=True")
            if any(k.arg == "trust_remote_code" and getattr(k.value, "value", True) for k in node.keywords):
                found.append(f"{node.lineno}: trust_remote_code")
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        found += [f"{node.lineno}: import {name}" for name in names if name.partition(".")[0] in forbidden]
    return found


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: "/".join(path.parts[-2:]))
def test_no_dangerous_call(source):
    may_listen = source.relative_to(PACKAGE).as_posix() in NETWORKED
    assert dangerous(ast.parse(source.read_text("utf-8")), may_listen) == []


@pytest.mark.parametrize("line", [
    "eval(text)", "exec(text)", "torch.load(path)", "import pickle", "from pickle import loads", "os.system(x)",
    "import http.server",
    "subprocess.run(x, shell=True)", "AutoModel.from_pretrained(x, trust_remote_code=True)",
])  # fmt: skip
def test_the_search_would_find_it(line):
    assert dangerous(ast.parse(line))


@pytest.mark.parametrize("line", ["model.eval()", "re.compile(x)", "torch.compile(f)", "subprocess.run(x)"])
def test_the_search_does_not_cry_wolf(line):
    assert dangerous(ast.parse(line)) == []


NASTY = ["..", "../..", "../../etc", "/", "//", ".", "a/..", "a\\..\\b", "~", "-rf", "a\nb", "x" * 300, "é/ü", "a b"]


@given(corpus=st.sampled_from(NASTY) | st.text(min_size=1, max_size=30))
@settings(max_examples=150, derandomize=True, deadline=None)
def test_a_member_of_a_suite_stays_in_the_folder_of_runs(corpus):
    preset = find_preset("mini", data=corpus)
    for arm in SUITES.find("ablations").arms:
        name = preset.folder(arm)
        assert Path(name).name == name
        assert name not in ("", ".", "..")
        assert "\0" not in name
        assert len(name) < 120


@pytest.mark.parametrize("name", ["..", "a b", "<b>", "...", "-rf", "~", "é" * 60])
def test_tokens_stay_in_the_cache(tmp_path, name):
    """Whatever a text is called."""
    (tmp_path / "texts" / "deeper").mkdir(parents=True)
    folder = tmp_path / "texts" / "deeper" / name
    folder.mkdir(exist_ok=True)
    for split in ("train", "validation", "test"):
        (folder / f"{split}.txt").write_text("some words that are long enough " * 20)
    before = {path for path in tmp_path.rglob("*") if "cache" not in path.parts}
    try:
        corpus = open_corpus(DataConfig(str(folder), "bpe-280", None, str(tmp_path / "cache")), progress=False)
    except UserError as error:
        assert "\n" not in str(error)  # noqa: PT017
        return
    assert len(corpus.split("train").tokens) > 100
    assert {path for path in tmp_path.rglob("*") if "cache" not in path.parts} == before
