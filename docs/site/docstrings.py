"""Docstrings as Markdown: arguments become a list, examples become code."""

from __future__ import annotations

import re
from typing import Any

import griffe

ARGUMENT = re.compile(r"(\*{0,2}[a-z]\w*(?:, \*{0,2}[a-z]\w*)*)(\([^)]*\))?: (?=\S)")


class Docstrings(griffe.Extension):
    """Rewrite each docstring once it is read."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(text: str) -> str:
    """Paragraphs of `name: meaning` as lists, `>>>` examples as code, the rest as it is."""
    return "\n\n".join(_block(block) for block in re.split(r"\n\s*\n", text.strip()))


def _block(block: str) -> str:
    lines = block.splitlines()
    if lines[0].startswith(">>> "):
        return "\n".join(["```pycon", *lines, "```"])
    if lines[0].startswith("    "):
        return block
    first = next((index for index, line in enumerate(lines) if ARGUMENT.match(line)), None)
    # prose may have a colon: only a line at the beginning, or a run with indented lines, is an argument
    if first is None or (first > 0 and not _is_list(lines[first:])):
        return block
    # a second argument may follow the first one on its line
    lines[first:] = re.sub(r"\.  (?=[a-z]\w*: )", ".\n", "\n".join(lines[first:])).splitlines()
    head = ["\n".join(lines[:first]) + "\n"] if first else []
    return "\n".join([*head, *(_item(line) for line in lines[first:])])


def _is_list(lines: list[str]) -> bool:
    return all(ARGUMENT.match(line) or line.startswith("    ") for line in lines)


def _item(line: str) -> str:
    match = ARGUMENT.match(line)
    return f"* `{match[1]}{match[2] or ''}`: {line[match.end() :]}" if match else line
