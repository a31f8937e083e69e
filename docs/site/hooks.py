"""What the site shows beyond docs/: README, changelog, figures of results/, a gallery, the API reference."""

from __future__ import annotations

import importlib
import posixpath
import re
import types
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PAGES = {  # page of the site -> file of the repository
    "index.md": "README.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "benchmarks/RESULTS.md": "benchmarks/RESULTS.md",
}
PACKAGES = (
    "hmcvi", "kernels", "flows", "dynamics", "models", "networks", "objectives", "sampling", "adaptation",
    "evidence", "pyro", "training", "data",
)  # fmt: skip
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)#:\s]*)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is not in docs/."""
    for uri, path in PAGES.items():
        files.append(File.generated(config, uri, content=(ROOT / path).read_text()))
    for path in [*ROOT.glob("results/*/*.png"), *ROOT.glob("results/*/*/*.png"), *linked_results()]:
        files.append(File.generated(config, str(path.relative_to(ROOT)), abs_src_path=str(path)))
    files.append(File.generated(config, "gallery.md", content=gallery()))
    files.append(File.generated(config, "api/index.md", content=overview()))
    for package in PACKAGES:
        files.append(File.generated(config, f"api/{package}.md", content=reference(package)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead the links of the repository to their pages; of what is not on the site the text remains."""
    here = page.file.src_uri
    folder = posixpath.dirname(PAGES.get(here, f"docs/{here}"))

    def replaced(match: re.Match[str]) -> str:
        image, text, link, anchor = match[1], match[2], match[3], match[4] or ""
        if not link:
            return match[0]
        uri = uri_of(posixpath.normpath(posixpath.join(folder, link)))
        if files.get_file_from_path(uri) is None:
            return text
        return f"{image}[{text}]({posixpath.relpath(uri, posixpath.dirname(here) or '.')}{anchor})"

    parts = re.split(r"(^```.*?^```)", markdown, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else LINK.sub(replaced, part) for part in parts)


def uri_of(path: str) -> str:
    """The page of a file of the repository."""
    pages = {file: page for page, file in PAGES.items()}
    if path in ("docs/notes", "docs"):
        path = f"{path}/README.md"
    return pages.get(path, path.removeprefix("docs/"))


def linked_results() -> list[Path]:
    """Files of figures that a document links to."""
    text = "".join(path.read_text() for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
    names = set(re.findall(r"\((?:\.\./)*(results/[^)#]*\.jsonl?)\)", text))
    return [ROOT / name for name in sorted(names)]


def gallery() -> str:
    """All figures, each with the document that explains it."""
    text = ["# Gallery", "Every figure is made by a command of the repository; click it to read how.", ""]
    text.append('<div class="gallery" markdown>')
    for path in sorted((ROOT / "docs").glob("*.md")):
        title = path.read_text().splitlines()[0].lstrip("# ")
        for caption, link in re.findall(r"^!\[([^\]]*)\]\(([^)]*)\)", path.read_text(), re.MULTILINE):
            image = uri_of(posixpath.normpath(f"docs/{link}"))
            text.append(f"[![{caption}]({image})<br>{title}: {caption}]({path.name})\n")
    return "\n".join([*text, "</div>", ""])


def overview() -> str:
    """One line for each package, and its names."""
    lines = ["# Reference", ""]
    for package in PACKAGES:
        module = module_of(package)
        names = ", ".join(f"[`{name}`][{module.__name__}.{name}]" for name in public(module))
        lines += [f"## [{module.__name__}]({package}.md)", summary(module), "", names, ""]
    return "\n".join(lines)


def reference(package: str) -> str:
    """Each public name with its docstring."""
    module = module_of(package)
    lines = [f"# {module.__name__}", "", summary(module), ""]
    lines += [f"::: {module.__name__}.{name}\n" for name in public(module)]
    return "\n".join(lines)


def summary(module: types.ModuleType) -> str:
    return (module.__doc__ or "").strip().split("\n\n")[0].replace("\n", " ")


def module_of(package: str) -> types.ModuleType:
    return importlib.import_module("hmcvi" if package == "hmcvi" else f"hmcvi.{package}")


def public(module: types.ModuleType) -> list[str]:
    """Classes and functions that the module offers: what `__all__` says, or else what it defines itself."""

    def is_own(value: Any) -> bool:
        return isinstance(value, (type, types.FunctionType)) and value.__module__ == module.__name__

    names = getattr(module, "__all__", None)
    if names is None:
        names = [name for name, value in vars(module).items() if is_own(value) and not name.startswith("_")]
    return sorted(
        (name for name in names if not isinstance(getattr(module, name), types.ModuleType)), key=str.lower
    )
