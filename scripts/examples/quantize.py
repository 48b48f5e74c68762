"""Quantize the weights of a checkpoint to int8 with torchao: a quarter of the memory of float32 for each linear layer.

    pip install ".[train]" torchao
    python scripts/examples/quantize.py runs/tnn --output runs/tnn-int8 --prompt "import "

The written folder opens with `from_pretrained` on any device, where torchao is installed. Embeddings, the output layer
and the small networks that make kernels keep their precision.
"""

import argparse
import logging
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel, TorchAoConfig

from hf_seqmix.hub import open_checkpoint
from hf_seqmix.training.command import CommandParser, explained, new_folder, positive


def stored_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor; those of its parts, if the tensor is quantized."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return tensor.nbytes
    names, _ = tensor.__tensor_flatten__()
    return sum(stored_bytes(getattr(tensor, name)) for name in names)


def megabytes(model: PreTrainedModel) -> float:
    """Return the size of the weights of a model in megabytes."""
    return sum(map(stored_bytes, model.parameters())) / 1e6


@torch.no_grad()
def difference(model: PreTrainedModel, smaller: PreTrainedModel, ids: Tensor) -> float:
    """Return the root mean square difference of the logits, relative to the root mean square of the logits."""
    expected = model(ids).logits.float()
    change = smaller(ids).logits.float() - expected
    return float(change.square().mean().sqrt() / expected.square().mean().sqrt())


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("checkpoint", help="a folder, or a repository on the Hub, of a language model")
    parser.add_argument(
        "--output", type=new_folder, metavar="FOLDER", help="where the quantized model is written; nowhere by default"
    )
    parser.add_argument("--prompt", help="text to continue; masked language models do not generate")
    parser.add_argument("--max-new-tokens", type=positive, default=32, help="tokens to generate")
    return parser


@explained("quantize.py")
def main(argv: Sequence[str] | None = None) -> int:
    """Quantize as the command line says, and return 0."""
    logging.getLogger("torchao").setLevel(logging.ERROR)
    arguments = build_parser().parse_args(argv)
    from torchao.quantization import Int8WeightOnlyConfig

    model, tokenizer = open_checkpoint(arguments.checkpoint)
    smaller = (
        type(model)
        .from_pretrained(
            arguments.checkpoint, quantization_config=TorchAoConfig(Int8WeightOnlyConfig()), dtype=model.dtype
        )
        .eval()
    )
    print(f"weights: {megabytes(smaller):.1f} MB instead of {megabytes(model):.1f} MB")
    length = min(model.config.max_position_embeddings, 128)
    ids = torch.randint(model.config.vocab_size, (4, length), generator=torch.Generator().manual_seed(0))
    print(f"logits differ by {difference(model, smaller, ids):.2%} on random tokens")
    if arguments.prompt is not None and tokenizer is not None and smaller.can_generate():
        inputs = tokenizer(arguments.prompt, return_tensors="pt")
        new = smaller.generate(
            inputs["input_ids"], attention_mask=inputs["attention_mask"], max_new_tokens=arguments.max_new_tokens
        )
        print(tokenizer.decode(new[0], skip_special_tokens=True))
    if arguments.output is not None:
        smaller.save_pretrained(arguments.output)
        if tokenizer is not None:
            tokenizer.save_pretrained(arguments.output)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
