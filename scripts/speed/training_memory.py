"""Says how much memory training a model takes, without training it; activations are counted on this machine's CPU.

    python scripts/speed/training_memory.py --model-type tnn --config-overrides hidden_size=512 num_hidden_layers=12
    python scripts/speed/training_memory.py --model-type ipa --block-size 1024 --dtype float32 --checkpointing

Parameters, gradients and AdamW's two averages are numbers times bytes. Activations are what the forward pass of a few
rows keeps for the backward one, a token: of a layer (a model of three layers against one of two), and of the rest, the
logits over the vocabulary above all. Other devices may keep other things, and what a step needs for a moment is not
counted. Prints JSON.
"""

import functools
import json
import sys
from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedConfig, PreTrainedModel

from hf_seqmix.training import config_from_overrides, parse_overrides
from hf_seqmix.training.command import CommandParser, explained, positive
from hf_seqmix.training.timing import saved_bytes


def build(config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """Return a language model in its configuration's direction, with random weights."""
    auto = AutoModelForCausalLM if getattr(config, "is_causal", True) else AutoModelForMaskedLM
    return auto.from_config(config).to(dtype)


@explained("training_memory.py")
def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the command line, print the figures and return them."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("--model-type", required=True, help="a family, such as tnn")
    parser.add_argument(
        "--config-overrides", nargs="*", default=[], help="fields of its configuration, such as hidden_size=512"
    )
    parser.add_argument("--block-size", type=positive, default=512, help="tokens of a row")
    parser.add_argument("--rows", type=positive, default=8, help="rows of the pass whose activations are counted")
    parser.add_argument(
        "--dtype", choices=["bfloat16", "float32"], default="bfloat16", help="data type of parameters and activations"
    )
    parser.add_argument(
        "--checkpointing", action="store_true", help="with gradient checkpointing: activations are computed again"
    )
    arguments = parser.parse_args(argv)
    dtype = getattr(torch, arguments.dtype)
    try:
        fields = parse_overrides(arguments.config_overrides)
        if hasattr(config_from_overrides(arguments.model_type, fields, {}), "hidden_dropout"):
            fields = {"hidden_dropout": 0.0, **fields}
        if len(set(fields.get("mixer_types") or [])) > 1:
            raise ValueError(
                f"mixer_types names {', '.join(fields['mixer_types'])}: memory is reckoned from layers of one "
                "kind, so give one mixer at a time."
            )
        derived = {"max_position_embeddings": arguments.block_size}
        config = config_from_overrides(arguments.model_type, fields, derived)
        small = [
            build(config_from_overrides(arguments.model_type, {**fields, "num_hidden_layers": layers}, derived), dtype)
            for layers in (2, 3)
        ]
    except ValueError as error:
        sys.exit(f"training_memory.py: {error}")
    with torch.device("meta"):
        numbers = build(config, dtype).num_parameters()
    ids = torch.zeros(arguments.rows, arguments.block_size, dtype=torch.long)
    kept = []
    for model in small:
        if arguments.checkpointing:
            # Older releases know one name, newer ones warn of it.
            enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
            enable()
        call = functools.partial(model.train(), labels=ids)
        kept.append(saved_bytes(call, [ids], list(model.parameters())) / ids.numel())
    layer = kept[1] - kept[0]
    figures = {
        "parameters": numbers,
        "bytes_of_parameters": numbers * dtype.itemsize,
        "bytes_of_gradients": numbers * dtype.itemsize,
        "bytes_of_optimizer": 2 * numbers * dtype.itemsize,
        "activation_bytes_a_token": round(kept[0] + (config.num_hidden_layers - 2) * layer),
        "activation_numbers_a_token_and_layer_over_hidden_size": round(layer / dtype.itemsize / config.hidden_size, 1),
    }
    print(json.dumps(figures, indent=2))
    return figures


if __name__ == "__main__":
    main()
