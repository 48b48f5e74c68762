"""The operator of SKI in C against dense matrices; how its library is made, kept, checked and gone without."""

import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from hf_seqmix.ops import forced
from hf_seqmix.ops.common.crossovers import implementation
from hf_seqmix.ops.short_convolution.product import short_conv_dense
from hf_seqmix.ops.ski import c_library, native
from hf_seqmix.ops.ski.interpolation import InducingGrid
from hf_seqmix.ops.ski.product import ski_matmul_dense, sparse_low_rank_matmul
from tests.tolerances import assert_close

needs_compiler = pytest.mark.skipif(
    not any(shutil.which(name) for name in (os.environ.get("CC") or "cc", "gcc", "clang")),
    reason="there is no C compiler here",
)

SIZES = [
    (1, 1, 1, 2, 1),
    (1, 16, 2, 2, 5),
    (3, 5, 13, 4, 3),
    (1, 17, 37, 7, 33),
    (2, 35, 97, 11, 17),
    (3, 64, 300, 20, 33),
    (1, 3, 1021, 64, 9),
]  # batch, channels, length, points, taps


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The library, in a cache folder of this module's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("HF_SEQMIX_NATIVE", raising=False)
        forget(patch)
        yield native.build()


@pytest.fixture
def unbuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A process that has not built anything, with an empty cache folder, which is returned."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("HF_SEQMIX_NATIVE", raising=False)
    # Compiled in a fifth of the time; `library` has the code as users have it.
    monkeypatch.setattr(c_library, "_FLAGS", ("-O0", *c_library._FLAGS[1:]))
    forget(monkeypatch)
    return tmp_path


def forget(patch: pytest.MonkeyPatch) -> None:
    for name, value in (("_library", None), ("_trusted", None), ("_failed", False)):
        patch.setattr(native, name, value)


def inputs(
    size: tuple[int, ...], degree: int, dtype: torch.dtype = torch.float32
) -> tuple[list[Tensor], InducingGrid]:
    batch, channels, length, points, taps = size
    grid = InducingGrid(max(length, points), points, degree)
    x = torch.randn(batch, length, channels).to(dtype).mT
    kernel = torch.randn(channels, 2 * grid.points(length) - 1) / points
    return [t.requires_grad_() for t in (x, torch.randn(channels, taps) / taps**0.5, kernel)], grid


def dense(x: Tensor, taps: Tensor, kernel: Tensor, grid: InducingGrid) -> Tensor:
    x, taps, kernel = (t.double() for t in (x, taps, kernel))
    return short_conv_dense(x, taps) + ski_matmul_dense(x, kernel, grid)


def with_gradients(tensors: list[Tensor], grid: InducingGrid, g: Tensor) -> list[Tensor]:
    """The result by the kernel and its gradients."""
    with forced(ski="native"):
        y = sparse_low_rank_matmul(*tensors, grid)
        assert type(y.grad_fn).__name__ == "_NativeBackward"
        return [y.detach(), *torch.autograd.grad(y, tensors, g)]


