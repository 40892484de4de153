"""The site of the documentation: every guide is a page, every link leads somewhere, nothing comes from elsewhere."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

import scse

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def builder():
    spec = importlib.util.spec_from_file_location("site_builder", ROOT / "docs" / "site" / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(builder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    assert builder.build(folder) == []
    return folder


def test_every_guide_is_in_the_navigation(builder, site):
    guides = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md")}
    assert guides <= set(builder.PAGES)
    assert len(set(builder.PAGES.values())) == len(builder.PAGES)
    index = (site / "index.html").read_text("utf-8")
    for page in (*builder.PAGES.values(), builder.REFERENCE):
        assert f'href="{page}"' in index


def test_every_public_name_is_in_the_reference(builder, site):
    reference = (site / "reference.html").read_text("utf-8")
    assert sorted(" ".join(builder.NAMES.values()).split()) == sorted(scse.__all__)
    for name in scse.__all__:
        assert f'id="{name}"' in reference


def test_nothing_is_loaded_from_elsewhere(site):
    for page in site.glob("*.html"):
        text = page.read_text("utf-8")
        assert not re.findall(r'(?:src|<link[^>]* href)="\w+:', text), page.name
        assert "<script" not in text
    assert "url(" not in (site / "style.css").read_text("utf-8")


def test_a_broken_link_would_be_seen(builder, tmp_path):
    (tmp_path / "a.html").write_text('<a href="b.html">b</a> <a href="#there">x</a> <h2 id="here"></h2>', "utf-8")
    assert sorted(builder.broken_links(tmp_path, ["a.html"])) == ["a.html: #there", "a.html: b.html"]
