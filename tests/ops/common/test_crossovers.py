"""Which implementation computes a call: the table, what is forced, and what a trial finds."""

import json
import sys

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from hf_seqmix.ops import forced, use_crossovers
from hf_seqmix.ops.common import backend, crossovers
from hf_seqmix.ops.common.backend import kernel_module
from hf_seqmix.ops.common.crossovers import implementation

CUDA = torch.device("cuda")


class Elsewhere:
    """Stands for a tensor on a device that is not there."""

    def __init__(self, device: torch.device = CUDA, dtype: torch.dtype = torch.bfloat16) -> None:
        self.device, self.dtype = device, dtype


@pytest.fixture(autouse=True)
def _restored():
    yield
    use_crossovers(None)


@pytest.fixture
def trusted(monkeypatch):
    """Trials pass, and Triton is there."""
    monkeypatch.setattr(backend, "_agrees", lambda *_: True)
    monkeypatch.setattr(backend, "kernel_module", lambda name: name)


def test_every_table_ends_without_a_limit_and_starts_with_a_form_for_all():
    for op, entry in crossovers.crossovers_in_force().items():
        for rows in entry.values():
            assert rows[-1][0] is None
            assert all(name in crossovers.IMPLEMENTATIONS[op] for _, name in rows)
    assert set(crossovers.KERNELS) < {name for names in crossovers.IMPLEMENTATIONS.values() for name in names}


def test_what_is_done_to_the_table_that_is_shown_changes_nothing():
    shown = crossovers.crossovers_in_force()
    shown["ski"]["cpu"].insert(0, (8, "torch"))
    shown["short_conv"]["cpu"] = []
    del shown["response"]
    after = crossovers.crossovers_in_force()
    assert after["ski"]["cpu"] == shown["ski"]["cpu"][1:] and after["short_conv"]["cpu"] and "response" in after


def test_the_table_decides_by_device_precision_and_length(trusted):
    cpu = torch.zeros(1)
    assert implementation("toeplitz_causal", cpu, 512) == "fft"
    for length, name in [(1, "tiles"), (764, "tiles"), (765, "monarch"), (16384, "monarch"), (16385, "fft")]:
        assert implementation("toeplitz_causal", Elsewhere(), length) == name
    assert implementation("toeplitz_causal", Elsewhere(dtype=torch.float32), 1024) == "monarch"
    assert implementation("toeplitz_causal", Elsewhere(dtype=torch.float64), 512) == "fft"
    assert implementation("toeplitz_bidirectional", Elsewhere(dtype=torch.float64), 512) == "fft"
    assert implementation("ski", Elsewhere(torch.device("mps")), 512) == "torch"


def test_a_table_from_a_file(trusted, tmp_path):
    path = tmp_path / "tuned.json"
    path.write_text(json.dumps({"crossovers": {"toeplitz_causal": {"cuda half": [[64, "fft"], [None, "tiles"]]}}}))
    use_crossovers(path)
    assert implementation("toeplitz_causal", Elsewhere(), 64) == "fft"
    assert implementation("toeplitz_causal", Elsewhere(), 65) == "tiles"
    assert implementation("toeplitz_bidirectional", Elsewhere(), 512) == "monarch"  # as by default
    use_crossovers(None)
    assert implementation("toeplitz_causal", Elsewhere(), 64) == "tiles"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"fourier": {}}, "'fourier' is no operation"),
        ({"ski": {"tpu": [[None, "torch"]]}}, "'tpu' is no kind of device"),
        ({"ski": {"cpu": [[None, "tiles"]]}}, "'tiles' is no implementation of 'ski'"),
        ({"ski": {"cuda torch": [[None, "fused"]]}}, "'fused' is no implementation of 'ski' for 'cuda torch'"),
        ({"ski": {"cpu": [[64, "torch"]]}}, "must end with one"),
        ({"ski": {"cpu": []}}, "must end with one"),
        ({"ski": {"cpu": [[64, "torch"], [64, "native"], [None, "torch"]]}}, "do not rise"),
        ({"ski": {"cpu": [[None, "torch"], [None, "native"]]}}, "must end with one"),
    ],
)
def test_tables_that_make_no_sense(table, message):
    before = crossovers.crossovers_in_force()
    with pytest.raises(ValueError, match=message):
        use_crossovers(table)
    assert crossovers.crossovers_in_force() == before


def test_a_file_that_is_no_table(tmp_path):
    path = tmp_path / "other.json"
    path.write_text("[]")
    with pytest.raises(ValueError, match=r"scripts/speed/tune\.py"):
        use_crossovers(path)


