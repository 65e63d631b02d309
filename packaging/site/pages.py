"""Makes README.md the site's first page, and turns links to files outside docs/ into their names; a hook of MkDocs."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
#: A link with its text, or a picture; `(?<!!)` leaves pictures alone.
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")
_OF_DOCS = re.compile(r'((?:\]\(|src="|srcset="))docs/')


def on_files(files: Any, config: Any) -> Any:
    """Add the first page: README.md, with paths as docs/ has them."""
    from mkdocs.structure.files import File  # noqa: PLC0415 - MkDocs is in the site's environment only

    text = _OF_DOCS.sub(r"\1", (ROOT / "README.md").read_text(encoding="utf-8"))
    files.append(File.generated(config, "index.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:  # noqa: ARG001 - named by MkDocs
    """Leave the text of a link whose target is no page of the site."""
    folder = posixpath.dirname(page.file.src_uri)

    def told(found: re.Match[str]) -> str:
        text, target = found.groups()
        path = target.split("#")[0]
        if not path or re.match(r"[a-z]+:", target):
            return found.group()
        place = posixpath.normpath(posixpath.join(folder, path))
        if files.get_file_from_path(place) is not None:
            return found.group()
        source = posixpath.normpath(posixpath.join("docs", place))
        outside = source if place.startswith("..") or page.file.src_uri != "index.md" else place
        if not (ROOT / outside).exists():
            return found.group()  # MkDocs warns of it
        return f"{text} (`{outside}`)" if outside not in text else text

    return _LINK.sub(told, markdown)
