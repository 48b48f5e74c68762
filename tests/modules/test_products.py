"""Products as modules: without parameters, by name, and called by the models."""

import pytest
import torch

from hf_seqmix.modules.products import PRODUCTS
from tests.ecosystem.tiny import EVERY, tiny_model

NAMED = {
    "tnn": "SeqMixToeplitzProduct",
    "fd_tnn": "SeqMixToeplitzProduct",
    "ski_tnn": "SeqMixSparseLowRankProduct",
    "poly_transformer": "SeqMixPolynomialProduct",
    "seqmix_hybrid": "SeqMixToeplitzProduct",
    "ipa": None,
}


@pytest.mark.parametrize("family", EVERY)
def test_a_forward_put_on_the_named_module_is_what_a_model_computes_with(family):
    """As the library `kernels` puts one there."""
    model = tiny_model(family, "Model").eval()
    own = [module for module in model.modules() if isinstance(module, PRODUCTS)]
    assert {module.kernel_layer_name for module in own} == {NAMED[family]} - {None}
    ids = torch.randint(300, (2, 9))
    names, expected = list(model.state_dict()), model(ids).last_hidden_state
    assert not any(".product" in name for name in names)
    called = []
    for module in own:
        forward = module.forward
        module.forward = lambda *args, forward=forward, **kwargs: called.append(1) or forward(*args, **kwargs)
    assert torch.equal(model(ids).last_hidden_state, expected) and len(called) == len(own)
