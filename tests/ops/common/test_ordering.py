import torch

from hf_seqmix.ops.common.ordering import inverse_order, places_first


def test_orders_are_those_of_a_stable_sort():
    for length in (1, 2, 9):
        first = torch.rand(20, length) < 0.4
        order = (~first).long().argsort(dim=1, stable=True)
        places = places_first(first)
        assert torch.equal(inverse_order(places), order)
        assert torch.equal(places, order.argsort(dim=1))
