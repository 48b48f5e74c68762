"""The pretraining script as its users call it: recipes, files, resumption, wrong input, several processes."""

import importlib.util
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import datasets
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

from hf_seqmix.training import explain_write_error, parse_overrides

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
SCRIPT = SCRIPTS / "pretrain.py"

TINY = ["--model-type", "tnn", "--config-overrides", "hidden_size=16", "num_hidden_layers=1", "rpe_hidden_size=8"]
SHORT = ["--tokenizer", "byte", "--block-size", "16", "--per-device-train-batch-size", "2", "--learning-rate", "1e-2"]
QUIET = ["--disable-tqdm", "true", "--logging-steps", "1", "--use-cpu", "true"]


@pytest.fixture(scope="module")
def pretrain() -> ModuleType:
    specification = importlib.util.spec_from_file_location("pretrain", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    sys.modules["pretrain"] = module  # where the training arguments look up their types
    specification.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten documents in ten lines of JSON."""
    rng = random.Random(0)
    words = ["the", "cat", "sat", "on", "a", "mat", "caf\u00e9", "\u20ac"]
    path = tmp_path_factory.mktemp("text") / "text.jsonl"
    lines = [json.dumps({"text": " ".join(rng.choices(words, k=60))}) for _ in range(10)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def command(text: Path, folder: Path, *more: str) -> list[str]:
    return [*TINY, *SHORT, *QUIET, "--train-file", str(text), "--output-dir", str(folder), *more]


def losses(results: dict) -> list[float]:
    return [loss for _, loss in results["train_loss_curve"]]


def test_bf16_auto_is_settled_once_a_run(
    pretrain: ModuleType, text: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A resumed run keeps the choice in its folder, whatever is faster then; a new run decides anew."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("training: {bf16: auto, max_steps: 2, save_steps: 1}", encoding="utf-8")
    folder = tmp_path / "run"
    begun = pretrain.main(command(text, folder, "--recipe", str(recipe)))
    written = json.loads((folder / "precision.json").read_text(encoding="utf-8"))
    assert written == begun["precision"] and written["speedup"] > 0
    assert begun["arguments"]["training"]["bf16"] is (written["dtype"] == "bfloat16")
    assert [line for line in caplog.messages if written["reason"] in line] == [
        f"--bf16 auto: {written['dtype']} ({written['reason']})"
    ]
    other = {"float32": "bfloat16", "bfloat16": "float32"}[written["dtype"]]
    (folder / "precision.json").write_text(json.dumps({**written, "dtype": other}), encoding="utf-8")
    resumed = pretrain.main(command(text, folder, "--recipe", str(recipe), "--max-steps", "3", "--resume"))
    assert resumed["precision"]["dtype"] == other
    assert resumed["arguments"]["training"]["bf16"] is (other == "bfloat16")
    assert f"--bf16 auto: {other} (kept from the beginning of the run)" in caplog.messages
    given = pretrain.main(command(text, folder, "--bf16", "--max-steps", "1", "--overwrite-output-dir"))
    assert given["precision"] is None and given["arguments"]["training"]["bf16"] is True
    assert not (folder / "precision.json").exists()


def test_a_run_that_diverges_stops_or_goes_back(pretrain: ModuleType, text: Path, tmp_path: Path) -> None:
    """A rate of 1e30: the good model of an earlier run stays, unless the rate comes down."""
    folder = tmp_path / "run"
    pretrain.main(command(text, folder, "--max-steps", "2"))
    good = (folder / "model.safetensors").read_bytes()
    again = command(text, folder, "--max-steps", "4", "--optim", "sgd", "--overwrite-output-dir")
    again += ["--learning-rate", "1e30", "--lr-scheduler-type", "constant"]
    with pytest.raises(SystemExit) as stopped:
        pretrain.main(again)
    assert str(stopped.value).startswith(
        "pretrain.py: the run diverged at update 2: the training loss is nan (loss nan"
    )
    assert (folder / "model.safetensors").read_bytes() == good and not (folder / "results.json").exists()
    with pytest.raises(SystemExit, match=r"--back-off-factor is 2\.0; it must lie between 0 and 1"):
        pretrain.main([*again, "--back-off-factor", "2"])
    results = pretrain.main([*again, "--on-divergence", "back-off", "--back-off-factor", "1e-32"])
    assert [(entry["step"], entry["back_to"], entry["loss"]) for entry in results["back_offs"]] == [(2, 0, None)]
    assert len(losses(results)) == 4 and all(map(math.isfinite, losses(results)))
    assert (folder / "model.safetensors").read_bytes() != good


def test_a_causal_run_writes_all_it_promises(pretrain: ModuleType, text: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    results = pretrain.main(command(text, folder, "--max-steps", "4", "--tokenizer", "bpe:270"))
    written = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert written["train_loss_curve"] == results["train_loss_curve"]
    assert [step for step, _ in written["train_loss_curve"]] == [1, 2, 3, 4]
    assert losses(written)[-1] < losses(written)[0]
    assert written["num_train_tokens"] == 4 * 2 * 16
    assert written["tokens_per_second"] > 0
    assert written["seed"] == 42
    assert {"torch", "transformers", "hf-seqmix"} <= written["environment"]["versions"].keys()
    assert written["arguments"]["data"]["tokenizer"] == "bpe:270"
    assert (folder / "loss.png").read_bytes().startswith(b"\x89PNG")

    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert type(model).__name__ == "TNNForCausalLM"
    assert model.num_parameters() == written["num_parameters"]
    assert model.config.vocab_size == len(tokenizer)
    assert model.config.max_position_embeddings == 16
    assert (model.config.eos_token_id, model.config.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)


def test_bits_per_byte_of_the_saved_model(pretrain: ModuleType, text: Path, tmp_path: Path) -> None:
    evaluations = ["--validation-file", str(text), "--eval-strategy", "steps", "--eval-steps", "1"]
    results = pretrain.main(command(text, tmp_path / "run", "--max-steps", "2", *evaluations))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "run")
    texts = [json.loads(line)["text"] for line in text.read_text(encoding="utf-8").splitlines()]
    stream = [token for line in texts for token in (1, *(byte + 3 for byte in line.encode("utf-8")))]
    nll = 0.0
    for start in range(0, len(stream) - 1, 15):
        ids = torch.tensor([stream[start : start + 16]])
        nll += len(ids[0, 1:]) * model(ids, labels=ids).loss.item()
    num_bytes = sum(len(line.encode("utf-8")) for line in texts)
    evaluation = results["evaluation"]
    assert evaluation["num_bytes"] == num_bytes
    assert evaluation["num_tokens"] == len(stream) - 1
    assert evaluation["bits_per_byte"] == pytest.approx(nll / math.log(2) / num_bytes, rel=1e-5)
    assert evaluation["perplexity"] == pytest.approx(math.exp(nll / (len(stream) - 1)), rel=1e-5)
    assert [step for step, _ in results["eval_loss_curve"]][:2] == [1, 2]


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param([], marks=pytest.mark.slow),  # the others have what it has
        ["--objective", "masked"],
        pytest.param(["--streaming", "--shuffle-buffer-size", "50"], marks=pytest.mark.slow),
        ["--respect-documents", "--gradient-accumulation-steps", "2"],
        # A pass is less than three updates.
        ["--streaming", "--block-size", "200", "--gradient-accumulation-steps", "2"],
    ],
    ids=["causal", "masked", "streaming", "documents", "passes"],
)
def test_a_resumed_run_has_the_losses_of_an_uninterrupted_one(
    pretrain: ModuleType, text: Path, tmp_path: Path, variant: list[str]
) -> None:
    arguments = ["--max-steps", "6", "--save-steps", "3", *variant]
    if "--streaming" in variant:
        arguments += ["--validation-file", str(text)]
    whole = pretrain.main(command(text, tmp_path / "whole", *arguments))
    # What a kill in the middle of writing the second checkpoint leaves behind.
    shutil.copytree(tmp_path / "whole" / "checkpoint-3", tmp_path / "part" / "checkpoint-3")
    shutil.copytree(tmp_path / "whole" / "checkpoint-6", tmp_path / "part" / "checkpoint-6")
    (tmp_path / "part" / "checkpoint-6" / "trainer_state.json").unlink()
    part = pretrain.main(command(text, tmp_path / "part", *arguments, "--resume"))
    assert len(losses(whole)) == 6
    assert losses(part) == pytest.approx(losses(whole), abs=1e-6)
    assert part["evaluation"]["token_loss"] == pytest.approx(whole["evaluation"]["token_loss"], abs=1e-6)


def test_resuming_a_finished_run_changes_nothing(pretrain: ModuleType, text: Path, tmp_path: Path) -> None:
    arguments = command(text, tmp_path, "--max-steps", "2")
    first = pretrain.main(arguments)
    for name in ("results.json", "model.safetensors"):  # killed after the last checkpoint
        (tmp_path / name).unlink()
    again = pretrain.main([*arguments, "--resume"])
    assert losses(again) == losses(first)
    assert again["num_updates"] == 2
    assert again["evaluation"]["token_loss"] == first["evaluation"]["token_loss"]
    assert (tmp_path / "model.safetensors").exists()


def test_a_masked_run_predicts_masks_only(pretrain: ModuleType, text: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    arguments = ["--objective", "masked", "--max-steps", "2", "--tokenizer", "bpe:270", "--mlm-probability", "0.4"]
    evaluation = pretrain.main(command(text, folder, *arguments))["evaluation"]
    assert "bits_per_byte" not in evaluation
    assert 0 < evaluation["num_tokens"] < 60
    model = AutoModelForMaskedLM.from_pretrained(folder)
    assert type(model).__name__ == "TNNForMaskedLM"
    assert not model.config.is_causal
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.mask_token_id == len(tokenizer) - 1 == model.config.vocab_size - 1


def test_documents_are_told_apart_only_on_request(pretrain: ModuleType, text: Path, tmp_path: Path) -> None:
    def blocks(*more: str) -> set[str]:
        arguments = pretrain.parse_arguments(command(text, tmp_path / "run", "--overwrite-output-dir", *more))
        return set(pretrain.prepare(arguments).train_dataset.column_names)

    assert blocks() == {"input_ids", "labels"}
    assert blocks("--respect-documents") == {"input_ids", "labels", "position_ids"}


def test_token_budget_and_global_batch(pretrain: ModuleType, text: Path, tmp_path: Path) -> None:
    arguments = pretrain.parse_arguments(
        command(text, tmp_path / "run", "--global-batch-size", "6", "--max-tokens", "300")
    )
    pretrain.set_length(arguments)
    assert arguments.training.gradient_accumulation_steps == 3
    assert arguments.training.max_steps == 300 // (6 * 16)


def test_decay_on_all_parameters(pretrain: ModuleType, text: Path, tmp_path: Path) -> None:
    def undecayed(*more: str) -> int:
        arguments = pretrain.parse_arguments(
            command(text, tmp_path / "run", "--overwrite-output-dir", "--weight-decay", "0.2", *more)
        )
        groups = pretrain.prepare(arguments).create_optimizer().param_groups
        return sum(len(group["params"]) for group in groups if group["weight_decay"] == 0)

    assert undecayed() > 0
    assert undecayed("--weight-decay-on-all-parameters") == 0


RECIPES = [*(SCRIPTS / "recipes").glob("*.yaml"), *(SCRIPTS / "recipes" / "python-2m").glob("*.yaml")]


@pytest.mark.parametrize("recipe", sorted(RECIPES), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_recipe_is_read_and_its_model_built(pretrain: ModuleType, recipe: Path, tmp_path: Path) -> None:
    text = [] if "dataset:" in recipe.read_text(encoding="utf-8") else ["--train-file", "a.txt"]
    arguments = pretrain.parse_arguments(["--recipe", str(recipe), "--output-dir", str(tmp_path), *text, *QUIET])
    pretrain.set_length(arguments)

    class Tokenizer:
        pad_token_id = bos_token_id = eos_token_id = 0

        def __len__(self) -> int:
            return 4096

    config = pretrain.build_config(arguments, Tokenizer())
    with torch.device("meta"):
        model = pretrain.build_model(arguments, config)
    published = {
        "tnn-wikitext103": 48_666_624,
        "tnn-wikitext103-masked": 126_372_441,
        "fd-tnn-wikitext103": 48_579_264,
        "fd-tnn-wikitext103-masked": 128_019_801,
        "ski-tnn-wikitext103-masked": 126_513_753,
    }
    if recipe.stem in published:
        assert sum(parameter.numel() for parameter in model.parameters()) == published[recipe.stem]
        assert pretrain.tokens_per_update(arguments) in (128 * 512, 512 * 512)


def test_the_published_optimizer(pretrain: ModuleType, tmp_path: Path) -> None:
    recipe = SCRIPTS / "recipes" / "tnn-wikitext103.yaml"
    training = pretrain.parse_arguments(["--recipe", str(recipe), "--output-dir", str(tmp_path), *QUIET]).training
    training.eval_strategy = "no"
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=training.learning_rate)
    trainer = pretrain.ResumableTrainer(model=torch.nn.Linear(1, 1), args=training, optimizers=(optimizer, None))
    schedule = trainer.create_scheduler(training.max_steps, optimizer)
    rate = schedule.lr_lambdas[0]
    assert [rate(step) for step in (0, 2000, 4000, 16_000)] == pytest.approx([0, 0.5, 1, 0.5])
    assert (training.adam_beta1, training.adam_beta2, training.adam_epsilon) == (0.9, 0.98, 1e-8)
    assert (training.learning_rate, training.weight_decay, training.max_grad_norm) == (5e-4, 0.2, 1.0)


def test_the_command_line_overrides_the_recipe(pretrain: ModuleType, text: Path, tmp_path: Path) -> None:
    recipe = SCRIPTS / "recipes" / "tnn-stdlib-small.yaml"
    overrides = ["--train-file", str(text), "--max-steps", "7", "--config-overrides", "hidden_size=32"]
    arguments = pretrain.parse_arguments(
        ["--recipe", str(recipe), "--output-dir", str(tmp_path), *overrides, "--learning-rate", "1"]
    )
    assert (arguments.data.dataset, arguments.data.train_file) == (None, [str(text)])
    assert (arguments.run.max_tokens, arguments.training.max_steps) == (None, 7)
    assert arguments.training.learning_rate == 1
    overrides = parse_overrides(arguments.model.config_overrides)
    assert (overrides["hidden_size"], overrides["num_hidden_layers"]) == (32, 4)


def test_a_config_file_is_a_start(pretrain: ModuleType, text: Path, tmp_path: Path) -> None:
    pretrain.main(command(text, tmp_path / "first", "--max-steps", "1"))
    second = [*SHORT, *QUIET, "--train-file", str(text), "--max-steps", "1", "--config-overrides", "decay=0.5"]
    second += ["--config-file", str(tmp_path / "first" / "config.json"), "--output-dir", str(tmp_path / "second")]
    pretrain.main(second)
    first, second = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("first", "second"))
    assert {key for key in first if first[key] != second.get(key)} == {"decay"}


@pytest.mark.parametrize("model_type", ["llama", "bert"])
def test_models_of_the_library_train_too(pretrain: ModuleType, model_type: str, text: Path, tmp_path: Path) -> None:
    objective = {"llama": "causal", "bert": "masked"}[model_type]
    arguments = ["--model-type", model_type, "--objective", objective, "--max-steps", "1"]
    sizes = ["hidden_size=8", "num_hidden_layers=1", "num_attention_heads=2", "intermediate_size=8"]
    arguments += ["--config-overrides", *sizes, "--output-dir", str(tmp_path / "run"), "--train-file", str(text)]
    assert pretrain.main([*SHORT, *QUIET, *arguments])["num_updates"] == 1


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--model-type", "tnnn"], "no model type 'tnnn'"),
        (["--config-overrides", "hidden_sizes=3"], "has no field 'hidden_sizes'; did you mean hidden_size"),
        (["--config-overrides", "decay=2"], "decay is 2"),
        (["--block-size", "1"], "--block-size is 1; it must be at least 2"),
        (["--max-eval-blocks", "0"], "--max-eval-blocks is 0; it must be at least 1"),
        (["--global-batch-size", "-8"], "--global-batch-size is -8; it must be at least 1"),
        (["--streaming", "--max-steps", "1", "--shuffle-buffer-size", "0"], "--shuffle-buffer-size is 0"),
        (["--mlm-probability", "2"], r"--mlm-probability must lie between 0 and 1; given 2\.0"),
        (["--config-overrides", "hidden_size=many"], "configuration is refused.*hidden_size"),
        (["--config-overrides", "vocab_size=100"], "the tokenizer has 384 tokens"),
        (["--config-file", "config.json"], "either --model-type"),
        (["--config-overrides", "is_causal=false"], "is_causal"),
        (["--dataset", "embedded:python-stdlib"], "either --dataset"),
        (["--streaming"], "--max-tokens, --max-steps or --max-seconds"),
        (["--max-tokens", "10"], "one update takes 32 tokens"),
        (["--max-tokens", "100", "--max-steps", "3"], "give one of them"),
        (["--global-batch-size", "3"], "does not divide"),
        (["--block-size", "100000"], "fewer tokens than one block"),
        (["--tokenizer", "bpe:9"], "too small"),
        (["--text-column", "body"], "its columns are text"),
        (["--recipe", "no-such.yaml"], "no recipe"),
    ],
)
def test_wrong_input_ends_with_a_message(
    pretrain: ModuleType, text: Path, tmp_path: Path, more: list[str], message: str
) -> None:
    with pytest.raises(SystemExit, match=f"(?s)pretrain.py: .*{message}"):
        pretrain.main(command(text, tmp_path / "run", *more))
    assert not (tmp_path / "run").exists()  # or the command without its fault would find a folder that is not empty


def test_a_wrong_model_is_found_before_the_data_is_read(pretrain: ModuleType, tmp_path: Path) -> None:
    data = command(tmp_path / "no-such.txt", tmp_path / "run")
    (tmp_path / "model").mkdir()
    (tmp_path / "config.json").write_text("{")
    for more, message in (
        (["--config-overrides", "decay=2"], "decay is 2"),
        (["--config-overrides", "width=2"], "no field 'width'"),
    ):
        with pytest.raises(SystemExit, match=message):
            pretrain.main([*data, *more])
    of_trained = [*SHORT, "--train-file", "no-such.txt", "--output-dir", str(tmp_path / "run")]
    for more, message in (
        (["--model", str(tmp_path / "model")], "config.json is missing"),
        (["--config-file", str(tmp_path / "config.json")], "config.json is not JSON"),
        (["--model-type", "vit"], "there is no causal language model of the type vit"),
    ):
        with pytest.raises(SystemExit, match=message):
            pretrain.main([*of_trained, *more])


def test_a_folder_in_use_is_refused_and_nothing_in_it_lost(pretrain: ModuleType, text: Path, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"precious")
    with pytest.raises(SystemExit, match="is not empty"):
        pretrain.main(command(text, tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    assert (tmp_path / "model.safetensors").read_bytes() == b"precious"


def test_a_full_disk_is_said_so_and_the_last_checkpoint_still_loads(
    pretrain: ModuleType, text: Path, tmp_path: Path
) -> None:
    """A limit on the size of files, lowered after the first checkpoint, stands in for a full disk."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    arguments = pretrain.parse_arguments(command(text, tmp_path, "--max-steps", "6", "--save-steps", "3"))

    class FillDisk(pretrain.ResumableTrainer):
        def save_model(self, *args: object, **kwargs: object) -> None:
            if self.state.global_step > 3:
                resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
            super().save_model(*args, **kwargs)

    trainer = pretrain.prepare(arguments)
    trainer.__class__ = FillDisk
    try:
        with pytest.raises(Exception, match=r"too large|inline_container") as error:
            pretrain.train_and_save(arguments, trainer)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    message = explain_write_error(error.value, tmp_path)
    assert "disk full" in message
    assert f"{tmp_path / 'checkpoint-3'}; continue from it with --resume" in message
    AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-3")
    results = pretrain.main(command(text, tmp_path, "--max-steps", "6", "--save-steps", "3", "--resume"))
    assert results["num_updates"] == 6


def environment(tmp_path: Path) -> dict[str, str]:
    return os.environ | {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


@pytest.mark.slow  # tests/ecosystem/test_kill_resume.py kills at more places, by default
def test_a_killed_process_is_resumed(pretrain: ModuleType, text: Path, tmp_path: Path) -> None:
    steps = ["--max-steps", "60", "--save-steps", "10"]
    whole = pretrain.main(command(text, tmp_path / "whole", *steps))
    folder = tmp_path / "part"
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), *command(text, folder, *steps)],
        env=environment(tmp_path),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while not (folder / "checkpoint-20").exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    part = pretrain.main(command(text, folder, *steps, "--resume"))
    assert losses(part) == pytest.approx(losses(whole), abs=1e-6)


