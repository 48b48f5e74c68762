"""Fine-tune a checkpoint on conversations with TRL's `SFTTrainer`, and show an answer before and after.

    python scripts/examples/sft.py runs/tnn --output-dir runs/tnn-sft
    python scripts/examples/sft.py runs/tnn --train-file chats.jsonl --packing --lora-rank 8 --output-dir runs/tnn-sft

Each line of the file is an example as TRL takes it: {"messages": [...]}, {"prompt": ..., "completion": ...} or
{"text": ...}. Without a file, the model learns six answers about Python. Needs trl, and peft for --lora-rank.
"""

import glob
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, Trainer

try:
    from datasets import Dataset, load_dataset
    from datasets.exceptions import DatasetGenerationError
    from trl import SFTConfig, SFTTrainer
except ModuleNotFoundError as error:
    sys.exit(f"sft.py needs the package {error.name}, which is not installed: pip install {error.name}")

# Importing the package registers its families with the Auto classes.
import hf_seqmix
from hf_seqmix.data.local_files import check_file
from hf_seqmix.training.command import CommandParser, explained, new_folder, positive

QUESTIONS = {
    "How long is a list x?": "len(x)",
    "How is a file opened?": "open(path)",
    "How is a loop written?": "for x in y:",
    "How is a function defined?": "def f(x):",
    "How are numbers added?": "x + y",
    "How is an error raised?": "raise ValueError",
}


class ModelLossTrainer(SFTTrainer):
    """An `SFTTrainer` that trains on the loss of the model itself.

    TRL computes the loss from the last hidden states and `lm_head.weight`. That loss lacks the second distribution
    that a copy head mixes in, and the terms that mixers add (the penalty of soft degrees).
    """

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the loss of the model, as the `Trainer` of transformers does."""
        inputs = {**inputs, "use_cache": False}
        return Trainer.compute_loss(self, model, inputs, return_outputs, num_items_in_batch)


def trainer_class(model: PreTrainedModel) -> type[SFTTrainer]:
    """Return the trainer of TRL, or the trainer on the loss of the model where the two losses differ."""
    auxiliary_loss = getattr(model, "auxiliary_loss", lambda: None)()
    has_own_loss = getattr(model, "copy_head", None) is not None or auxiliary_loss is not None
    return ModelLossTrainer if has_own_loss else SFTTrainer


def load_examples(train_file: str | None) -> Dataset:
    """Read the training examples, or make examples of the questions above.

    Raises:
        ValueError: the file has no JSON lines, or none of the fields that TRL reads.
    """
    if train_file is not None:
        check_file(Path(train_file), binary=False)
        try:
            examples = load_dataset("json", data_files=glob.escape(train_file), split="train")
        except DatasetGenerationError as error:
            reason = str(error.__cause__ or error).strip().partition("\n")[0].rstrip(".")
            raise ValueError(f"{train_file} could not be read as JSON lines: {reason}.") from error
        if not any(form <= set(examples.column_names) for form in ({"messages"}, {"text"}, {"prompt", "completion"})):
            raise ValueError(
                f"{train_file} has the fields {', '.join(examples.column_names)}; give messages, text, or prompt and "
                "completion."
            )
        return examples
    return Dataset.from_list(
        [
            {
                "prompt": [{"role": "user", "content": question}],
                "completion": [{"role": "assistant", "content": answer}],
            }
            for question, answer in QUESTIONS.items()
        ]
    )


def answer(model: Any, tokenizer: Any, question: str) -> str:
    """Let the model answer, with the likeliest token at each place."""
    messages = [{"role": "user", "content": question}]
    inputs = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    ).to(model.device)
    with torch.no_grad():
        output = model.eval().generate(
            **inputs, max_new_tokens=24, do_sample=False, pad_token_id=tokenizer.pad_token_id
        )
    return tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


@explained("sft.py")
def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Train as the command line says, and return the losses and answers that are printed."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("checkpoint", help="a folder with a causal language model and its tokenizer")
    parser.add_argument("--train-file", help="JSON lines; see above")
    parser.add_argument(
        "--output-dir", type=new_folder, default="runs/sft", help="new or empty folder where the trained model goes"
    )
    parser.add_argument("--max-steps", type=positive, default=60, help="updates of the training")
    parser.add_argument("--learning-rate", type=float, default=3e-3, help="highest learning rate")
    parser.add_argument("--batch-size", type=positive, default=6, help="rows of an update")
    parser.add_argument(
        "--max-length",
        type=positive,
        help="tokens of an example or of a packed row; by default the context of the model",
    )
    parser.add_argument("--packing", action="store_true", help="several examples to a row, each read alone")
    parser.add_argument("--lora-rank", type=positive, help="train low-rank adapters of this rank, not the weights")
    parser.add_argument("--use-cpu", action="store_true", help="train on the CPU even if there is a GPU")
    arguments = parser.parse_args(argv)

    tokenizer = AutoTokenizer.from_pretrained(arguments.checkpoint)
    model = AutoModelForCausalLM.from_pretrained(arguments.checkpoint, dtype=torch.float32)
    if tokenizer.chat_template is None:
        tokenizer.chat_template = (Path(__file__).parent / "chat_template.jinja").read_text(encoding="utf-8")
    peft_config = None
    if arguments.lora_rank is not None:
        from peft import LoraConfig

        # Not `modules_to_save`: the loss of TRL reads the weights of the output layer, which stay as they are.
        peft_config = LoraConfig(r=arguments.lora_rank, target_modules="all-linear", task_type="CAUSAL_LM")

    question = next(iter(QUESTIONS))
    before = answer(model, tokenizer, question)
    trainer = trainer_class(model)(
        model,
        SFTConfig(
            arguments.output_dir,
            max_steps=arguments.max_steps,
            learning_rate=arguments.learning_rate,
            per_device_train_batch_size=arguments.batch_size,
            max_length=arguments.max_length or model.config.max_position_embeddings,
            packing=arguments.packing,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=arguments.use_cpu,
            use_cache=model.config.use_cache,  # or the trained model would be saved with False
            bf16=not arguments.use_cpu and torch.cuda.is_available() and torch.cuda.is_bf16_supported(),
            disable_tqdm=not sys.stderr.isatty(),
        ),
        train_dataset=load_examples(arguments.train_file),
        processing_class=tokenizer,
        peft_config=peft_config,
    )
    trainer.train()
    trainer.save_model()
    tokenizer.save_pretrained(arguments.output_dir)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    after = answer(trainer.model, tokenizer, question)

    print(f"hf_seqmix {hf_seqmix.__version__}, {model.config.model_type}, trained by {type(trainer).__name__}")
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f} in {len(losses)} steps; saved in {arguments.output_dir}")
    print(f"{question}\n   before: {before!r}\n   after:  {after!r}")
    return {"losses": losses, "before": before, "after": after}


if __name__ == "__main__":
    main()
