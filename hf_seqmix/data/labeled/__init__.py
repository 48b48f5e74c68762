"""Labeled examples from files or the Hub, and as model inputs.

The tasks share five methods. `from_data` reads the kind of the labels from the training split. `config_fields` gives
what the configuration of the model needs. `encode` makes inputs with labels. `predictions` turns the output of a
`Trainer` back into labels, numbers or answers. `references` gives the true labels, numbers or answers in the same
form.
"""

from .classification import Classification
from .collation import ImageCollator, SegmentCollator
from .image_classification import ImageClassification
from .loading import GLUE_TASKS, GlueTask, load_glue, load_labeled
from .question_answering import QuestionAnswering
from .sequence_classification import TEXTS_READ, WAS_CUT, SequenceClassification
from .token_classification import TokenClassification

__all__ = [
    "GLUE_TASKS",
    "TEXTS_READ",
    "WAS_CUT",
    "Classification",
    "GlueTask",
    "ImageClassification",
    "ImageCollator",
    "QuestionAnswering",
    "SegmentCollator",
    "SequenceClassification",
    "TokenClassification",
    "load_glue",
    "load_labeled",
]
