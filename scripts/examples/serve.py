r"""Serve checkpoints of the package by `transformers serve`, whose arguments this takes.

    pip install "transformers[serving]"
    python scripts/examples/serve.py serve model_cards/tnn-python-2m --continuous-batching --port 8000
    curl localhost:8000/v1/completions -H "Content-Type: application/json" \
        -d '{"model": "model_cards/tnn-python-2m", "prompt": "def read(path):\n", "max_tokens": 20}'

The library looks for the class of a model among its own names alone, `getattr(transformers, architecture)` in
`cli/serving/model_manager.py`. Neither a registered class nor remote code is found there; this script puts the
package's classes there before the command starts.
"""

from transformers.cli.serving import model_manager
from transformers.cli.transformers import main

from hf_seqmix.models.auto import FAMILIES

for family in FAMILIES:
    for model_class in family.classes.values():
        setattr(model_manager.transformers, model_class.__name__, model_class)

if __name__ == "__main__":
    main()
