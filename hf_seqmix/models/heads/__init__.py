"""Heads on a backbone, which give logits and losses, and their parts: pooling, copying, prompts of `generate`."""

from .base import SeqMixHead
from .classification import SeqMixForSequenceClassification, SeqMixForTokenClassification
from .language_modeling import SeqMixForCausalLM
from .masked_language_modeling import SeqMixForMaskedLM
from .question_answering import SeqMixForQuestionAnswering
from .vision import SeqMixForImageClassification

__all__ = [
    "SeqMixForCausalLM",
    "SeqMixForImageClassification",
    "SeqMixForMaskedLM",
    "SeqMixForQuestionAnswering",
    "SeqMixForSequenceClassification",
    "SeqMixForTokenClassification",
    "SeqMixHead",
]
