import numpy as np
import pytest
import torch
from PIL import Image

from hf_seqmix import SKITNNConfig
from hf_seqmix.data.labeled import ImageCollator, SegmentCollator
from hf_seqmix.models.images.processing import SeqMixImageProcessor


def test_segments_are_padded_together(tokenizers):
    tokenizer = tokenizers["bytes"]
    rows = [
        {"input_ids": [[5, 6], [7]], "attention_mask": [[1, 1], [1]], "labels": 1},
        {"input_ids": [[8], [9, 10, 11]], "attention_mask": [[1], [1, 1, 1]], "labels": 0},
    ]
    batch = SegmentCollator(tokenizer)(rows)
    assert batch["input_ids"].tolist() == [[[5, 6, 0], [7, 0, 0]], [[8, 0, 0], [9, 10, 11]]]
    assert batch["attention_mask"].sum(dim=-1).tolist() == [[2, 1], [1, 3]]
    assert batch["labels"].tolist() == [1, 0] and batch["labels"].dtype == torch.int64
    unlabeled = SegmentCollator(tokenizer)([{name: row[name] for name in row if name != "labels"} for row in rows])
    assert set(unlabeled) == {"input_ids", "attention_mask"}
    with pytest.raises(ValueError, match=r"these have \[1, 2\]"):
        SegmentCollator(tokenizer)([rows[0], {"input_ids": [[8]], "attention_mask": [[1]]}])


def test_images_of_any_size_and_mode():
    config = SKITNNConfig(image_size=[6, 4], num_channels=1, hidden_size=8, num_inducing_points=2)
    processor = SeqMixImageProcessor.for_model(config, image_mean=[0.0], image_std=[1.0])
    rows = [
        {"image": Image.new("RGB", (9, 7), (255, 0, 0)), "labels": [0.0, 1.0]},
        {"image": Image.new("L", (4, 6), 51), "labels": [1.0, 1.0]},
    ]
    batch = ImageCollator(processor)(rows)
    assert batch["pixel_values"].shape == (2, 1, 6, 4)
    grey = [round(0.299 * 255) / 255, 0.2]
    np.testing.assert_allclose(batch["pixel_values"].mean(dim=(1, 2, 3)).numpy(), grey, atol=1e-6)
    assert batch["labels"].tolist() == [[0.0, 1.0], [1.0, 1.0]] and batch["labels"].dtype == torch.float32