def test_forcing():
    x = torch.zeros(1)
    with forced(response="taps"):
        assert implementation("response", x, 8) == "taps"
        with forced(ski="torch", response=None):
            assert implementation("response", x, 8) == "transforms"
        assert implementation("response", x, 8) == "taps"
    assert implementation("response", x, 8) == "transforms"
    for names in ({"fourier": "fft"}, {"ski": "tiles"}):
        with pytest.raises(ValueError, match="names no implementation"), forced(**names):
            pass


def test_triton_takes_no_float64_and_no_cpu_unless_it_interprets(monkeypatch):
    with forced(toeplitz_causal="tiles"):
        assert implementation("toeplitz_causal", torch.zeros(1, dtype=torch.float64), 8) == "fft"
        monkeypatch.setenv("TRITON_INTERPRET", "0")
        assert implementation("toeplitz_causal", torch.zeros(1), 8) == "fft"


def test_without_triton_torch_computes(monkeypatch):
    monkeypatch.setattr(backend, "_modules", {})
    monkeypatch.setitem(sys.modules, "triton", None)
    for name in [name for name in sys.modules if name.startswith("hf_seqmix.ops.") and ".kernels" in name]:
        monkeypatch.delitem(sys.modules, name)
    assert kernel_module("toeplitz.kernels.tiles") is None
    assert implementation("toeplitz_causal", Elsewhere(), 512) == "fft"
    assert implementation("ski", Elsewhere(), 512) == "torch"
    with forced(toeplitz_causal="tiles"), pytest.raises(RuntimeError, match="pip install triton"):
        implementation("toeplitz_causal", Elsewhere(), 512)


@pytest.mark.parametrize("failure", ["off by 3", RuntimeError("out of shared memory")])
def test_a_kernel_that_fails_its_trial_is_not_used_and_said_once(monkeypatch, recwarn, failure):
    class Trials:
        calls = 0

        def fault(self, *arguments):
            Trials.calls += 1
            if isinstance(failure, Exception):
                raise failure
            return failure

    monkeypatch.setattr(backend, "_tried", {})
    monkeypatch.setattr(backend, "kernel_module", lambda name: Trials())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    with pytest.warns(UserWarning, match=f"torch computes instead: .*{failure}"):
        assert implementation("toeplitz_causal", Elsewhere(), 512) == "fft"
    assert implementation("toeplitz_causal", Elsewhere(), 300) == "fft"
    assert Trials.calls == 1
    assert implementation("ski", Elsewhere(), 300) == "torch"
    assert Trials.calls == 2
    assert implementation("toeplitz_causal", Elsewhere(dtype=torch.float16), 300) == "fft"
    assert Trials.calls == 3


def test_a_trial_within_a_checkpoint_leaves_the_checkpoint_alone(monkeypatch, recwarn):
    """The hooks of a checkpoint would count what a trial saves, and stop the trial."""
    monkeypatch.setattr(backend, "_tried", {})
    tried = []

    def double(x):
        tried.append(backend._agrees("causal_sum", "torch", x.device, x.dtype, 20))
        return torch.exp(x * 2)

    x = torch.randn(3, requires_grad=True)
    checkpoint(double, x, use_reentrant=False).sum().backward()
    assert tried == [True, True] and not recwarn
    assert torch.allclose(x.grad, 2 * torch.exp(2 * x))


def test_tensors_without_numbers_say_nothing_of_a_kernel(monkeypatch):
    monkeypatch.setattr(backend, "_tried", {})
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with FakeTensorMode():
        assert implementation("toeplitz_causal", torch.empty(1, 2, 8), 8) == "fft"
        with forced(toeplitz_causal="tiles"):
            assert implementation("toeplitz_causal", torch.empty(1, 2, 8), 8) == "fft"
    assert backend._tried == {}


def test_no_trial_while_a_graph_is_captured(monkeypatch):
    monkeypatch.setattr(backend, "_tried", {})
    monkeypatch.setattr(backend, "kernel_module", lambda name: object())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert implementation("toeplitz_causal", Elsewhere(), 512) == "fft"
    assert backend._tried == {}


def test_contexts_of_two_threads_that_overlap_leave_nothing_behind():
    first, second = forced(ski="fused"), forced(toeplitz_causal="fft")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert set(crossovers._forced) == {"toeplitz_causal"}
    second.__exit__(None, None, None)
    assert crossovers._forced == {}
