"""Trains a small language model, by default a Toeplitz one, on Python's standard library, and shows what it can do.

    bash scripts/quickstart.sh

Trains, scores held-out files beside a unigram, a smoothed byte 5-gram, gzip and xz, plots the loss and learned
Toeplitz kernels, writes a sample, and loads the saved model again. About six minutes on two CPU cores: where bfloat16
is not fast, a smaller model is trained. Everything lands in --output-dir.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from pretrain import main as pretrain
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed

import hf_seqmix
from hf_seqmix._files import write_json
from hf_seqmix.analysis import evaluate_language_model
from hf_seqmix.analysis.kernels import learned_kernels, plot_kernels
from hf_seqmix.analysis.plots import plot_context_lengths
from hf_seqmix.data import ByteNGram, bits_per_byte_gzip, bits_per_byte_xz, load_corpus
from hf_seqmix.training import markdown_table, read_recipe
from hf_seqmix.training.command import CommandParser, explained, positive
from hf_seqmix.training.precision import choose_precision

RECIPES = Path(__file__).parent / "recipes" / "quickstart"
CORPUS = "embedded:python-stdlib"
CODE = "embedded:python-stdlib-without-tables"
"""The same, whose held-out files are no near copies of training files."""
PROMPT = "def read_lines(path):\n"
TOEPLITZ = {"tnn", "fd_tnn", "ski_tnn"}
"""Mixers that have kernels to look at."""


def parse_arguments(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Read our own arguments; the rest is for pretrain.py."""
    parser = CommandParser(
        description=__doc__,
        epilog="Other options are those of pretrain.py, such as --use-cpu or --max-seconds 60.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--recipe", help="what to train, see scripts/recipes; by default of recipes/quickstart what suits the machine"
    )
    parser.add_argument(
        "--output-dir", default="runs/quickstart", help="where everything lands; replaced if it exists"
    )
    parser.add_argument(
        "--context-lengths", type=positive, nargs="+", default=[256, 1024], help="tokens of context to evaluate at"
    )
    arguments, rest = parser.parse_known_args(argv)
    told = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    told.add_argument("--objective")
    told.add_argument("--dataset")
    told.add_argument("--train-file", "--train_file", nargs="+", action="extend", default=[])
    said = told.parse_known_args(rest)[0]
    if said.objective not in (None, "causal"):
        parser.error(f"--objective is {said.objective}, and a sample needs a causal model.")
    scored = "the quickstart trains and scores the sources of Python alone; pretrain.py trains on other text"
    if said.train_file or said.dataset not in (None, CORPUS):
        option = f"--train-file {' '.join(said.train_file)}" if said.train_file else f"--dataset {said.dataset}"
        parser.error(f"{option} is given: {scored}. Leave the option out.")
    if arguments.recipe and Path(arguments.recipe).is_file():  # pretrain.py says what is wrong with any other
        try:
            recipe = read_recipe(arguments.recipe)
        except ValueError as error:
            parser.error(str(error))
        objective = recipe.get("model", {}).get("objective", "causal")
        if objective != "causal":
            parser.error(f"the model of {arguments.recipe} is {objective}, and a sample needs a causal one.")
        data = recipe.get("data", {})
        source = said.dataset or data.get("dataset") or data.get("train_file")
        if source not in (None, CORPUS):
            parser.error(f"the data of {arguments.recipe} is {source}: {scored}. Add --dataset {CORPUS}.")
    return arguments, rest


def recipe_of_machine() -> tuple[list[str], str]:
    """Return the arguments of what learns most in six minutes here, and why; recipes are named after the dtype."""
    choice = choose_precision(torch.accelerator.current_accelerator() or torch.device("cpu"), width=192, rows=2048)
    low = str(choice["dtype"] == "bfloat16").lower()  # said, or pretrain.py would time it again
    return ["--recipe", str(RECIPES / f"{choice['dtype']}.yaml"), "--bf16", low], choice["reason"]


def baselines(train: list[str], held_out: list[str]) -> dict[str, float]:
    """Bits per byte of models that need no training to speak of, on the same split."""
    return {
        "unigram": ByteNGram(1).fit(train).bits_per_byte(held_out),
        "5-gram (Witten-Bell)": ByteNGram(5).fit(train).bits_per_byte(held_out),
        "gzip -9": bits_per_byte_gzip(held_out),
        "xz -9e": bits_per_byte_xz(held_out),
    }


def sample(model: Any, tokenizer: Any) -> str:
    """Let the model continue a line of Python."""
    set_seed(0)
    inputs = tokenizer(PROMPT, return_tensors="pt", add_special_tokens=False)
    output = model.generate(
        input_ids=inputs.input_ids,
        attention_mask=inputs.attention_mask,
        max_new_tokens=120,
        do_sample=True,
        temperature=0.7,
        top_k=40,
        pad_token_id=tokenizer.pad_token_id,
    )
    return tokenizer.decode(output[0], skip_special_tokens=True)


