"""Put other mixers in the place of some of a trained language model, and heal the model by a short training.

    python scripts/examples/replace_mixers.py model_cards/hybrid-python-2m --replace attention=tnn \
        --output-dir runs/healed
    python scripts/examples/replace_mixers.py model_cards/tnn-python-2m --replace 3=attention \
        --mixer-configs '{"attention": {"num_heads": 4}}' --train-file notes.txt --validation-file more.txt

First each new mixer learns alone to give what the old one gave for the same inputs; then all weights are trained on
the text, as in the literature on converted transformers (LoLCATs, arXiv 2410.10254; MOHAWK, arXiv 2408.10189). Bits
per byte of the held-out text are printed before and after each stage, beside those of the old model after as many
updates more. OUTPUT gets the healed model and results.json.
"""

import argparse
import copy
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments, set_seed

import hf_seqmix
from hf_seqmix import replace_mixers
from hf_seqmix._files import write_json
from hf_seqmix.analysis import evaluate_language_model
from hf_seqmix.data import load_corpus, pack_for_training
from hf_seqmix.training.command import CommandParser, explained, new_folder, not_negative, positive


class Transfer(nn.Module):
    """New mixers that learn the outputs of old ones; the loss is the mean over layers of |new - old|^2 / |old|^2.

    Args:
        old: a trained model, which stays as it is.
        new: the same model with other mixers, which alone are trained.
    """

    def __init__(self, old: Any, new: Any) -> None:
        super().__init__()
        types = zip(old.config.layer_mixers, new.config.layer_mixers, strict=True)
        self.layers = [layer for layer, (before, after) in enumerate(types) if before != after]
        self.mixers = nn.ModuleList(new.model.layers[layer].mixer for layer in self.layers)
        # Not a part: the Trainer neither trains nor saves the old model.
        self.teacher = [old.eval().requires_grad_(False)]

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Return the loss on (batch, length) token ids."""
        old, losses = self.teacher[0], []
        hooks = []
        for layer, mixer in zip(self.layers, self.mixers, strict=True):

            def compare(_: nn.Module, args: Any, kwargs: Any, target: Tensor, mixer: nn.Module = mixer) -> None:
                error = (mixer(*args, **kwargs) - target).square().sum()
                losses.append(error / target.square().sum().clamp(min=torch.finfo(target.dtype).tiny))

            hooks.append(old.model.layers[layer].mixer.register_forward_hook(compare, with_kwargs=True))
        try:
            old.model(input_ids, use_cache=False)
        finally:
            for hook in hooks:
                hook.remove()
        return {"loss": torch.stack(losses).mean()}


def parse_replacements(given: Sequence[str]) -> dict[str | int, str]:
    """Return what --replace says: name of a mixer, or number of a layer, -> the new mixer.

    Raises:
        ValueError: an entry is not OLD=NEW.
    """
    pairs = [entry.partition("=") for entry in given]
    if wrong := [entry for entry, (_, sign, new) in zip(given, pairs, strict=True) if not sign or not new]:
        raise ValueError(f"--replace takes OLD=NEW, such as attention=tnn or 3=attention; given {', '.join(wrong)}.")
    return {int(old) if old.isdigit() else old: new for old, _, new in pairs}


def mixer_configs(text: str) -> dict[str, dict[str, Any]]:
    """Read fields of mixers by name from JSON, as the `type` of an argument."""
    try:
        configs = json.loads(text)
    except json.JSONDecodeError:
        configs = None
    if not isinstance(configs, dict) or not all(isinstance(fields, dict) for fields in configs.values()):
        raise argparse.ArgumentTypeError(
            f"{text!r} given; it must be JSON that maps mixers to their fields, such as "
            """'{"attention": {"num_heads": 4}}'"""
        )
    return configs


def train(model: nn.Module, rows: Any, arguments: argparse.Namespace, steps: int, learning_rate: float) -> float:
    """Train with the library's `Trainer`, AdamW and a cosine; return the last loss that was logged."""
    trainer = Trainer(
        model,
        TrainingArguments(
            arguments.output_dir,
            max_steps=steps,
            learning_rate=learning_rate,
            lr_scheduler_type="cosine",
            warmup_steps=0.1,
            per_device_train_batch_size=arguments.batch_size,
            logging_steps=max(1, steps // 10),
            save_strategy="no",
            report_to="none",
            use_cpu=arguments.use_cpu,
            seed=arguments.seed,
            disable_tqdm=not sys.stderr.isatty(),
        ),
        train_dataset=rows,
    )
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry][-1]


