"""A page with everything inside."""

import base64
import re

from hf_seqmix.analysis.inside.page import Section, write_page


def test_a_page_needs_no_other_file(tmp_path):
    picture = tmp_path / "a.png"
    picture.write_bytes(b"\x89PNG\r\n")
    rows = [{"layer": 0, "rank": 1.26}, {"layer": 1, "rank": None}]
    section = Section("A & B", "1 < 2", picture, rows, {"layer": "layer", "rank": "rank:.1f"})
    write_page(tmp_path / "page.html", "<title>", "an introduction", [section])
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<h1>&lt;title&gt;</h1>" in text
    assert "<h2>A &amp; B</h2>" in text
    assert "<p>1 &lt; 2</p>" in text
    assert "<td>1.3</td>" in text
    assert "<td>-</td>" in text
    (source,) = re.findall(r'src="([^"]*)"', text)
    assert base64.b64decode(source.removeprefix("data:image/png;base64,")) == picture.read_bytes()
    assert not re.search(r"https?://", text)
