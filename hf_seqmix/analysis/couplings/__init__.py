"""How much each token counts for each other one: logits, weights and Jacobians of the mixers of a model."""

from .coupling import SOURCES, coupling, queries_and_keys
from .jacobian import jacobian_norms
from .realized import realized_operator

__all__ = ["SOURCES", "coupling", "jacobian_norms", "queries_and_keys", "realized_operator"]