def load_texts(arguments: argparse.Namespace) -> tuple[Any, list[str]]:
    """Return documents to train on, and held-out texts, as many bytes of them as are asked for."""
    if arguments.train_file is None:
        corpus = load_corpus("embedded:python-stdlib")
        held_out = corpus["test"]["text"]
    else:
        corpus = load_corpus({"train": arguments.train_file, "validation": arguments.validation_file})
        held_out = corpus["validation"]["text"]
    texts, left = [], arguments.eval_bytes
    for text in held_out:
        beginning = text.encode()[:left].decode(errors="ignore")
        texts += [beginning] if beginning else []
        left -= len(beginning.encode())
    return corpus["train"], texts


@explained("replace_mixers.py")
def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Replace, transfer and heal as the command line says; return bits per byte by stage."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("checkpoint", help="a folder with a causal hybrid, or a model of a family, and its tokenizer")
    parser.add_argument(
        "--replace",
        nargs="+",
        required=True,
        metavar="OLD=NEW",
        help="OLD: a mixer or the number of a layer; NEW: a mixer",
    )
    parser.add_argument("--mixer-configs", type=mixer_configs, default={}, help="JSON: fields of new mixers by name")
    parser.add_argument("--train-file", help="text to heal on; by default sources of Python's standard library")
    parser.add_argument("--validation-file", help="held-out text, given with --train-file")
    parser.add_argument(
        "--output-dir",
        type=new_folder,
        default="runs/replaced",
        help="new or empty folder where the healed model and results.json go",
    )
    parser.add_argument(
        "--transfer-steps", type=not_negative, default=150, help="updates of new mixers alone; 0 leaves this stage out"
    )
    parser.add_argument("--steps", type=positive, default=300, help="updates of all weights")
    parser.add_argument(
        "--transfer-learning-rate", type=float, default=4e-3, help="highest learning rate of new mixers alone"
    )
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="highest learning rate of all weights")
    parser.add_argument("--batch-size", type=positive, default=8, help="rows of an update")
    parser.add_argument("--length", type=positive, help="tokens in a row; by default the model's context")
    parser.add_argument("--eval-bytes", type=positive, default=100_000, help="bytes of the held-out text to score")
    parser.add_argument("--seed", type=not_negative, default=0, help="seed of the order of rows and of new weights")
    parser.add_argument("--use-cpu", action="store_true", help="train on the CPU even if there is a GPU")
    arguments = parser.parse_args(argv)
    return run(arguments)


def run(arguments: argparse.Namespace) -> dict[str, float]:
    """Do what `main` says, with arguments read."""
    if (arguments.train_file is None) != (arguments.validation_file is None):
        raise ValueError("give --train-file and --validation-file together, or neither.")
    replacements = parse_replacements(arguments.replace)
    set_seed(arguments.seed)
    tokenizer = AutoTokenizer.from_pretrained(arguments.checkpoint)
    old: Any = AutoModelForCausalLM.from_pretrained(arguments.checkpoint, dtype=torch.float32)
    # Both here, since the Trainer moves only what it trains.
    old.to("cuda" if torch.cuda.is_available() and not arguments.use_cpu else "cpu")
    new: Any = replace_mixers(old, replacements, arguments.mixer_configs).to(old.device)
    documents, texts = load_texts(arguments)
    length = arguments.length or old.config.max_position_embeddings
    rows = pack_for_training(documents, tokenizer, length)

    def score(model: Any) -> float:
        scores = evaluate_language_model(model, tokenizer, texts, context_lengths=(length,), progress=False)
        return scores[0].bits_per_byte

    found = {"as trained": score(old), "mixers replaced": score(new)}
    if arguments.transfer_steps:
        left = train(Transfer(old, new), rows, arguments, arguments.transfer_steps, arguments.transfer_learning_rate)
        print(f"new mixers alone: relative squared error {left:.3f} after {arguments.transfer_steps} updates")
        found["outputs learned"] = score(new)
    train(new, rows, arguments, arguments.steps, arguments.learning_rate)
    found["healed"] = score(new)
    longer = copy.deepcopy(old).requires_grad_(True)
    train(longer, rows, arguments, arguments.steps, arguments.learning_rate)
    found["as trained, and so many updates more"] = score(longer)
    folder = Path(arguments.output_dir)
    new.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_json(folder / "results.json", {"bits_per_byte": found, "arguments": vars(arguments)})
    show(found, new)
    return found


def show(found: Mapping[str, float], model: Any) -> None:
    """Print the bits per byte of each stage."""
    print(f"hf_seqmix {hf_seqmix.__version__}: {', '.join(model.config.layer_mixers)}; bits per byte of held-out text")
    for stage, bits in found.items():
        print(f"  {stage:38} {bits:.3f}")


if __name__ == "__main__":
    main()
