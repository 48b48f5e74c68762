"""A session on a GPU: a part that fails or lasts too long keeps no other from running, and the page says so."""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts" / "speed"
FAILS = "import sys; sys.exit(3)"
LASTS = "import time; time.sleep(60)"
WRITES = (
    "import sys, pathlib; folder = pathlib.Path(sys.argv[sys.argv.index('--output-dir') + 1]); "
    "(folder / 'decoding.jsonl').write_text('{}\\n'); (folder / 'decoding.md').write_text('a table'); print('said')"
)


@pytest.fixture(scope="module")
def scripts() -> Iterator[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        names = ("gpu_session", "gpu.page", "check_kernels", "timing.protocol")
        yield {name: importlib.import_module(name) for name in names}


def test_no_part_keeps_the_others_from_running(
    scripts: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = scripts["gpu_session"]
    programs = {"kernels": FAILS, "training": LASTS, "decoding": WRITES}
    parts = {name: session.PARTS[name]._replace(minutes=0.02) for name in programs}
    monkeypatch.setattr(session, "PARTS", parts)
    monkeypatch.setattr(
        session,
        "command_of",
        lambda name, device, work, minutes: [sys.executable, "-c", programs[name], "--output-dir", str(work)],
    )
    folder = tmp_path / "session"
    assert session.main([str(folder), *programs, "--device", "cpu", "--minutes", "5"]) == 1
    page = (folder / "session.md").read_text()
    assert "kernels: FAILED with status 3" in page
    assert "training: stopped at its limit" in page
    assert "decoding: ended" in page and "a table" in page
    assert page in capsys.readouterr().out
    assert (folder / "results.jsonl").read_text() == "{}\n"
    assert "said" in (folder / "session.log").read_text()
    assert len(list(folder.iterdir())) <= 8


def test_parts_that_have_no_time_are_named(scripts: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "session"
    assert scripts["gpu_session"].main([str(folder), "kernels", "--device", "cpu", "--minutes", "0.6"]) == 1
    assert "not begun" in (folder / "session.md").read_text(encoding="utf-8")


def test_every_part_ends_within_nine_minutes_and_names_a_script(scripts: dict[str, Any], tmp_path: Path) -> None:
    session = scripts["gpu_session"]
    for name, part in session.PARTS.items():
        assert part.minutes * 60 + session.GRACE <= 9 * 60
        for device in ("cpu", "cuda"):
            command = session.command_of(name, device, tmp_path, 1.0)
            assert command[1] == "-m" or Path(command[1]).is_file()


def test_what_cannot_run_is_refused(
    scripts: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for arguments, said in ((["nothing"], "the parts are kernels"), (["--device", "cuda"], "sees no GPU")):
        with pytest.raises(SystemExit):
            scripts["gpu_session"].main([str(tmp_path), *arguments])
        assert said in capsys.readouterr().err


def test_the_page_names_wrong_kernels_and_crossovers(
    scripts: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = scripts["check_kernels"]
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    command = ["--ops", "toeplitz_causal", "--lengths", "5", "--dtypes", "float32", "--channels", "4"]
    command += ["--head-width", "2", "--device", "cpu", "--output-dir", str(tmp_path / "kernels")]
    assert kernels.main(command) == 0
    written = (tmp_path / "kernels" / "check_kernels.jsonl").read_text()
    (tmp_path / "kernels" / "check_kernels.jsonl").write_text(written.replace('"right": true', '"right": false'))
    (tmp_path / "crossovers").mkdir()
    measured, in_force = {"ski": {"cpu": [[None, "torch"]]}}, {"ski": {"cpu": [[None, "native"]]}}
    (tmp_path / "crossovers" / "tune.json").write_text(json.dumps({"crossovers": measured, "in_force": in_force}))
    page = scripts["gpu.page"].page("here", [], tmp_path)
    assert "| toeplitz_causal | fft" in page and '"cpu": [(None, "torch")]' in page
    line = next(line for line in page.splitlines() if "| fft " in line)
    assert [cell.strip() for cell in line.split("|")][4:6] == ["1", "1"]


def test_a_wrong_case_ends_with_one_and_the_others_run(
    scripts: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = scripts["check_kernels"]

    def fails_at_five(candidate: Any) -> float:
        if candidate.build().inputs[0].shape[1] == 5:
            raise RuntimeError("does not compile")
        return 0.0

    monkeypatch.setattr(kernels, "error_of", fails_at_five)
    monkeypatch.setattr(kernels, "usable", lambda *_: ["torch"])
    command = ["--ops", "causal_sum", "--lengths", "5", "9", "--dtypes", "float32", "--channels", "4"]
    command += ["--head-width", "2", "--device", "cpu", "--output-dir", str(tmp_path)]
    assert kernels.main(command) == 1
    table = (tmp_path / "check_kernels.md").read_text()
    assert "2 cases, 1 wrong" in table and "RuntimeError: does not compile" in table


def test_a_fault_that_takes_the_gpu_along_is_the_only_one_of_its_run(
    scripts: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels = scripts["check_kernels"]
    begun: list[int] = []
    faulty = {5, 7}

    def error_of(candidate: Any) -> float:
        begun.append(candidate.build().inputs[0].shape[1])
        if begun[-1] in faulty:
            raise RuntimeError("illegal memory access")
        return 0.0

    monkeypatch.setattr(kernels, "error_of", error_of)
    monkeypatch.setattr(kernels, "usable", lambda *_: ["torch"])
    monkeypatch.setattr(kernels, "is_lost", lambda device: begun[-1] == 5)
    command = ["--ops", "causal_sum", "--lengths", "5", "7", "9", "--dtypes", "float32", "--channels", "4"]
    command += ["--head-width", "2", "--device", "cpu", "--output-dir", str(tmp_path)]
    for expected in ([5], [7, 9, 5], [5]):  # a fault is tried again, after the cases that were not begun
        begun.clear()
        assert kernels.main(command) == 1
        assert begun == expected
    said = capsys.readouterr().err
    assert "a fault left cpu of no use" in said and "2 cases were not begun: run" in said
    assert "3 cases, 2 wrong, 0 not begun" in (tmp_path / "check_kernels.md").read_text()
    faulty.clear()
    assert kernels.main(command) == 0


def test_a_gpu_is_lost_where_waiting_for_it_fails(scripts: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(device: str) -> None:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    is_lost = scripts["check_kernels"].is_lost
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    assert not is_lost("cuda")
    monkeypatch.setattr(torch.cuda, "synchronize", fails)
    assert is_lost("cuda:0") and not is_lost("cpu")


def test_heads_at_both_ends_are_checked(
    scripts: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = scripts["check_kernels"]
    forms = importlib.import_module("operations.forms").OPS[kernels.TUNED["causal_sum"]].forms
    whole = forms["ours"].product

    def first_head_alone(*inputs: Any) -> Any:
        product = whole(*inputs)
        kept = torch.zeros_like(product)
        kept[0, :, 0] = 1
        return product * kept

    monkeypatch.setitem(forms, "ours", forms["ours"]._replace(product=first_head_alone))
    monkeypatch.setattr(kernels, "usable", lambda *_: ["torch"])
    command = ["--ops", "causal_sum", "--lengths", "9", "--dtypes", "float32", "--channels", "4"]
    command += ["--head-width", "2", "--device", "cpu", "--output-dir", str(tmp_path)]
    assert kernels.main(command) == 1
    monkeypatch.setitem(forms, "ours", forms["ours"]._replace(product=whole))
    assert kernels.main([*command[:-1], str(tmp_path / "right")]) == 0


def test_time_is_over_after_its_minutes(scripts: dict[str, Any]) -> None:
    made = scripts["timing.protocol"].Time
    assert not made(None).is_over() and not made(1.0).is_over()
    assert made(0.0).is_over()
