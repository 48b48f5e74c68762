"""Tokens in another order, before positions: against inputs that are permuted by hand."""

import pytest
import torch
from transformers import (
    BertConfig,
    BertModel,
    CLIPVisionConfig,
    CLIPVisionModel,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
    SwinConfig,
    SwinModel,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

from hf_seqmix import SeqMixHybridConfig, SeqMixHybridForImageClassification, TNNConfig, TNNForImageClassification
from hf_seqmix.analysis.token_order import first_to_end, permuted_tokens

IMAGE = {"image_size": 12, "patch_size": 3, "hidden_size": 8, "num_hidden_layers": 2, "intermediate_size": 8}
TEXT = {"vocab_size": 30, "d_model": 8, "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}


def few_to_end(length):
    return first_to_end(length, 3)


def hybrid():
    return SeqMixHybridForImageClassification(
        SeqMixHybridConfig(
            **IMAGE, is_causal=False, position_embedding_type="learned", mixer_configs={"attention": {"num_heads": 2}}
        )
    )


def tnn():
    return TNNForImageClassification(TNNConfig(**IMAGE, is_causal=False, mixing_dimensions=2))


def vit():
    return ViTForImageClassification(ViTConfig(**IMAGE, num_attention_heads=2))


def clip():
    return CLIPVisionModel(CLIPVisionConfig(**IMAGE, num_attention_heads=2))


def marian():
    sizes = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    ffn = {"encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "max_position_embeddings": 32}
    return MarianMTModel(MarianConfig(**TEXT, **sizes, **ffn))


def t5():
    return T5ForConditionalGeneration(T5Config(**TEXT, d_kv=4, d_ff=8, num_layers=2, num_heads=2))


def sharpened(model):
    """Return a model in float64 whose weights are large enough for positions to matter."""
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def with_moved_patches(pixels, places):
    """Move 3 x 3 patches of 12 x 12 images, row after row."""
    patches = pixels.unflatten(3, (4, 3)).unflatten(2, (4, 3)).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    moved = patches[:, places].unflatten(1, (4, 4)).permute(0, 3, 1, 4, 2, 5)
    return moved.flatten(4, 5).flatten(2, 3)


def test_the_first_tokens_go_to_the_end():
    assert first_to_end(12).tolist() == [10, 11, *range(10)]
    assert first_to_end(5, 2).tolist() == [2, 3, 4, 0, 1]
    for length, count in ((10, 10), (7, 10), (1, 3), (0, 10), (4, 0)):
        assert first_to_end(length, count).tolist() == list(range(length))
    with pytest.raises(ValueError, match="count is -1; give a number of tokens of at least 0"):
        first_to_end(4, -1)


@pytest.mark.parametrize("make", [hybrid, tnn, vit, clip])
def test_patches_move_as_they_would_in_the_picture(make):
    model, pixels = sharpened(make()), torch.randn(2, 3, 12, 12, dtype=torch.float64)
    plain = model(pixel_values=pixels)[0]
    with permuted_tokens(model, few_to_end):
        permuted = model(pixel_values=pixels)[0]
    by_hand = model(pixel_values=with_moved_patches(pixels, few_to_end(16)))[0]
    torch.testing.assert_close(permuted, by_hand, rtol=1e-10, atol=1e-10)
    assert (permuted - plain).abs().max() > 1e-4
    torch.testing.assert_close(model(pixel_values=pixels)[0], plain, rtol=0, atol=0)  # the hook is gone


@pytest.mark.parametrize("make", [marian, t5])
@pytest.mark.parametrize("side", ["left", "right"])
def test_real_tokens_of_a_row_move_and_pads_do_not(make, side):
    model, generator = sharpened(make()), torch.Generator().manual_seed(0)
    lengths = (7, 5, 2)
    rows = [torch.randint(2, 30, (length,), generator=generator) for length in lengths]
    ids, moved, mask = torch.zeros(3, 7, dtype=torch.long), torch.zeros(3, 7, dtype=torch.long), torch.zeros(3, 7)
    for place, row in enumerate(rows):
        own = slice(0, len(row)) if side == "right" else slice(7 - len(row), 7)
        ids[place, own], moved[place, own], mask[place, own] = row, row[few_to_end(len(row))], 1
    labels = torch.randint(2, 30, (3, 4), generator=generator)
    plain = model(input_ids=ids, attention_mask=mask, labels=labels)
    expected = model(input_ids=moved, attention_mask=mask, labels=labels)
    written = model.generate(input_ids=moved, attention_mask=mask, max_new_tokens=4, num_beams=2)
    with permuted_tokens(model, few_to_end):
        found = model(input_ids=ids, attention_mask=mask, labels=labels)
        by_place = model.get_encoder()(ids, mask)[0]
        found_text = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=4, num_beams=2)
        found.loss.backward()
    torch.testing.assert_close(found.logits, expected.logits, rtol=0, atol=0)
    torch.testing.assert_close(by_place, expected.encoder_last_hidden_state, rtol=0, atol=0)
    assert torch.equal(found_text, written)
    assert (found.logits - plain.logits)[:2].abs().max() > 1e-4
    torch.testing.assert_close(found.logits[2], plain.logits[2], rtol=0, atol=0)  # two tokens stay as they are
    assert model.get_input_embeddings().weight.grad.abs().sum() > 0


def test_a_row_without_a_mask_has_no_pads():
    model = sharpened(t5())
    ids = torch.randint(2, 30, (2, 6))
    expected = model.get_encoder()(inputs_embeds=model.get_input_embeddings()(ids[:, few_to_end(6)]))[0]
    with permuted_tokens(model, few_to_end):
        found = model.get_encoder()(inputs_embeds=model.get_input_embeddings()(ids))[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_models_without_such_a_place_are_refused_by_name():
    tiny = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    swin = SwinConfig(image_size=12, patch_size=3, embed_dim=8, depths=[1], num_heads=[2], window_size=2)
    models = [LlamaForCausalLM(LlamaConfig(vocab_size=9, **tiny)), BertModel(BertConfig(vocab_size=9, **tiny))]
    for model in [*models, SwinModel(swin)]:
        with (
            pytest.raises(ValueError, match=f"{type(model).__name__} has no module that embeds patches"),
            permuted_tokens(model),
        ):
            pass


def test_what_is_no_order_and_what_has_no_mask_of_tokens_is_refused():
    model = vit()
    with (
        permuted_tokens(model, lambda length: torch.zeros(length, dtype=torch.long)),
        pytest.raises(ValueError, match=r"the order of 16 tokens is .* give each number below 16 once"),
    ):
        model(pixel_values=torch.randn(1, 3, 12, 12))
    assert model(pixel_values=torch.randn(1, 3, 12, 12)).logits.isfinite().all()  # the hook is gone
    model = t5()
    with (
        permuted_tokens(model),
        pytest.raises(ValueError, match=r"attention_mask has shape \(1, 1, 4, 4\), but there are \(1, 4\) tokens"),
    ):
        model.get_encoder()(input_ids=torch.ones(1, 4, dtype=torch.long), attention_mask=torch.ones(1, 1, 4, 4))
