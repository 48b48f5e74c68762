"""The experiments of approximation theory: resumed, tabled, with floors beside."""

import importlib
import math
from pathlib import Path

import pytest
import torch

import hf_seqmix
from hf_seqmix.analysis.rates import LinearTarget, TokenRegressor, mix
from hf_seqmix.training.result_files import read_results
from hf_seqmix.training.results import Result

SCRIPTS = Path(hf_seqmix.__file__).parent.parent / "scripts" / "studies"
FEW = ["--rows", "16", "--test-rows", "32", "--max-steps", "4", "--seeds", "0", "1"]


@pytest.fixture(scope="module")
def load():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        yield importlib.import_module


@pytest.fixture(scope="module")
def script(load):
    return load("approximation")


@pytest.mark.usefixtures("pictures")
def test_alterations_have_floors_and_runs_are_kept(script, load, tmp_path, capsys, monkeypatch):
    models = ["--models", "rnn, solved", "tnn", "ski_tnn"]
    command = ["order", *models, "--kernels", "exponential", "--length", "20", *FEW, "--output-dir", str(tmp_path)]
    rows = script.main(command)
    assert [row["alteration"] for row in rows] == [
        "original",
        "permuted inputs",
        "permuted kernel",
        "mixed",
        "mixed with look-ahead",
    ]
    by_name = {row["alteration"]: row for row in rows}
    # A causal target is within reach of a causal predictor, and the readout of a network of 128 states reaches it.
    assert by_name["original"]["causal_linear"] < 1e-12
    assert by_name["original"]["rnn, solved"] < 1e-6 < by_name["permuted inputs"]["causal_linear"]
    assert by_name["permuted inputs"]["rnn, solved"] > 0.9 * by_name["permuted inputs"]["causal_filter_with_mean"]
    assert "ski_tnn" not in by_name["original"] and by_name["permuted inputs"]["ski_tnn"] > 0
    assert "| mixed with look-ahead" in capsys.readouterr().out
    results = read_results(tmp_path / "order.jsonl")
    assert {result.seed for result in results if result.metric == "test_error" and result.model == "tnn"} == {0, 1}
    assert by_name["original"]["cut"] == "tnn (2)"  # 4 updates end no training
    assert (tmp_path / "order.png").stat().st_size > 5000
    monkeypatch.setattr(load("approximations.log"), "train_on_target", None)  # a second call reads the file
    assert script.main(command) == rows
    fewer = script.main([word for word in command if word != "1"])
    assert fewer[0]["tnn"] == min(each.value for each in results if _is_first_error(each))
    measured = [each for each in results if each.kind == "measured"]
    assert all(each.run.seed == each.seed and each.run.model["name"] == each.model for each in measured)
    with pytest.raises(TypeError, match="not callable"):  # rows of another length are another run
        script.main([word.replace("20", "21") for word in command if not word.startswith("/")] + [str(tmp_path)])


def _is_first_error(result):
    return (result.model, result.metric, result.seed) == ("tnn", "test_error", 0) and result.setting == {
        "kernel": "exponential",
        "alteration": "original",
        "length": 20,
    }


@pytest.mark.usefixtures("pictures")
def test_saved_models_in_other_orders(script, tmp_path, capsys):
    few = ["--kernels", "exponential", "--length", "20", *FEW]
    some = ["--models", "short_conv", "--alterations", "original", "permuted inputs", "--save-models"]
    rows = script.main(["order", *some[:-1], *few, "--output-dir", str(tmp_path)])
    assert len(rows) == 2 and not (tmp_path / "models").exists()
    assert script.main(["order", *some, *few, "--output-dir", str(tmp_path)]) == rows  # trained again for the models
    saved = sorted((tmp_path / "models").iterdir())
    assert len(saved) == 2 * 2 and saved[-1].name == "short_conv-exponential-permuted-inputs-1"
    command = ["checkpoints", "--models", str(tmp_path / "models" / "short_conv-exponential-original-0"), *few]
    rows = script.main([*command, "--output-dir", str(tmp_path / "as-is")])
    assert [row["alteration"] for row in rows][::4] == ["original", "mixed with look-ahead"]
    results = read_results(tmp_path / "order.jsonl")
    (error,) = [each.value for each in results if each.seed == 0 and each.metric == "test_error" and _original(each)]
    assert rows[0]["short_conv-exponential-original-0"] == pytest.approx(error, rel=1e-5)
    trained = script.main([*command, "--train-on", "--output-dir", str(tmp_path / "on")])
    assert trained[0]["short_conv-exponential-original-0"] != rows[0]["short_conv-exponential-original-0"]
    assert "trained on, on held-out" in capsys.readouterr().out
    seeds = {each.seed for each in read_results(tmp_path / "on" / "checkpoints.jsonl") if each.kind == "measured"}
    assert seeds == {0, 1} and (tmp_path / "on" / "checkpoints.png").stat().st_size > 5000


