"""Train low-rank adapters of a language model with PEFT on a text file, and merge them into the weights.

    python scripts/examples/lora.py runs/tnn --train-file notes.txt --output-dir runs/tnn-lora
    python scripts/examples/lora.py runs/tnn --rank 4 --target-modules u_proj v_proj o_proj

Without a file the model learns the source of this script. The script writes OUTPUT/adapter, which is small and is laid
over the checkpoint, and OUTPUT/merged, a checkpoint like any other. Needs peft.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

try:
    from datasets import Dataset
    from peft import LoraConfig, PeftModel, get_peft_model
except ModuleNotFoundError as error:
    sys.exit(f"lora.py needs the package {error.name}, which is not installed: pip install {error.name}")

# Importing the package registers its families with the Auto classes.
import hf_seqmix
from hf_seqmix.training.command import CommandParser, explained, new_folder, positive


def blocks(tokenizer: Any, text: str, length: int) -> Dataset:
    """Cut a text into rows of `length` tokens, which are inputs and labels.

    Raises:
        ValueError: the text has fewer tokens than one row.
    """
    ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    rows = [ids[start : start + length] for start in range(0, len(ids) - length + 1, length)]
    if not rows:
        raise ValueError(f"the text has {len(ids)} tokens; give a text of at least {length}, or a smaller --length.")
    return Dataset.from_dict({"input_ids": rows, "labels": rows})


def logits_of(model: Any, rows: Dataset) -> torch.Tensor:
    """Return the logits (1, length, vocab_size) of the first row."""
    with torch.no_grad():
        return model.eval()(input_ids=torch.tensor(rows[:1]["input_ids"], device=model.device)).logits


@explained("lora.py")
def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Train as the command line says, and return the figures that are printed."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("checkpoint", help="a folder with a causal language model and its tokenizer")
    parser.add_argument("--train-file", default=__file__, help="text to learn")
    parser.add_argument(
        "--output-dir", type=new_folder, default="runs/lora", help="new or empty folder where the trained model goes"
    )
    parser.add_argument("--rank", type=positive, default=8, help="rank of the adapters")
    parser.add_argument(
        "--target-modules", nargs="+", default=["all-linear"], help="names of linear layers, or all-linear"
    )
    parser.add_argument("--max-steps", type=positive, default=40, help="updates of the training")
    parser.add_argument("--learning-rate", type=float, default=1e-2, help="highest learning rate")
    parser.add_argument("--batch-size", type=positive, default=8, help="rows of an update")
    parser.add_argument("--length", type=positive, help="tokens in a row; by default the model's context")
    parser.add_argument("--use-cpu", action="store_true", help="train on the CPU even if there is a GPU")
    arguments = parser.parse_args(argv)

    tokenizer = AutoTokenizer.from_pretrained(arguments.checkpoint)
    base = AutoModelForCausalLM.from_pretrained(arguments.checkpoint, dtype=torch.float32)
    length = arguments.length or base.config.max_position_embeddings
    rows = blocks(tokenizer, Path(arguments.train_file).read_text(encoding="utf-8-sig"), length)
    targets = arguments.target_modules
    config = LoraConfig(
        r=arguments.rank,
        lora_alpha=2 * arguments.rank,
        target_modules="all-linear" if targets == ["all-linear"] else targets,
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(base, config)
    trainable, total = model.get_nb_trainable_parameters()
    trainer = Trainer(
        model,
        TrainingArguments(
            arguments.output_dir,
            max_steps=arguments.max_steps,
            learning_rate=arguments.learning_rate,
            per_device_train_batch_size=arguments.batch_size,
            save_strategy="no",
            report_to="none",
            use_cpu=arguments.use_cpu,
            disable_tqdm=not sys.stderr.isatty(),
        ),
        train_dataset=rows,
    )
    before = trainer.evaluate(rows)["eval_loss"]
    trainer.train()
    after = trainer.evaluate(rows)["eval_loss"]

    folder = Path(arguments.output_dir)
    model.save_pretrained(str(folder / "adapter"))
    adapted = logits_of(model, rows)
    laid_over = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(arguments.checkpoint, dtype=torch.float32), folder / "adapter"
    ).merge_and_unload()
    laid_over.save_pretrained(folder / "merged")
    tokenizer.save_pretrained(folder / "merged")
    merged = logits_of(AutoModelForCausalLM.from_pretrained(folder / "merged").to(model.device), rows)
    difference = float((merged - adapted).abs().max())

    print(
        f"hf_seqmix {hf_seqmix.__version__}, {base.config.model_type}: {trainable:,} of {total:,} parameters trained"
    )
    print(f"loss on the text {before:.3f} -> {after:.3f} in {arguments.max_steps} steps")
    print(f"merged and read again: the largest difference of the logits is {difference:.1e}; all in {folder}")
    return {"before": before, "after": after, "trainable": trainable, "total": total, "difference": difference}


if __name__ == "__main__":
    main()
