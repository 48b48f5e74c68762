"""Models as repositories: exporting with all the code they need, cards, checks, and pushing to the Hub."""

from .cards import build_card, check_card, model_facts
from .checking import check_repo_id, check_repository
from .exporting import export
from .opening import open_checkpoint
from .pushing import Pushed, push
from .verification import VerificationError, verify, verify_all

__all__ = [
    "Pushed",
    "VerificationError",
    "build_card",
    "check_card",
    "check_repo_id",
    "check_repository",
    "export",
    "model_facts",
    "open_checkpoint",
    "push",
    "verify",
    "verify_all",
]