@torch.no_grad()
def reload_difference(model: Any, folder: Path, text: str) -> float:
    """Load the saved folder through the Auto classes; return the largest difference of the logits (0 is bit-equal)."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    loaded = AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids[:, :200]
    return (loaded(ids).logits - model.eval()(ids).logits).abs().max().item()


@explained("quickstart.py")
def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the whole tour and return what is written to quickstart.json; exit with a message on wrong input."""
    arguments, rest = parse_arguments(sys.argv[1:] if argv is None else argv)
    folder = Path(arguments.output_dir)
    begin = time.perf_counter()
    print(f"hf_seqmix {hf_seqmix.__version__}, torch {torch.__version__}, {torch.get_num_threads()} CPU threads")
    chosen, why = (["--recipe", arguments.recipe], "as given") if arguments.recipe else recipe_of_machine()
    print(f"\n1. Training by {Path(chosen[1]).name} ({why}) on the sources of Python {sys.version.split()[0]}\n")
    trained = pretrain([*chosen, "--output-dir", str(folder), "--overwrite-output-dir", *rest])
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)

    print("\n2. Scoring held-out files, which neither the model nor its tokenizer has seen\n")
    corpus = load_corpus(CORPUS)
    train, held_out, code = (
        list(split["text"]) for split in (corpus["train"], corpus["test"], load_corpus(CODE)["test"])
    )
    lengths = arguments.context_lengths
    scores, code_scores = (
        evaluate_language_model(model, tokenizer, texts, context_lengths=lengths) for texts in (held_out, code)
    )
    references, code_references = baselines(train, held_out), baselines(train, code)
    rows = [{"what": name, "bits": bits, "code": code_references[name]} for name, bits in references.items()]
    for score, of_code in zip(scores, code_scores, strict=True):
        name = f"{model.config.model_type}, context {score.context_length}"
        rows.append({"what": name, "bits": score.bits_per_byte, "code": of_code.bits_per_byte})
    columns = {"what": "what", "bits": "bits per byte:.3f", "code": "without tables:.3f"}
    table = markdown_table(sorted(rows, key=lambda row: -row["bits"]), columns)
    print(f"{len(held_out)} files, {scores[0].num_bytes:,} bytes; {trained['num_parameters']:,} parameters\n\n{table}")
    print(
        f"\nWithout tables: {len(code)} files, {code_scores[0].num_bytes:,} bytes, that are no tables of code pages. "
        "Most lines of those tables stand in training files, too."
    )

    print("\n3. Plots")
    plot_context_lengths({model.config.model_type: scores}, folder / "context.png", references=references)
    plots = [folder / "loss.png", folder / "context.png"]
    if not TOEPLITZ.isdisjoint(getattr(model.config, "layer_mixers", ())):
        layers = learned_kernels(model, model.config.max_position_embeddings)
        plots.append(folder / "kernels.png")
        plot_kernels([layers[0], layers[-1]], plots[-1])
    print(f"   {', '.join(map(str, plots))}")

    print("\n4. A sample\n")
    text = sample(model, tokenizer)
    print("   " + text.replace("\n", "\n   "))

    print("\n5. Saving and loading again through AutoModelForCausalLM")
    resaved = folder / "resaved"
    model.save_pretrained(resaved)
    tokenizer.save_pretrained(resaved)
    difference = reload_difference(model, resaved, held_out[0])
    print(f"   largest difference of the logits: {difference:g}")

    best = min(score.bits_per_byte for score in scores)
    beaten = [name for name, value in references.items() if best < value]
    seconds = time.perf_counter() - begin
    results = {
        "bits_per_byte": {score.context_length: score.bits_per_byte for score in scores},
        "bits_per_byte_without_tables": {score.context_length: score.bits_per_byte for score in code_scores},
        "baselines": references,
        "num_parameters": trained["num_parameters"],
        "train_seconds": trained["train_seconds"],
        "total_seconds": seconds,
        "largest_difference_after_reload": difference,
        "sample": text,
        "environment": trained["environment"],
    }
    write_json(folder / "quickstart.json", results)
    (folder / "quickstart.md").write_text(table + "\n", encoding="utf-8")
    print(
        f"\nDone in {seconds:.0f} s ({trained['train_seconds']:.0f} s of training). Better than: {', '.join(beaten)}."
    )
    print(f"Everything is in {folder}; model: AutoModelForCausalLM.from_pretrained({str(folder)!r})")
    if difference != 0:
        sys.exit("quickstart.py: the model that was loaded again does not give the same logits.")
    return results


if __name__ == "__main__":
    main()
