"""Labelled examples from files or the Hub, and as model inputs.

The tasks share an interface. `from_data` reads what the labels are from the training split, `config_fields` goes into the
model's configuration, `encode` makes inputs with labels, `predictions` turns a `Trainer`'s output back into labels, numbers
or answers, and `references` gives the true ones in the same form.
"""

from .classification import Classification
from .collation import ImageCollator, SegmentCollator
from .image_classification import ImageClassification
from .loading import GLUE_TASKS, GlueTask, load_glue, load_labelled
from .question_answering import QuestionAnswering
from .sequence_classification import SequenceClassification
from .token_classification import TokenClassification

__all__ = [
    "GLUE_TASKS",
    "Classification",
    "GlueTask",
    "ImageClassification",
    "ImageCollator",
    "QuestionAnswering",
    "SegmentCollator",
    "SequenceClassification",
    "TokenClassification",
    "load_glue",
    "load_labelled",
]
