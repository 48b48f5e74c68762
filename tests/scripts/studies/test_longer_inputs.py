"""What the kernels of masked models are worth beyond the trained length, as a user measures it."""

import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import datasets
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from hf_seqmix import (
    FDTNNConfig,
    FDTNNForMaskedLM,
    SKITNNConfig,
    SKITNNForMaskedLM,
    TNNConfig,
    TNNForMaskedLM,
    TNNModel,
)
from hf_seqmix.analysis.kernels import toeplitz_operators
from hf_seqmix.analysis.text.masked_modeling import evaluate_masked_model, mask_documents
from hf_seqmix.data import build_tokenizer
from hf_seqmix.ops.layout import TokenLayout
from hf_seqmix.training.result_files import read_results

TEXT = ["The red fox met a blue cat. " * 8, "Nobody met the green owl; the green owl met nobody. " * 4]
TRAINED = 16


@pytest.fixture(scope="module")
def script(study: Callable[[str], ModuleType]) -> ModuleType:
    return study("longer_inputs")


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer("bpe:280", TEXT, mask_token=True)


@pytest.fixture
def folder(tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "text").mkdir()
    datasets.Dataset.from_dict({"text": TEXT}).to_parquet(tmp_path / "text" / "test.parquet")
    sizes = {
        "vocab_size": len(tokenizer),
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "is_causal": False,
        "max_position_embeddings": TRAINED,
    }
    for seed, name in enumerate(("ski-0", "ski-1", "tnn", "fd")):
        torch.manual_seed(seed)
        if name == "tnn":
            model = TNNForMaskedLM(TNNConfig(**sizes))
        elif name == "fd":
            model = FDTNNForMaskedLM(FDTNNConfig(**sizes))
        else:
            model = SKITNNForMaskedLM(SKITNNConfig(**sizes, num_inducing_points=5, conv_kernel_size=3))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.3)
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    return tmp_path


def command(folder: Path, *names: str, lengths: tuple[int, ...] = (TRAINED, 4 * TRAINED)) -> list[str]:
    models = [str(folder / name) for name in names]
    given = ["--models", *models, "--dataset", str(folder / "text"), "--lengths", *map(str, lengths)]
    return [*given, "--device", "cpu", "--output-dir", str(folder / "out")]


@pytest.mark.usefixtures("pictures")
def test_a_row_for_each_model_length_and_way(
    script: ModuleType, folder: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    rows = script.main(command(folder, "ski-0", "tnn", "ski-1"))
    found = {(row["model"], row["seed"], row["length"], row["way"]): row["bits_per_byte"] for row in rows}
    assert len(found) == len(rows) == 2 * 2 * 4 + 2 * 2
    # Nothing is new at the trained length; beyond, each way is another.
    for who in (("ski_tnn", 0), ("ski_tnn", 1), ("tnn", 0)):
        short, long = (
            {way: v for (*key, way), v in found.items() if key == [*who, n]} for n in (TRAINED, 4 * TRAINED)
        )
        assert len({value for way, value in short.items() if way != script.NONE}) == 1
        assert len(set(long.values())) == len(long)
        assert (script.NONE in short) == (who[0] == "ski_tnn")
        assert who[0] == "tnn" or short[script.NONE] != short[script.OWN]
    model = SKITNNForMaskedLM.from_pretrained(folder / "ski-1")
    blocks = mask_documents(tokenizer, TEXT, context_length=4 * TRAINED)
    score = evaluate_masked_model(model, tokenizer, blocks, context_length=4 * TRAINED, progress=False)
    assert found["ski_tnn", 1, 4 * TRAINED, script.OWN] == pytest.approx(score.bits_per_byte)
    kept = {
        (r.model, r.seed, r.get("length"), r.get("way")): r.value
        for r in read_results(folder / "out" / "longer-inputs.jsonl")
        if r.metric == "bits_per_byte"
    }
    assert kept == found
    assert (folder / "out" / "longer-inputs.png").stat().st_size > 0
    assert "points spread" in (folder / "out" / "longer-inputs.md").read_text()


@pytest.mark.parametrize("name", ["ski-0", "tnn"])
def test_kernels_go_on_as_their_way_says(script: ModuleType, folder: Path, name: str) -> None:
    longer, channels = 3 * TRAINED - 1, 48
    model = script.load_masked_model(str(folder / name), False).double()
    [*_, (_, operator, _)] = toeplitz_operators(model)
    columns = torch.eye(longer, dtype=torch.float64).unsqueeze(-1)  # a row for each column of T
    values = columns.expand(-1, -1, channels)
    layout = TokenLayout()

    def matrix(way: str) -> torch.Tensor:
        with torch.no_grad(), script.going_on([operator], way, TRAINED, longer):
            return operator(values, layout).permute(2, 1, 0)  # (channels, outputs, inputs)

    whole, cut, none = matrix(script.OWN), matrix(script.TRAINED), matrix(script.NONE)
    places = torch.arange(longer)
    lags = (places[:, None] - places).abs()
    # A token meets the points on both sides of it, up to a spacing away.
    margin = 2 * math.ceil(operator.spacing) if name == "ski-0" else 0
    far, near = lags >= TRAINED + margin, lags < TRAINED - margin
    torch.testing.assert_close(cut[:, far], torch.zeros_like(cut[:, far]), rtol=0, atol=1e-12)
    assert whole[:, far].abs().max() > 1e-6
    torch.testing.assert_close(cut[:, near], whole[:, near], rtol=1e-12, atol=1e-12)
    # The convolution of three tokens is left.
    torch.testing.assert_close(none[:, lags > 1], torch.zeros_like(none[:, lags > 1]), rtol=0, atol=1e-12)
    torch.testing.assert_close(matrix(script.OWN), whole, rtol=0, atol=0)  # all is as it was


def test_models_whose_kernels_go_on_otherwise_are_refused(script: ModuleType, folder: Path) -> None:
    with pytest.raises(SystemExit, match=r"has a kernel on a grid\. Give models of TNN or SKI-TNN"):
        script.main(command(folder, "fd"))
    TNNModel(TNNConfig(vocab_size=300, hidden_size=16, num_hidden_layers=1, is_causal=False)).save_pretrained(
        folder / "fd"
    )
    with pytest.raises(SystemExit, match=r"has no weights of lm_head\..*: give a masked language model"):
        script.main(command(folder, "fd"))
    with pytest.raises(SystemExit, match="has no split 'training'; it has test"):
        script.main([*command(folder, "tnn"), "--split", "training"])