@pytest.mark.slow
def test_two_processes_train_and_evaluate_as_one(pretrain: ModuleType, text: Path, tmp_path: Path) -> None:
    short = ["--max-steps", "3", "--config-overrides", "hidden_dropout=0"]
    one = pretrain.main(command(text, tmp_path / "one", *short, "--per-device-train-batch-size", "4"))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    arguments = command(text, tmp_path / "two", *short)
    subprocess.run(
        [*torchrun, str(SCRIPT), *arguments], env=environment(tmp_path), check=True, capture_output=True, timeout=300
    )
    two = json.loads((tmp_path / "two" / "results.json").read_text(encoding="utf-8"))
    assert two["num_processes"] == 2
    assert two["num_train_tokens"] == one["num_train_tokens"]
    assert two["evaluation"]["num_tokens"] == one["evaluation"]["num_tokens"]
    assert two["evaluation"]["bits_per_byte"] == pytest.approx(one["evaluation"]["bits_per_byte"], rel=1e-3)


def test_an_interrupted_run_says_how_it_goes_on(
    pretrain: ModuleType,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pretrain, "prepare", interrupted)
    with pytest.raises(SystemExit) as error:
        pretrain.main(command(text, tmp_path / "run"))
    assert error.value.code == 130 and "--resume continues" in caplog.messages[-1]


