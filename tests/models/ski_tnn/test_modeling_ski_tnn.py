"""SKI-TNN: the common suite, and what is its own."""

import json
import math
from typing import Any

import pytest
import torch

from hf_seqmix import SeqMixHybridConfig, SKITNNConfig, SKITNNForMaskedLM, SKITNNModel
from hf_seqmix.models.ski_tnn import configuration_ski_tnn
from hf_seqmix.models.ski_tnn.modeling_ski_tnn import SKITNN_FAMILY
from tests.models.suite import VOCAB, CompiledModelSuite
from tests.tolerances import assert_close, relative_error


class TestSKITNN(CompiledModelSuite):
    family = SKITNN_FAMILY
    directions = (False,)

    def config(self, is_causal: bool = False, **kwargs: Any) -> SKITNNConfig:
        fields = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "expand_ratio": 1.5}
        fields |= {"num_inducing_points": 5, "conv_kernel_size": 3, "max_position_embeddings": 20}
        return SKITNNConfig(**{**fields, "is_causal": is_causal, **kwargs})

    def test_every_published_parameter_is_there(self):
        fields = {"vocab_size": 50265, "hidden_size": 768, "num_hidden_layers": 12, "norm_position": "post"}
        with torch.device("meta"):
            model = SKITNNForMaskedLM(SKITNNConfig(**fields))
        assert sum(p.numel() for p in model.parameters()) == 126_513_753

    def test_cubic_interpolation(self):
        ids = torch.randint(VOCAB, (2, 17))
        model = self.make(is_causal=False, interpolation="cubic", num_inducing_points=4)
        linear = type(model)(self.config(num_inducing_points=4)).double().eval()
        linear.load_state_dict(model.state_dict())
        assert relative_error(model(ids)[0], linear(ids)[0]) > 1e-3
        mask = torch.ones_like(ids)
        mask[0, :5] = 0
        assert_close(model(ids, mask)[0][0, 5:], model(ids[:1, 5:])[0][0])


def test_the_decay_follows_the_context_length_by_default():
    model = SKITNNModel(SKITNNConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, max_position_embeddings=200))
    assert model.layers[0].mixer.operator.kernel.decay == pytest.approx(math.exp(-5 / 200))
    with pytest.raises(ValueError, match="inducing points of SKI-TNN go on at the same spacing"):
        model.set_context_length(400)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"is_causal": True}, "For a causal model use TNN"),
        ({"decay": 1.0}, "decay is 1.0; it must be greater than 0 and less than 1"),
        ({"decay": 0.0}, "decay is 0.0"),
        ({"channel_decays": [0.9, 1.0]}, "channel_decays is 1.0; it must be greater than 0 and less than 1"),
        ({"channel_decays": [0.9], "decay": 0.8}, "give one decay for all channels"),
        ({"conv_kernel_size": 16}, "conv_kernel_size is 16; it must be odd"),
        ({"conv_kernel_size": 0}, "conv_kernel_size is 0; it must be at least 1"),
        ({"num_inducing_points": 1}, "num_inducing_points is 1; it must be at least 2"),
        ({"num_inducing_points": 513}, "num_inducing_points is 513, but max_position_embeddings is 512"),
        ({"interpolation": "quadratic"}, "interpolation is 'quadratic'; it must be one of 'linear', 'cubic'"),
    ],
    ids=str,
)
def test_bad_configurations_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        SKITNNConfig(**fields)


@pytest.mark.parametrize(("points", "warned"), [(256, False), (257, True), ([20, 16], True), ([16, 16], False)])
def test_points_that_save_nothing_are_warned_of(monkeypatch, points, warned):
    said = []
    monkeypatch.setattr(configuration_ski_tnn.logger, "warning_once", said.append)
    image = {"image_size": 32, "mixing_dimensions": 2} if isinstance(points, list) else {}
    SKITNNConfig(num_inducing_points=points, **image)
    assert [text for text in said if "saves nothing" in text] == said and bool(said) == warned


def test_a_causal_hybrid_with_ski_is_refused_with_the_alternative():
    with pytest.raises(ValueError, match="For a causal model use TNN"):
        SeqMixHybridConfig(hidden_size=16, mixer_types=["ski_tnn", "attention"])
    SeqMixHybridConfig(hidden_size=16, mixer_types=["ski_tnn", "attention"], is_causal=False)


def test_missing_weights_are_drawn_when_loading(tmp_path):
    config = TestSKITNN().config()
    model = SKITNNModel(config)
    state = {key: value for key, value in model.state_dict().items() if "operator" not in key}
    model.save_pretrained(tmp_path, state_dict=state)
    loaded = SKITNNModel.from_pretrained(tmp_path)
    for name, parameter in loaded.named_parameters():
        assert parameter.isfinite().all() and parameter.abs().max() < 10, name
    knots = loaded.layers[0].mixer.operator.kernel.past_knots
    assert 0.05 < knots.std() / 20**-0.5 < 2


def test_files_of_before_the_scale_mean_none(tmp_path):
    config = SKITNNConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, scale_kernel=False)
    hybrid = SeqMixHybridConfig(
        vocab_size=9,
        hidden_size=16,
        mixer_types=["ski_tnn", "attention"],
        mixer_configs={"ski_tnn": {"num_inducing_points": 4, "scale_kernel": False}},
        is_causal=False,
    )
    for saved in (config, hybrid):
        saved.save_pretrained(tmp_path)
        file = tmp_path / "config.json"
        fields = json.loads(file.read_text())
        where = fields["mixer_configs"]["ski_tnn"] if saved is hybrid else fields
        assert where.pop("scale_kernel") is False
        file.write_text(json.dumps(fields))
        assert type(saved).from_pretrained(tmp_path).to_dict() == saved.to_dict()


def test_new_files_say_whether_the_kernel_is_scaled(tmp_path):
    own = {"num_inducing_points": 4}
    config = SeqMixHybridConfig(
        vocab_size=9, hidden_size=8, mixer_types=["ski_tnn"], mixer_configs={"ski_tnn": own}, is_causal=False
    )
    assert own == {"num_inducing_points": 4}
    SKITNNConfig(vocab_size=9).save_pretrained(tmp_path / "family")
    config.save_pretrained(tmp_path / "hybrid")
    assert SKITNNConfig.from_pretrained(tmp_path / "family").scale_kernel
    back = SeqMixHybridConfig.from_pretrained(tmp_path / "hybrid")
    assert back.mixer_configs == {"ski_tnn": {"scale_kernel": True, "num_inducing_points": 4}}
    # A scale along each axis: 16 rows of 4.
    image = SKITNNConfig(
        image_size=[16, 4], mixing_dimensions=2, hidden_size=8, num_hidden_layers=1, num_inducing_points=2
    )
    mixer = SKITNNModel(image).layers[0].mixer
    scales = {module.length_scale: module.scale for module in mixer.modules() if hasattr(module, "past_knots")}
    assert scales == {4: 0.5, 16: 0.25}