@pytest.mark.usefixtures("pictures")
def test_a_saved_model_of_other_settings_does_not_stand_for_one(script, tmp_path):
    few = [
        "order",
        "--kernels",
        "exponential",
        "--alterations",
        "original",
        "--length",
        "20",
        "--models",
        "short_conv",
    ]
    few += [*FEW, "--output-dir", str(tmp_path)]

    def weights():
        return (tmp_path / "models" / "short_conv-exponential-original-0" / "model.safetensors").read_bytes()

    script.main([*few, "--save-models"])
    first = weights()
    script.main([*few, "--max-steps", "5"])
    assert weights() == first
    script.main([*few, "--max-steps", "5", "--save-models"])
    assert weights() != first
    script.main([*few, "--save-models"])
    assert weights() == first


def _original(result):
    return result.model == "short_conv" and result.setting["alteration"] == "original"


@pytest.mark.usefixtures("pictures")
def test_the_library_s_transformers_are_as_large_as_attention_and_causal_where_the_target_is(script, tmp_path):
    few = ["--kernels", "exponential", "--length", "20", *FEW]
    some = ["--models", "library", "attention", "--alterations", "original", "permuted inputs", "--save-models"]
    script.main(["order", *some, *few, "--output-dir", str(tmp_path)])
    models = {path.name: TokenRegressor.from_pretrained(path) for path in (tmp_path / "models").iterdir()}
    ours = sum(value.numel() for value in models["attention-exponential-original-0"].parameters())
    for name, model_type, is_causal in [("original", "llama", True), ("permuted-inputs", "modernbert", False)]:
        model = models[f"library-exponential-{name}-0"]
        assert model.model.config.model_type == model_type
        assert sum(value.numel() for value in model.parameters()) == pytest.approx(ours, rel=0.1)
        x = torch.rand(1, 20, 1)
        moved = (model(torch.cat([x[:, :-1], x[:, -1:] + 1], 1)) - model(x)).abs()
        assert (moved[0, :-1].max() < 1e-7) == is_causal and moved[0, -1] > 1e-5
    saved = str(tmp_path / "models" / "library-exponential-original-0")
    (error,) = {
        each.value
        for each in read_results(tmp_path / "order.jsonl")
        if (each.model, each.seed, each.metric, each.setting["alteration"]) == ("library", 0, "test_error", "original")
    }
    again = script.main(["checkpoints", "--models", saved, *few, "--output-dir", str(tmp_path / "as-is")])
    assert again[0]["library-exponential-original-0"] == pytest.approx(error, rel=1e-5)


@pytest.mark.usefixtures("pictures")
def test_errors_of_head_sizes_are_fitted(script, tmp_path):
    command = ["rate", "--exponents", "1", "--ranks", "2", "9", "--head-sizes", "1", "2", "4", *FEW]
    rows = script.main([*command, "--output-dir", str(tmp_path)])
    assert [(row["rank"], row["head_size"]) for row in rows] == [(r, m) for r in (2, 9) for m in (1, 2, 4)]
    text = (tmp_path / "rate.md").read_text(encoding="utf-8")
    assert "1 to 4" in text  # sizes below the rank 9; too few lie below 2
    for row in rows:
        assert row["least"] == min(row["errors"]) and (row["truncated"] == 0) == (row["rank"] <= row["head_size"])
    assert (tmp_path / "rate.png").stat().st_size > 5000


def test_heads_layers_and_positions_are_options(script, tmp_path):
    command = ["rate", "--exponents", "1", "--ranks", "9", "--head-sizes", "4", "8", *FEW, "--num-heads", "1", "2"]
    command += ["--num-layers", "2", "--residual", "--positions", "none", "rotary", "--output-dir", str(tmp_path)]
    rows = script.main(command)
    assert [(row["num_heads"], row["positions"], row["head_size"]) for row in rows] == [
        (heads, positions, size) for heads in (1, 2) for positions in ("none", "rotary") for size in (4, 8)
    ]
    assert len({row["train_error"] for row in rows}) == len(rows)
    results = read_results(tmp_path / "rate.jsonl")
    assert {result.setting["residual"] for result in results if result.kind == "measured"} == {True}


def test_a_seed_that_diverged_is_no_better_than_others(load, tmp_path):
    results = [Result("t", "m", "test_error", value, seed) for seed, value in enumerate((None, None, 1e-3))]
    median = load("approximations.log").median
    assert median(results) == float("inf") and median(results[2:]) == 1e-3 and median([]) is None
    rows = [
        {"exponent": 1.0, "rank": 8, "head_size": size, "errors": errors, "train_error": max(errors, default=None)}
        for size, errors in ((2, [0.2, 0.3]), (4, []))
    ]
    load("approximations.plots").plot_rate(rows, ["exponent", "rank"], tmp_path / "rate.png")
    load("approximations.plots").plot_rate(rows[1:], ["exponent", "rank"], tmp_path / "none.png")
    assert (tmp_path / "rate.png").is_file()
    assert load("approximations.rate")._fit({"rank": 9, "exponent": 1.0}, rows[1:]) == []