@needs_compiler
class TestResults:
    @pytest.fixture(autouse=True)
    def built(self, library: Path, poisoned_empty: None) -> None:
        """Every result is written to memory that holds NaN before."""

    @pytest.mark.parametrize("degree", [1, 3])
    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    @pytest.mark.one_in(2)
    def test_equal_the_dense_ones(self, size: tuple[int, ...], degree: int, dtype: torch.dtype) -> None:
        tensors, grid = inputs(size, degree, dtype)
        g = torch.randn_like(tensors[0])
        expected = dense(*tensors, grid)
        exact = [expected, *torch.autograd.grad(expected, tensors, g.double())]
        for found, value, of in zip(with_gradients(tensors, grid, g), exact, [tensors[0], *tensors], strict=True):
            assert found.dtype == of.dtype
            assert_close(found, value)

    @pytest.mark.parametrize("degree", [1, 3])
    def test_a_grid_longer_than_the_input(self, degree: int) -> None:
        grid = InducingGrid(1000, 101, degree)
        x, g = torch.randn(2, 3, 57), torch.randn(2, 3, 57)
        tensors = [x, torch.randn(3, 7), torch.randn(3, 2 * grid.points(57) - 1)]
        tensors = [t.requires_grad_() for t in tensors]
        expected = dense(*tensors, grid)
        exact = [expected, *torch.autograd.grad(expected, tensors, g.double())]
        for found, value in zip(with_gradients(tensors, grid, g), exact, strict=True):
            assert_close(found, value)

    def test_do_not_depend_on_the_number_of_threads(self) -> None:
        tensors, grid = inputs((5, 70, 83, 9, 5), 1)
        g = torch.randn_like(tensors[0])
        before = torch.get_num_threads()
        try:
            results = []
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                results.append(with_gradients(tensors, grid, g))
        finally:
            torch.set_num_threads(before)
        for other in results[1:]:
            assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))

    def test_layouts_in_memory_do_not_matter(self) -> None:
        tensors, grid = inputs((2, 19, 31, 5, 5), 1)
        x, taps, kernel = (t.detach() for t in tensors)
        g = torch.randn_like(x)
        expected = with_gradients(tensors, grid, g)
        every_other = torch.randn(2, 62, 19).mT[..., ::2].copy_(x)
        some_channels = torch.randn(2, 31, 40).mT[:, 3:22].copy_(x)
        for same in (x.contiguous(), every_other, some_channels):
            assert same.stride() != x.stride()
            moved = [same, taps.T.contiguous().T, kernel.T.contiguous().T]
            found = with_gradients([t.requires_grad_() for t in moved], grid, g.contiguous())
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
            assert found[0].transpose(1, 2).is_contiguous()
        one = torch.ones(()).expand(x.shape)
        for a, b in zip(with_gradients(tensors, grid, one), with_gradients(tensors, grid, one.clone()), strict=True):
            assert torch.equal(a, b)

    @pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2)])
    def test_some_gradients_alone(self, wanted: tuple[int, ...]) -> None:
        tensors, grid = inputs((2, 19, 31, 5, 5), 3)
        g = torch.randn_like(tensors[0])
        exact = torch.autograd.grad(dense(*tensors, grid), tensors, g.double())
        alone = [t.detach().requires_grad_(i in wanted) for i, t in enumerate(tensors)]
        with forced(ski="native"):
            sparse_low_rank_matmul(*alone, grid).backward(g)
        for i, (tensor, value) in enumerate(zip(alone, exact, strict=True)):
            assert (tensor.grad is not None) == (i in wanted)
            if tensor.grad is not None:
                assert_close(tensor.grad, value)

    def test_differentiate_twice(self) -> None:
        tensors, grid = inputs((2, 3, 13, 4, 5), 1)
        second = []
        for name in ("native", "torch"):
            with forced(ski=name):
                loss = sparse_low_rank_matmul(*tensors, grid).square().sum()
                first = torch.autograd.grad(loss, tensors, create_graph=True)
                second.append(torch.autograd.grad(sum(d.square().sum() for d in first), tensors))
        for a, b in zip(*second, strict=True):
            assert_close(a, b, factor=10)

    def test_nothing_given_is_overwritten(self) -> None:
        tensors, grid = inputs((2, 19, 31, 5, 5), 1)
        g = torch.randn_like(tensors[0])
        copies = [t.detach().clone() for t in (*tensors, g)]
        with_gradients(tensors, grid, g)
        assert all(torch.equal(a, b) for a, b in zip((*tensors, g), copies, strict=True))

    def test_only_arguments_are_kept_for_backward(self) -> None:
        tensors, grid = inputs((2, 19, 31, 5, 5), 1, torch.bfloat16)
        kept: list[Tensor] = []
        with forced(ski="native"), torch.autograd.graph.saved_tensors_hooks(kept.append, lambda t: t):
            sparse_low_rank_matmul(*tensors, grid)
        assert [t.data_ptr() for t in kept] == [t.data_ptr() for t in tensors]

    def test_are_of_torch_where_the_kernel_does_not_serve(self) -> None:
        tensors, grid = inputs((2, 3, 13, 4, 5), 1)
        with forced(ski="native"):
            y = sparse_low_rank_matmul(*(t.double() for t in tensors), grid)
        assert y.dtype == torch.float64
        assert type(y.grad_fn).__name__ == "_TorchProductBackward"
        assert native.serves(*tensors, points=4)
        assert not native.serves(*tensors, points=5000)
        with FakeTensorMode() as mode:
            assert not native.serves(mode.from_tensor(tensors[0]), points=4)

    def test_of_a_built_kernel_are_used_unless_torch_is_forced(self) -> None:
        x = torch.ones(1, 1, 3)
        assert implementation("ski", x, 3) == "native"
        assert implementation("ski", x.double(), 3) == "torch"
        with forced(ski="torch"):
            assert implementation("ski", x, 3) == "torch"


def test_nothing_is_compiled_unasked(unbuilt: Path) -> None:
    tensors, grid = inputs((2, 3, 13, 4, 5), 1)
    y = sparse_low_rank_matmul(*tensors, grid)
    assert type(y.grad_fn).__name__ == "_TorchProductBackward"
    assert list(unbuilt.iterdir()) == []
    with (
        forced(ski="native"),
        pytest.raises(RuntimeError, match=r"not built: call hf_seqmix.ops.ski.native.build\(\)"),
    ):
        sparse_low_rank_matmul(*tensors, grid)


