"""One page of HTML with its pictures inside, which opens without a network."""

import base64
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..._files import write_text

__all__ = ["Section", "write_page"]

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.2rem; margin-top: 2.5rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { text-align: right; padding: .2rem .8rem; border-bottom: 1px solid #ddd }
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) { text-align: left }
img { max-width: 100%; height: auto } figcaption { color: #555 } figure, .table { margin: 1rem 0; overflow-x: auto }
"""


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        title: its heading.
        text: what a reader should know, plain.
        picture: PNG file that is put into the page, or None.
        rows: of a table below, or none.
        columns: key of a row -> header, which may end in a format, as in "stable rank:.1f".
    """

    title: str
    text: str = ""
    picture: Path | None = None
    rows: Sequence[Mapping[str, Any]] = ()
    columns: Mapping[str, str] = field(default_factory=dict)


def write_page(path: Path, title: str, introduction: str, sections: Sequence[Section]) -> None:
    """Write a page; everything that it shows is in the file.

    Args:
        path: the HTML file.
        title: heading and title of the page.
        introduction: below the heading, plain text.
        sections: in order.
    """
    parts = [f"<h1>{html.escape(title)}</h1>", f"<p>{html.escape(introduction)}</p>"]
    for section in sections:
        parts.append(f"<h2>{html.escape(section.title)}</h2>")
        if section.text:
            parts.append(f"<p>{html.escape(section.text)}</p>")
        if section.picture is not None:
            data = base64.b64encode(section.picture.read_bytes()).decode("ascii")
            parts.append(
                f'<figure><img alt="{html.escape(section.title)}" src="data:image/png;base64,{data}"></figure>'
            )
        if section.rows:
            parts.append(_table(section.rows, section.columns))
    name, body = html.escape(title), "\n".join(parts)
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{name}</title>'
    document = f"<head>{head}<style>{_STYLE}</style></head>\n<body>\n{body}\n</body>"
    write_text(path, f'<!doctype html>\n<html lang="en">\n{document}\n</html>\n')


def _table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> str:
    known = {key: header.rpartition(":") if ":" in header else (header, "", "") for key, header in columns.items()}
    header = "".join(f"<th>{html.escape(name)}</th>" for name, _, _ in known.values())
    lines = []
    for row in rows:
        cells = [
            "-" if row.get(key) is None else format(row[key], form) if form else str(row[key])
            for key, (_, _, form) in known.items()
        ]
        lines.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
    table = f"<table><thead><tr>{header}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    return f'<div class="table">{table}</div>'
