"""Checkpoints that the studies look into."""

import logging

import torch
from transformers import AutoConfig, AutoModel, PreTrainedModel
from transformers.utils import logging as transformers_logging

from hf_seqmix.training import explain_model_error

__all__ = ["load_backbone"]

logger = logging.getLogger(__name__)


def load_backbone(name: str, trust_remote_code: bool = False) -> PreTrainedModel:
    """Return the backbone of a checkpoint in float32 and in evaluation, whatever its head.

    Raises:
        ValueError: it cannot be loaded.
    """
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # a head that is not loaded is no news here
    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
        model = AutoModel.from_pretrained(
            name, config=config, dtype=torch.float32, trust_remote_code=trust_remote_code
        )
    except OSError as error:
        raise ValueError(explain_model_error(name, error)) from error
    finally:
        transformers_logging.set_verbosity(verbosity)
    logger.setLevel(logging.INFO)
    logger.info(f"{name}: {type(model).__name__}, {model.num_parameters():,} parameters")
    return model.eval()