def test_a_budget_of_seconds(
    pretrain: ModuleType, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The length is kept by a resumed run, which makes no trial."""
    from hf_seqmix.training import arguments

    monkeypatch.setattr(arguments, "updates_within", lambda trainer, seconds: int(3 * seconds))
    results = pretrain.main(command(text, tmp_path / "run", "--max-seconds", "2", "--save-steps", "4"))
    assert results["num_updates"] == 6
    assert "6 updates in 2 seconds" in caplog.text
    shutil.rmtree(tmp_path / "run" / "checkpoint-6")
    monkeypatch.setattr(arguments, "updates_within", None)
    again = pretrain.main(command(text, tmp_path / "run", "--max-seconds", "7", "--save-steps", "4", "--resume"))
    assert losses(again) == losses(results)
    assert "6 updates in all, as many as when the run began" in caplog.text and "7 seconds" not in caplog.text


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--max-seconds", "0"], "--max-seconds is 0.0; it must be positive and finite"),
        (["--max-seconds", "inf"], "--max-seconds is inf; it must be positive and finite"),
        (["--max-seconds", "9", "--max-steps", "4"], "--max-seconds and --max-steps both say"),
        (["--max-seconds", "9", "--max-tokens", "400"], "--max-tokens and --max-seconds both say"),
        (["--optim", "moun"], "moun"),
    ],
)
def test_wrong_lengths_and_optimizers(
    pretrain: ModuleType, text: Path, tmp_path: Path, more: list[str], message: str
) -> None:
    with pytest.raises(SystemExit, match=message):
        pretrain.main(command(text, tmp_path / "run", *more))


def test_a_stream_is_timed_before_it_is_read(pretrain: ModuleType, text: Path, tmp_path: Path) -> None:
    """A real trial, whose answer is the least there is."""
    held_out = ["--validation-file", str(text)]
    results = pretrain.main(command(text, tmp_path / "run", "--streaming", *held_out, "--max-seconds", "1e-6"))
    assert results["num_updates"] == 1 and len(losses(results)) == 1


def test_a_rate_that_the_model_has_no_use_for_is_refused_in_a_line(
    pretrain: ModuleType, text: Path, tmp_path: Path
) -> None:
    typed = [*SHORT, *QUIET, "--train-file", str(text), "--output-dir", str(tmp_path / "run"), "--max-steps", "2"]
    typed += ["--kernel-learning-rate", "1e-3"]
    typed += ["--config-overrides", "hidden_size=8", "num_hidden_layers=1", "num_centers=2"]
    with pytest.raises(SystemExit, match=r"pretrain\.py: --kernel-learning-rate is 0\.001.* has no kernel networks"):
        pretrain.main([*typed, "--model-type", "ipa"])


def test_muon_by_its_name(pretrain: ModuleType, text: Path, tmp_path: Path) -> None:
    options = ["--max-steps", "4", "--optim", "muon", "--muon-learning-rate", "3e-2", "--kernel-learning-rate", "1e-3"]
    results = pretrain.main(command(text, tmp_path / "run", *options))
    assert losses(results)[-1] < losses(results)[0]
    training = results["arguments"]["training"]
    assert (training["optim"], training["muon_learning_rate"], training["kernel_learning_rate"]) == (
        "muon",
        0.03,
        1e-3,
    )


STREAMS = ["--state-segments", "4", "--max-steps", "10"]


def test_states_that_segments_hand_on(pretrain: ModuleType, text: Path, tmp_path: Path) -> None:
    """A run in streams, resumed within a stream; the model takes as many positions as a stream has tokens."""
    folder = tmp_path / "run"
    learned = ["--config-overrides", "position_embedding_type=learned", "hidden_dropout=0.2"]
    arguments = command(text, folder, *learned, *STREAMS, "--save-steps", "3")
    whole = pretrain.main(arguments)
    assert AutoModelForCausalLM.from_pretrained(folder).config.max_position_embeddings == 4 * 16
    alone = pretrain.main(command(text, tmp_path / "alone", *learned, "--max-steps", "10"))
    assert losses(whole) != losses(alone) and losses(whole)[-1] < losses(whole)[0]
    later = pretrain.main([*arguments, "--overwrite-output-dir", "--states-from", "0.7"])
    assert losses(later)[:8] != losses(whole)[:8]
    whole = pretrain.main([*arguments, "--overwrite-output-dir"])
    for step in (9, 10):
        shutil.rmtree(folder / f"checkpoint-{step}")
    weights = (folder / "model.safetensors").read_bytes()
    resumed = pretrain.main([*arguments, "--resume"])
    assert losses(resumed) == losses(whole) and (folder / "model.safetensors").read_bytes() == weights


def test_a_trained_model_is_trained_further(pretrain: ModuleType, text: Path, tmp_path: Path) -> None:
    """With its tokenizer and configuration, whatever the recipe says, and without its optimizer."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "model: {model_type: tnn, config_overrides: {hidden_size: 8, num_hidden_layers: 1, rpe_hidden_size: 8}}\n"
        "data: {tokenizer: 'bpe:270', block_size: 16}\ntraining: {max_steps: 4, learning_rate: 0.01}",
        encoding="utf-8",
    )
    typed = ["--recipe", str(recipe), *QUIET, "--train-file", str(text), "--per-device-train-batch-size", "2"]
    first = pretrain.main([*typed, "--output-dir", str(tmp_path / "first")])
    further = [*typed, "--model", str(tmp_path / "first"), "--output-dir", str(tmp_path / "second")]
    second = pretrain.main([*further, "--state-segments", "2", "--learning-rate", "0"])
    assert second["evaluation"]["token_loss"] == pytest.approx(first["evaluation"]["token_loss"], rel=1e-5)
    assert second["arguments"]["data"]["tokenizer"] is None
    assert len(AutoTokenizer.from_pretrained(tmp_path / "second")) == 270
    third = pretrain.main([*further, "--overwrite-output-dir"])
    assert third["evaluation"]["token_loss"] < first["evaluation"]["token_loss"]
    with pytest.raises(SystemExit, match="--config-overrides belong to a model with random weights"):
        pretrain.main([*further, "--config-overrides", "decay=0.5"])
    with pytest.raises(SystemExit, match=r"pretrain.py: .*no-such"):
        pretrain.main([*further, "--model", str(tmp_path / "no-such"), "--overwrite-output-dir"])
    with pytest.raises(SystemExit, match="vocab_size is 270, but the tokenizer has 384 tokens"):
        pretrain.main([*further, "--tokenizer", "byte", "--overwrite-output-dir"])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--state-segments", "1"], "--state-segments is 1; a stream has at least 2 segments"),
        (["--states-from", "1"], r"--states-from is 1\.0; it is a share of the updates, from 0 to below 1"),
        (["--state-segments", "0", "--states-from", "0.5"], "--states-from is 0.5, but there are no streams"),
        (["--objective", "masked"], "a masked model sees both sides and has no state"),
        (["--streaming"], "which a stream has not: leave out --streaming"),
        (["--respect-documents"], "--respect-documents lets none pass the border of a document"),
        (["--activation-checkpointing"], "--activation-checkpointing computes blocks again"),
        (["--state-segments", "400"], "which are 0 streams of 400 segments, but an update reads 2 rows"),
        (["--model-type", "ski_tnn"], "is_causal"),
        (["--model-type", "mamba"], "MambaForCausalLM takes no past_key_values"),
        (
            ["--config-overrides", "position_embedding_type=learned", "max_position_embeddings=32"],
            "a stream has 64 tokens, but TNNForCausalLM has positions for 32",
        ),
    ],
)
def test_streams_that_cannot_be_are_refused(
    pretrain: ModuleType, text: Path, tmp_path: Path, more: list[str], message: str
) -> None:
    arguments = command(text, tmp_path / "run", *STREAMS, *more)
    if "--model-type" in more:  # of which the sizes are others
        arguments = [word for word in arguments if not word.startswith(("rpe_hidden_size", "--config-overrides"))]
        arguments = [word for word in arguments if word not in ("hidden_size=16", "num_hidden_layers=1")]
        sizes = ["hidden_size=16", "num_hidden_layers=1"]
        arguments += ["--config-overrides", *sizes]
    with pytest.raises(SystemExit, match=f"(?s)pretrain.py: .*{message}"):
        pretrain.main(arguments)


@pytest.mark.slow
def test_two_processes_hand_on_the_states_of_one(pretrain: ModuleType, text: Path, tmp_path: Path) -> None:
    """Each process has its own rows, and its own file of states in a checkpoint."""
    fixed = ["--config-overrides", "hidden_dropout=0", *STREAMS, "--save-steps", "6"]
    one = pretrain.main(command(text, tmp_path / "one", *fixed, "--per-device-train-batch-size", "4"))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run = [*torchrun, str(SCRIPT), *command(text, tmp_path / "two", *fixed)]

    def launch(*more: str) -> dict:
        subprocess.run([*run, *more], env=environment(tmp_path), check=True, capture_output=True, timeout=300)
        return json.loads((tmp_path / "two" / "results.json").read_text(encoding="utf-8"))

    two = launch()
    assert two["num_processes"] == 2 and losses(two) == pytest.approx(losses(one), rel=1e-3)
    checkpoint = tmp_path / "two" / "checkpoint-6"
    assert {path.name for path in checkpoint.glob("states_*.pt")} == {"states_0.pt", "states_1.pt"}
    shutil.rmtree(tmp_path / "two" / "checkpoint-10")
    assert losses(launch("--resume")) == losses(two)
