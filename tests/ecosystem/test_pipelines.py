"""Pipelines on models opened by their folder: a padded batch gives what each input alone gives."""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from transformers import AutoModelForQuestionAnswering, Pipeline, pipeline

from hf_seqmix import SeqMixImageProcessor
from hf_seqmix.data.labeled import QuestionAnswering
from tests.ecosystem.tiny import CAUSAL, EVERY, tiny_model, tiny_tokenizer
from tests.markers import needs_no_torchvision

TEXTS = ["def add", "return x + y * 3\ndef add_7(x, y=7):\n", "x", "    return y * 11"]
DIRECTIONS = [
    pytest.param(family, is_causal, id=f"{family}-{'causal' if is_causal else 'bidirectional'}")
    for family in EVERY
    for is_causal in (True, False)
    if family in CAUSAL or not is_causal
]

pytestmark = pytest.mark.ecosystem


def opened(task: str, model: Any, processor: Any, folder: Path, caplog: pytest.LogCaptureFixture) -> Pipeline:
    """Return the pipeline of a folder with the model and its tokenizer or image processor."""
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    made = pipeline(task, str(folder), device="cpu")
    assert type(made.model) is type(model)
    assert not [record for record in caplog.records if "not supported" in record.message]
    return made


def check_same(actual: Any, expected: Any) -> None:
    """Compare answers; `index`, a token's place in the padded row, is left out."""
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        for key in expected.keys() - {"index"}:
            check_same(actual[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected)
        for pair in zip(actual, expected, strict=True):
            check_same(*pair)
    elif isinstance(expected, (float, np.floating)):
        assert float(actual) == pytest.approx(float(expected), rel=1e-4, abs=1e-6)
    else:
        assert actual == expected


@pytest.mark.parametrize("model_type", CAUSAL)
def test_text_generation(model_type, tmp_path, caplog):
    tokenizer = tiny_tokenizer()
    write = opened("text-generation", tiny_model(model_type), tokenizer, tmp_path, caplog)
    for options in ({"do_sample": False}, {"num_beams": 3, "do_sample": False}):
        options = {"max_new_tokens": 8, "return_full_text": False, **options}
        together = write(TEXTS, batch_size=4, **options)
        assert together == [write(text, **options) for text in TEXTS]
        assert len({answer[0]["generated_text"] for answer in together}) > 1
    ids = tokenizer(TEXTS[1], return_tensors="pt")["input_ids"]
    new = write.model.generate(ids, max_new_tokens=8, do_sample=False, eos_token_id=0, pad_token_id=1)[
        0, ids.shape[1] :
    ]
    expected = tokenizer.decode(new, skip_special_tokens=True)
    full = write(TEXTS[1], max_new_tokens=8, do_sample=False)
    assert full == [{"generated_text": TEXTS[1] + expected}]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("model_type", EVERY)
def test_fill_mask(model_type, side, tmp_path, caplog):
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"mask_token": "<|mask|>"})
    tokenizer.padding_side = side
    fill = opened("fill-mask", tiny_model(model_type, "ForMaskedLM"), tokenizer, tmp_path, caplog)
    texts = [text + " <|mask|> = 1\n" + text for text in TEXTS]
    together = fill(texts, batch_size=4)
    check_same(together, [fill(text) for text in texts])
    ids = tokenizer(texts[0], return_tensors="pt")["input_ids"]
    scores = fill.model(ids).logits[0, ids[0] == tokenizer.mask_token_id].softmax(dim=-1)[0]
    assert [answer["token"] for answer in together[0]] == scores.topk(5).indices.tolist()
    assert [answer["score"] for answer in together[0]] == pytest.approx(scores.topk(5).values.tolist(), rel=1e-4)
    # Two masks in one text: an answer for each.
    assert [len(each) for each in fill("x <|mask|> y <|mask|>", top_k=3)] == [3, 3]


@pytest.mark.parametrize(("model_type", "is_causal"), DIRECTIONS)
@pytest.mark.one_in(2)
def test_text_classification(model_type, is_causal, tmp_path, caplog):
    labels = {0: "bad", 1: "fair", 2: "good"}
    fields = {"num_labels": 3, "id2label": labels, "label2id": {name: i for i, name in labels.items()}}
    model = tiny_model(model_type, "ForSequenceClassification", is_causal=is_causal, **fields)
    for side in ("left", "right"):
        tokenizer = tiny_tokenizer()
        tokenizer.padding_side = side
        classify = opened("text-classification", model, tokenizer, tmp_path / side, caplog)
        together = classify(TEXTS, batch_size=4, top_k=None)
        check_same(together, [classify(text, top_k=None) for text in TEXTS])
        for text, answers in zip(TEXTS, together, strict=True):
            scores = classify.model(**tokenizer(text, return_tensors="pt")).logits[0].softmax(dim=-1)
            assert {answer["label"]: answer["score"] for answer in answers} == pytest.approx(
                {labels[i]: scores[i].item() for i in range(3)}, rel=1e-4
            )
        assert len({answers[0]["label"] for answers in together}) > 1 or len({a[0]["score"] for a in together}) > 1


