r"""Score a checkpoint with the lm-evaluation-harness, by default on three small tasks that need no network.

    python scripts/examples/harness.py runs/tnn
    python scripts/examples/harness.py runs/tnn --include-path my_tasks --tasks my_task --limit 100

The tasks of lm_eval_task/ are examples of such tasks: a choice between continuations of code, the bits per byte of
texts, and code that is continued until the line ends. The tasks of the harness (--tasks lambada_openai) are there,
too; their data comes from the Hub. The command of the harness also reads folders written by scripts/publishing/push.py
or `hf_seqmix.hub.export`, where hf_seqmix is not installed:

    lm_eval --model hf --model_args pretrained=FOLDER,trust_remote_code=True \
        --include_path scripts/examples/lm_eval_task --tasks python_choice

Needs lm-eval.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

# Importing the package registers its families with the Auto classes.
import hf_seqmix
from hf_seqmix.training.command import CommandParser, explained, positive

TASKS = Path(__file__).parent / "lm_eval_task"


@explained("harness.py")
def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Score as the command line says, and return the results of the harness, task by task."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("checkpoint", help="a folder with a causal language model and its tokenizer")
    parser.add_argument("--tasks", nargs="+", help="by default those of --include-path")
    parser.add_argument("--include-path", default=str(TASKS), help="folder of task files")
    parser.add_argument("--limit", type=positive, help="examples of each task; all by default")
    parser.add_argument("--batch-size", type=positive, default=8, help="requests of a forward pass")
    parser.add_argument("--max-length", type=positive, help="tokens of context; by default the model's")
    arguments = parser.parse_args(argv)
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    from lm_eval.utils import make_table

    own = TaskManager(include_path=arguments.include_path, include_defaults=False)
    known = set(arguments.tasks or own.all_tasks) <= set(own.all_tasks)
    manager = own if known else TaskManager(include_path=arguments.include_path)
    model = AutoModelForCausalLM.from_pretrained(arguments.checkpoint).eval()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    scored = HFLM(
        pretrained=model.to(device),
        tokenizer=AutoTokenizer.from_pretrained(arguments.checkpoint),
        batch_size=arguments.batch_size,
        max_length=arguments.max_length,
        device=device,
    )
    results = lm_eval.simple_evaluate(
        scored,
        tasks=arguments.tasks or sorted(own.all_tasks),
        task_manager=manager,
        limit=arguments.limit,
        bootstrap_iters=0,
    )
    assert results is not None
    kind = f"{model.config.model_type}, context {scored.max_length}"
    print(f"hf_seqmix {hf_seqmix.__version__}: {arguments.checkpoint}, {kind}")
    print(make_table(results))
    return results["results"]


if __name__ == "__main__":
    main()