@needs_compiler
def test_the_variable_builds_at_first_use(unbuilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_SEQMIX_NATIVE", "1")
    tensors, grid = inputs((2, 3, 13, 4, 5), 1)
    y = sparse_low_rank_matmul(*tensors, grid)
    assert type(y.grad_fn).__name__ == "_NativeBackward"
    path = native.build()
    assert path.parent == unbuilt / "hf_seqmix" / "native"
    made = path.stat().st_mtime_ns
    forget(monkeypatch)  # as in another process
    assert native.build() == path
    assert path.stat().st_mtime_ns == made
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_without_a_compiler(unbuilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/nonexistent")
    with pytest.raises(
        RuntimeError, match=r"CC names the compiler '/nonexistent', which is not there. Install a C compiler"
    ):
        native.build()
    monkeypatch.setenv("HF_SEQMIX_NATIVE", "1")
    tensors, grid = inputs((2, 3, 13, 4, 5), 1)
    with pytest.warns(UserWarning, match="torch computes instead: CC names the compiler '/nonexistent'"):
        y = sparse_low_rank_matmul(*tensors, grid)
    assert_close(y, dense(*tensors, grid))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(sparse_low_rank_matmul(*tensors, grid), y)
    monkeypatch.delenv("CC")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(RuntimeError, match="no C compiler was found"):
        native.build()


@needs_compiler
def test_a_compiler_that_fails_is_quoted(unbuilt: Path, tmp_path: Path) -> None:
    source = tmp_path / "broken.c"
    source.write_text("int broken(void) { return missing; }\n")
    with pytest.raises(RuntimeError, match=r"(?s)broken\.c does not compile\. .*missing.*Install a C compiler"):
        c_library.compiled(source)
    assert list(c_library.cache_folder().iterdir()) == []
    with pytest.raises(RuntimeError, match="install hf_seqmix again"):
        c_library.compiled(tmp_path / "none.c")


@needs_compiler
def test_damaged_files_are_made_anew(unbuilt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = native.build()
    whole = path.read_bytes()
    # Written beside and moved there: the file itself is mapped into this process.
    for damage in (whole[: len(whole) // 2], b""):
        (tmp_path / "damaged").write_bytes(damage)
        os.replace(tmp_path / "damaged", path)
        forget(monkeypatch)
        assert native.build() == path
        assert path.read_bytes() == whole
    # What its name promises, but no library: as left behind by another system.
    path.unlink()
    stem = path.name.rpartition("-")[0]
    (path.parent / f"{stem}-{c_library._digest(b'other')}{path.suffix}").write_bytes(b"other")
    forget(monkeypatch)
    assert native.build() == path
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@needs_compiler
def test_another_version_is_not_used(unbuilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_VERSION", 0)
    with pytest.raises(RuntimeError, match="cannot be loaded: it has version 1, and 0 is needed"):
        native.build()
    assert not native.ready()


@needs_compiler
def test_wrong_results_are_not_used(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch)
    monkeypatch.setattr(native, "short_conv_dense", lambda x, taps: 2 * short_conv_dense(x, taps))
    with pytest.raises(RuntimeError, match="gives wrong results"):
        native.build()
    monkeypatch.setenv("HF_SEQMIX_NATIVE", "1")
    with pytest.warns(UserWarning, match="gives wrong results"):
        assert not native.ready()


@needs_compiler
def test_libraries_are_told_apart_and_made_at_once(
    unbuilt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "some.c"
    source.write_text("int some(void) { return 1; }\n")
    with ThreadPoolExecutor(4) as pool:
        first = set(pool.map(c_library.compiled, [source] * 4))
    assert len(first) == 1
    names = {p.name for p in c_library.cache_folder().iterdir()}
    assert names == {p.name for p in first}
    source.write_text("int some(void) { return 2; }\n")
    second = c_library.compiled(source)
    monkeypatch.setattr(c_library, "_processor", lambda: "another")
    third = c_library.compiled(source)
    assert len({*first, second, third}) == 3


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system has no such permissions")
def test_a_folder_open_to_others_is_refused(unbuilt: Path, tmp_path: Path) -> None:
    folder = c_library.cache_folder()
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    source = tmp_path / "some.c"
    source.write_text("int some(void) { return 1; }\n")
    compiler = shutil.which("cc") or sys.executable
    with pytest.MonkeyPatch.context() as patch, pytest.raises(RuntimeError, match="others can write to"):
        patch.setenv("CC", compiler)
        c_library.compiled(source)


def test_the_cache_folder_is_the_platforms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert c_library.cache_folder() == Path("/elsewhere/hf_seqmix/native")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # not allowed by the specification: as if unset
    for platform, folder in (("linux", ".cache"), ("darwin", "Library/Caches")):
        monkeypatch.setattr(sys, "platform", platform)
        assert c_library.cache_folder() == Path("/home/someone", folder, "hf_seqmix", "native")