@pytest.mark.parametrize(("model_type", "is_causal"), DIRECTIONS)
@pytest.mark.one_in(2)
def test_token_classification(model_type, is_causal, tmp_path, caplog):
    names = ["O", "B-NAME", "I-NAME"]
    fields = {"num_labels": 3, "id2label": dict(enumerate(names)), "label2id": {n: i for i, n in enumerate(names)}}
    model = tiny_model(model_type, "ForTokenClassification", is_causal=is_causal, **fields)
    for side in ("left", "right"):
        tokenizer = tiny_tokenizer()
        tokenizer.padding_side = side
        tag = opened("token-classification", model, tokenizer, tmp_path / side, caplog)
        for options in ({"ignore_labels": []}, {"aggregation_strategy": "simple"}):
            together = tag(TEXTS, batch_size=4, **options)
            check_same(together, [tag(text, **options) for text in TEXTS])
        for text, found in zip(TEXTS, tag(TEXTS, batch_size=4, ignore_labels=[]), strict=True):
            best = tag.model(**tokenizer(text, return_tensors="pt")).logits[0].argmax(dim=-1)
            assert [token["entity"] for token in found] == [names[i] for i in best.tolist()]
            assert "".join(text[token["start"] : token["end"]] for token in found) == text


@pytest.mark.parametrize(("model_type", "is_causal"), DIRECTIONS)
def test_question_answering(model_type, is_causal, tmp_path):
    """Transformers 5 has no such pipeline: the task of this package encodes questions and reads the answers off."""
    folder = tmp_path / "model"
    tiny_model(model_type, "ForQuestionAnswering", is_causal=is_causal).save_pretrained(folder)
    with pytest.raises((KeyError, RuntimeError), match="question-answering"):
        pipeline("question-answering", str(folder))
    model, tokenizer = AutoModelForQuestionAnswering.from_pretrained(folder).eval(), tiny_tokenizer()
    data = datasets.Dataset.from_list([{"question": f"add {n}?", "context": text} for n, text in enumerate(TEXTS)])
    task = QuestionAnswering(stride=4, max_answer_length=5)
    rows = task.encode(data, tokenizer, 24, "test")  # the longest context takes more than one window
    assert len(rows) > len(data)

    def answers(side: str, size: int) -> list[str]:
        tokenizer.padding_side = side
        logits: list[list[np.ndarray]] = [[], []]
        longest = max(map(len, rows["input_ids"]))
        for begin in range(0, len(rows), size):
            part = [{"input_ids": ids} for ids in rows[begin : begin + size]["input_ids"]]
            inputs = tokenizer.pad(part, return_tensors="pt")
            with torch.no_grad():
                output = model(**inputs)
            for kept, found in zip(logits, (output.start_logits, output.end_logits), strict=True):
                for scores, real in zip(found, inputs["attention_mask"].bool(), strict=True):
                    kept.append(np.pad(scores[real].numpy(), (0, longest - int(real.sum())), constant_values=-1e9))
        return task.predictions([np.stack(each) for each in logits], rows, data, can_be_empty=False)

    alone = answers("right", 1)
    assert alone == answers("right", 3) == answers("left", 3)
    assert any(alone) and all(answer in text for answer, text in zip(alone, TEXTS, strict=True))


@needs_no_torchvision
@pytest.mark.parametrize("model_type", EVERY)
def test_image_classification(model_type, tmp_path, caplog):
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    pictures = [image.fromarray(rng.integers(0, 255, size, dtype=np.uint8)) for size in [(6, 8), (9, 5), (12, 16)]]
    grid = [{"is_causal": False, "mixing_dimensions": 2}] if model_type.endswith("tnn") else []
    for fields in (*grid, {"is_causal": False}):
        shape = {"image_size": [8, 10], "patch_size": 2, "num_channels": 1, "num_labels": 3}
        model = tiny_model(model_type, "ForImageClassification", **shape, **fields)
        processor = SeqMixImageProcessor.for_model(model.config)
        folder = tmp_path / str(len(fields))
        classify = opened("image-classification", model, processor, folder, caplog)
        together = classify(pictures, batch_size=3)
        check_same(together, [classify(picture) for picture in pictures])
        pixels = processor(pictures[1], return_tensors="pt")["pixel_values"]
        scores = classify.model(pixel_values=pixels).logits[0].softmax(dim=-1)
        assert [answer["score"] for answer in together[1]] == pytest.approx(
            sorted(scores.tolist(), reverse=True), rel=1e-4
        )
        assert len({answers[0]["score"] for answers in together}) == 3
