"""How well a language model predicts text: bits per byte at any length, gaps that it fills, and recall."""

from .language_modeling import evaluate_language_model, iter_language_model_scores
from .scores import LanguageModelScore

__all__ = ["LanguageModelScore", "evaluate_language_model", "iter_language_model_scores"]
