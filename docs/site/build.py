"""The documentation as a site: python docs/site/build.py [FOLDER]

Every guide becomes a page, and the public names of `scse` become the reference. Nothing is fetched while it is built or
read. A link that leads nowhere ends the build with its name.
"""

from __future__ import annotations

import inspect
import re
import shutil
import sys
from collections.abc import Iterator
from html import escape, unescape
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markdown import Markdown
from markdown.extensions.toc import TocExtension, slugify_unicode

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
REFERENCE = "reference.html"
# The pages in the order of the navigation, by the Markdown they come from.
SECTIONS = {
    "Start": ["README.md", "docs/concepts.md", "docs/equations.md", "docs/readings.md"],
    "Use": [
        *("docs/data.md", "docs/training.md", "docs/evaluation.md", "docs/diagnostics.md", "docs/lens.md"),
        *("docs/generation.md", "docs/serving.md", "docs/problems.md", "docs/operations.md", "docs/cluster.md"),
        "docs/gpu.md",
    ],
    "Extend": ["docs/extending.md", "docs/adding-a-family.md", "docs/rivals.md", "CONTRIBUTING.md"],
    "Results": [
        *("docs/reproducing.md", "docs/report.md", "results/README.md", "docs/negative-results.md"),
        *("docs/benchmarks.md", "CHANGELOG.md"),
    ],
}


def page_name(source: str) -> str:
    """The file of the page that a Markdown file becomes."""
    if source == "README.md":
        return "index.html"
    path = Path(source)
    stem = path.parent.name if path.stem == "README" else path.stem.lower()
    return f"{stem}.html"


# The public names by what they are for, in the order of the reference.
NAMES = {
    "Commands as functions": "train open_run evaluate diagnose generate lens export load_model save_model",
    "Models": "LoopedLM State unroll deviation_map model_config ModelConfig Shape",
    "Runs": "Run RunOptions TrainConfig Selection UserError",
    "Families of your own": (
        "Family FAMILIES family check_family Recurrence Unit Anchor Drive SharedCore Coordinates Deviation Hidden"
    ),
    "Other things of your own": (
        "register import_guest Task Column Evaluated Suite Arm ExitRule Problem Examples DocumentCorpus DepthSampler "
        "Term"
    ),
}

PAGES = {source: page_name(source) for sources in SECTIONS.values() for source in sources}


def converter() -> Markdown:
    return Markdown(extensions=["tables", "fenced_code", "sane_lists", TocExtension(slugify=slugify_unicode)])


def page_of(source: str, out: Path) -> tuple[str, str]:
    """(title, HTML) of a Markdown file. Its links are turned to pages; other files it links to are copied."""
    text = (ROOT / source).read_text("utf-8")
    html = converter().convert(text)

    def turned(match: re.Match[str]) -> str:
        target, _, anchor = unescape(match[2]).partition("#")
        if not target or re.match(r"\w+:", target):
            return match[0]
        path = (ROOT / source).parent.joinpath(target).resolve()
        inside = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else target
        if inside in PAGES:
            inside = PAGES[inside]
        elif path.is_file():
            (out / inside).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, out / inside)
        return f'{match[1]}="{escape(inside + ("#" + anchor if anchor else ""))}"'

    title = re.search(r"^# (.+)$", text, re.MULTILINE)
    return title[1] if title else source, re.sub(r'(href|src)="([^"]*)"', turned, html)


def reference() -> str:
    """The public names of the package with their signatures and docstrings, as HTML."""
    import scse

    index, entries = [], []
    for group, names in NAMES.items():
        links = ", ".join(f'<a href="#{name}"><code>{name}</code></a>' for name in names.split())
        index.append(f"<tr><td>{escape(group)}</td><td>{links}</td></tr>")
        entries += [entry(name, getattr(scse, name)) for name in names.split()]
    return "\n".join(["<table>", *index, "</table>", *entries])


def entry(name: str, value: Any) -> str:
    parts = [f'<section id="{name}"><h2><code>{name}</code></h2>']
    if inspect.isclass(value) or inspect.isroutine(value):
        parts.append(f"<pre><code>{escape(name + signature(value))}</code></pre>")
        parts.append(f"<p class=home>in <code>{value.__module__}</code></p>")
    elif not inspect.ismodule(value):
        held = ", ".join(f"<code>{escape(key)}</code>" for key in (value.names() if is_table(value) else value))
        parts.append(f"<p class=home>a value of type <code>{type(value).__name__}</code></p><p>It holds {held}.</p>")
    if inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value):
        parts.append(words(value))
    if inspect.isclass(value):
        parts += [
            f"<h3><code>{escape(method + signature(member))}</code></h3>{words(member)}"
            for method, member in vars(value).items()
            if not method.startswith("_") and inspect.isroutine(getattr(value, method)) and inspect.getdoc(member)
        ]
    return "".join([*parts, "</section>"])


def is_table(value: Any) -> bool:
    from scse.registry import Registry

    return isinstance(value, Registry)


def signature(value: Any) -> str:
    try:
        stated = str(inspect.signature(getattr(value, "__func__", value)))
        return re.sub(r"(: |-> )'([^']*)'", r"\1\2", stated)  # annotations are strings here, and read better bare
    except (TypeError, ValueError):
        return "(…)"


def words(value: Any) -> str:
    """A docstring as paragraphs; code in back quotes."""
    text = re.sub("`([^`]+)`", r"<code>\1</code>", escape(inspect.getdoc(value) or ""))
    return "".join(f"<p>{paragraph}</p>" for paragraph in text.split("\n\n") if paragraph)


def build(out: Path) -> list[str]:
    """Write the site; the names of links that lead nowhere."""
    out.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(HERE / "style.css", out / "style.css")
    template = Environment(loader=FileSystemLoader(HERE), autoescape=True).get_template("page.html.j2")
    written = {PAGES[source]: page_of(source, out) for source in PAGES}
    written[REFERENCE] = ("Reference", f"<h1>Reference</h1>{reference()}")
    menu = {section: [(PAGES[s], written[PAGES[s]][0]) for s in sources] for section, sources in SECTIONS.items()}
    menu["Extend"].append((REFERENCE, "Reference"))
    for name, (title, body) in written.items():
        (out / name).write_text(template.render(title=title, body=body, menu=menu, current=name), "utf-8")
    return sorted(broken_links(out, list(written)))


def broken_links(out: Path, pages: list[str]) -> Iterator[str]:
    text = {name: (out / name).read_text("utf-8") for name in pages}
    anchors = {name: set(re.findall(r'\bid="([^"]+)"', html)) for name, html in text.items()}
    for name, html in text.items():
        for link in map(unescape, re.findall(r'(?:href|src)="([^"]*)"', html)):
            target, _, anchor = link.partition("#")
            if re.match(r"\w+:", link):
                continue
            lost = bool(target) and not (out / target).is_file()
            if lost or (anchor and anchor not in anchors.get(target or name, set())):
                yield f"{name}: {link}"


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "build/site")
    if broken := build(folder):
        raise SystemExit("these links lead nowhere:\n" + "\n".join(broken))
    print(f"{folder / 'index.html'}: {len(PAGES) + 1} pages")