def test_what_makes_no_sense_is_refused(script, tmp_path):
    folder = tmp_path / "results"
    with pytest.raises(SystemExit, match=r"approximation.py: --seeds names 0 twice: 0 0"):
        script.main(["rate", "--seeds", "0", "0", "--output-dir", str(folder)])
    with pytest.raises(SystemExit, match=r"approximation.py: max_steps"):
        script.main(["rate", "--max-steps", "0", "--output-dir", str(folder)])
    with pytest.raises(SystemExit, match=r"approximation.py: 2 heads share a head size of 3 and 32 values"):
        script.main(["rate", "--num-heads", "2", "--head-sizes", "2", "3", "--output-dir", str(folder)])
    with pytest.raises(SystemExit, match=r"approximation.py: two of the models' folders have the same name"):
        script.main(["checkpoints", "--models", str(tmp_path), str(tmp_path), "--output-dir", str(folder)])
    with pytest.raises(SystemExit, match=r"approximation.py: --length is 9; permutations turn ends of 10 tokens"):
        script.main(["order", "--length", "9", "--output-dir", str(folder)])
    assert not folder.exists()


def test_propositions_are_computed(script, load, tmp_path, capsys, monkeypatch):
    for name, value in {"COUPLING_EXPONENTS": (2.0,), "COUPLING_ROWS": 128, "COUPLING_RANK": 2048}.items():
        monkeypatch.setattr(load("approximations.theory"), name, value)
    rows = script.main(["theory", "--output-dir", str(tmp_path)])
    represented = [row for row in rows if "scale" in row]
    assert len({row["target"] for row in represented}) == 7
    assert max(row["largest_error"] for row in represented) < 1e-12
    # As the proof has it where the weight of a token on itself is exact, and half a power a channel less where not.
    cut = {(row["a"], row["diagonal"], row["error"]): row["exponent"] for row in rows if "diagonal" in row}
    assert cut[2.0, "exact", "squared"] == pytest.approx(3, abs=0.2)
    assert cut[2.0, "exact", "absolute"] == pytest.approx(1.5, abs=0.2)
    assert cut[2.0, "as cut", "squared"] == pytest.approx(2, abs=0.2)
    assert cut[2.0, "as cut", "absolute"] == pytest.approx(1, abs=0.2)
    mixed = {(row["decay_time"], row["mixing"], row["direction"][:5]): row for row in rows if "mixing" in row}
    assert mixed[1, "none", "as th"]["complexity"] == pytest.approx(2)
    assert mixed[4, "none", "as th"]["complexity"] == pytest.approx(5)
    # A smaller kernel that ends has C1 = 1, and C2 = e^(31 (1 - 1 / γ)): the measure is not monotone.
    assert mixed[4, "none, no lags from 32 on", "as th"]["complexity"] == pytest.approx(math.exp(31 * 0.75))
    # A shift by l: rho(k - l) has its supremum at l, and of rho(k + l) lag 0 is left.
    assert mixed[1, "a shift of 10", "earli"]["complexity"] == pytest.approx(2 * math.exp(5))
    assert mixed[1, "a shift of 10", "later"]["complexity"] == pytest.approx(2 * math.exp(-10))
    assert mixed[1, "a shift of 2", "later"]["ahead"] == pytest.approx(1 - math.exp(-4))
    results = read_results(tmp_path / "theory.jsonl")
    assert {result.metric for result in results} >= {
        "largest_error",
        "exponent",
        "singular_value",
        "c1",
        "c2",
        "complexity",
    }
    assert "a shift of 10            | later, x(t + s)" in capsys.readouterr().out


def test_mixed_taps_are_those_of_the_mixed_target(load):
    taps, theta = torch.rand(12, dtype=torch.float64), (0.5, -0.3, 0.2)
    behind, ahead = load("approximations.theory").mixed_taps(taps, theta)
    target = LinearTarget(tuple(taps.tolist()))
    rows = {causal: mix(target, theta, causal).matrix() for causal in (True, False)}
    # The last token's row has its own lag first when read backwards; the first inputs are cut at the end.
    torch.testing.assert_close(behind[:12], rows[True][-1].flip(0))
    middle = rows[False][5]  # inputs 0 to 7, lags 5 to -2
    torch.testing.assert_close(ahead[: 2 + 6 - 2], middle[2:8].flip(0))
