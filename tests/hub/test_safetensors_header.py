"""Headers of weight files that are damaged, or lie."""

import json
import os
import resource
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file

from hf_seqmix.hub.safetensors_header import read_header


def write_header(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def test_weight_files_that_are_cut_short_or_no_weight_files(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.ones(4), "b": torch.ones(2, 3, dtype=torch.bfloat16)}, path)
    assert read_header(path) == {"a": ("F32", (4,)), "b": ("BF16", (2, 3))}
    whole = path.read_bytes()
    for size in (0, 5, 8, 30, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"x\.safetensors is cut short"):
            read_header(path)
    path.write_bytes(whole + b"more")
    with pytest.raises(ValueError, match="cut short or too long"):
        read_header(path)
    path.write_bytes(b"\xff" * 100)  # a header of 2^64 bytes
    with pytest.raises(ValueError, match="cut short"):
        read_header(path)
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 12345\n")
    with pytest.raises(ValueError, match=r"x\.safetensors is a pointer of Git LFS .*: run `git lfs pull`"):
        read_header(path)
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    for wrong in (
        b"[1, 2]",
        b"\x00\x01",
        b"{" * 3000,
        {"a": 1},
        {"a": {**entry, "shape": [-2]}},
        {"a": {**entry, "shape": [True, 2]}},
        {"a": {**entry, "shape": "ab"}},
        {"a": {**entry, "data_offsets": [0]}},
        {"a": {**entry, "dtype": 4}},
        {"a": {**entry, "shape": [10**30]}},
        {"a": entry, "b": entry},
        {"a": {**entry, "dtype": "X8"}},
        {"a": {**entry, "shape": [2**63]}},
        {"a": entry, "__metadata__": [1]},
        b'{"__metadata__": {"a": "\\ud800"}, ' + json.dumps({"a": entry}).encode()[1:],
        {"a": entry, "__metadata__": {"format": 5}},
        json.dumps({"a": entry}).encode("utf-16"),
        b"[" * 2**21,
        b"{" + b" " * 2**25 + b"}",
        b'{"a": ' + b"9" * 5000 + b"}",
    ):
        write_header(path, wrong, bytes(8))
        with pytest.raises(ValueError, match=r"x\.safetensors"):
            read_header(path)


def test_what_safetensors_reads_is_what_is_checked(tmp_path):
    """Doubled names and fields beside the format's own: the header read here is the one that weights are loaded by."""
    path = tmp_path / "x.safetensors"
    first, second = ({"dtype": "F32", "shape": shape, "data_offsets": [0, 8]} for shape in ([2], [1, 2]))
    doubled = f'{{"a": {json.dumps(first)}, "a": {json.dumps(second)}}}'
    for header in (doubled.encode(), {"a": {**first, "more": 1}}, b" " + json.dumps({"a": first}).encode()):
        write_header(path, header, bytes(8))
        loaded = {name: ("F32", tuple(tensor.shape)) for name, tensor in load_file(path).items()}
        assert read_header(path) == loaded


def test_a_long_header_is_not_read(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", 2**26) + b"{")
    os.truncate(path, 2**27)  # takes no room on the disk
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match="its header 67,108,864; at most 33,554,432 are read"):
        read_header(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**14  # KiB


@pytest.mark.parametrize("content", [b"\x80\x04" + b"x" * 500, b"PK\x03\x04" + bytes(300)], ids=["pickle", "zip"])
def test_pickles_are_refused(tmp_path, content):
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"x\.safetensors is cut short or no safetensors file"):
        read_header(tmp_path / "x.safetensors")


def test_what_is_no_file(tmp_path):
    for name in ("", "gone"):
        with pytest.raises(ValueError, match="cannot be read"):
            read_header(tmp_path / name)
