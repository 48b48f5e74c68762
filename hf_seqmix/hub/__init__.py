"""Models as repositories: exporting with all the code they need, cards, checks, and pushing to the Hub."""

from .cards import build_card, check_card, model_facts
from .checking import check_repo_id, check_repository
from .exporting import export
from .pushing import push
from .verification import VerificationError, verify

__all__ = [
    "VerificationError",
    "build_card",
    "check_card",
    "check_repo_id",
    "check_repository",
    "export",
    "model_facts",
    "push",
    "verify",
]
