"""Operations on packed rows as operators, against the same sequences laid out without a graph."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from hf_seqmix.ops.layout import TokenLayout, token_layout
from hf_seqmix.ops.packing import refuse_restarts, row_of_each_sequence
from hf_seqmix.ops.rows import RowOperation, packed_plan

MASKS = {
    "none": None,
    "pads": [[0, 1, 1, 0, 1, 1], [1, 1, 1, 1, 0, 0]],
    "an empty row": [[0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]],
}
IDS = {
    "several": [[0, 0, 1, 1, 1, 2], [0, 0, 0, 0, 1, 1]],
    "one": [[0] * 6, [3] * 6],
}


def _scaled_sums(rows: Tensor, tensors: Sequence[Tensor], settings: Sequence[int]) -> Tensor:
    """Running sums, and the sum of all, of channels twice: any leak between sequences shows."""
    sums = rows.cumsum(dim=1) + 100 * rows.sum(dim=1, keepdim=True)
    for scale in tensors:
        sums = sums * scale
    return torch.cat([sums, sum(settings) * sums], dim=-1).float()


scaled_sums = RowOperation(
    "hf_seqmix_test::scaled_sums_v1", _scaled_sums, lambda values, *_: (2 * values.shape[2], torch.float32)
)


def inputs(name: str, ids: str) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    mask = MASKS[name]
    values = torch.randn(2, 6, 3, dtype=torch.float64, requires_grad=True)
    scale = torch.randn(3, dtype=torch.float64, requires_grad=True)
    return values, None if mask is None else torch.tensor(mask).bool(), torch.tensor(IDS[ids]), scale


@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("name", MASKS)
def test_the_operator_computes_what_a_layout_without_a_graph_does(name, ids):
    values, mask, sequence_ids, scale = inputs(name, ids)
    real = torch.ones(2, 6, dtype=torch.bool) if mask is None else mask
    found = []
    in_graph, eager = TokenLayout(mask, mask, sequence_ids), token_layout(mask, 2, 6, seq_idx=sequence_ids)
    static = TokenLayout(mask, mask, sequence_ids, *row_of_each_sequence(mask, sequence_ids))
    for layout in (eager, in_graph, static):
        y = layout.mix(scaled_sums, values, [scale], [2, 3])
        assert y.shape == (2, 6, 6) and y.dtype == torch.float32
        found.append((y[real], *torch.autograd.grad(y[real].square().sum(), (values, scale))))
    for other in found[1:]:
        for actual, expected in zip(other, found[0], strict=True):
            torch.testing.assert_close(actual, expected)


# opcheck asks for it itself, and where warnings are errors torch 2.15 cannot hide it.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_the_operator_keeps_the_rules_of_torch():
    values, mask, sequence_ids, scale = inputs("pads", "several")
    plan = packed_plan(mask, sequence_ids)
    for tensors, settings in (([scale], [2, 3]), ([], [1]), ([scale], [])):
        torch.library.opcheck(scaled_sums.operator.traced, (values, *plan, tensors, settings))
    torch.library.opcheck(torch.ops.hf_seqmix.packed_plan_v1.default, (mask, sequence_ids))


def test_a_plan_has_room_for_every_packing():
    # To lay the shorter sequences in rows of 144 would leave too little room for the rest.
    crowded = [5, 5, 9, 9, 16, 33, 129, *[257] * 40, 512]
    for lengths in ([1] * 24, [24], [2, 3, 4, 7, 8], [15, 1, 8], crowded):
        ids = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))[None]
        values = torch.randn(1, sum(lengths), 3, dtype=torch.float64)
        in_graph = TokenLayout(sequence_ids=ids, plan=packed_plan(None, ids)).mix(scaled_sums, values, [], [1])
        alone = [scaled_sums(part, [], [1]) for part in values.split(lengths, dim=1)]
        torch.testing.assert_close(in_graph, torch.cat(alone, dim=1))


def test_one_graph_holds_packed_rows_of_all_lengths():
    torch._dynamo.reset()
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    def function(values: Tensor, positions: Tensor) -> Tensor:
        layout = token_layout(None, *values.shape[:2], position_ids=positions)
        return layout.mix(scaled_sums, values, [], [1])

    compiled = torch.compile(function, backend=backend, fullgraph=True, dynamic=True)
    for positions in ([[0, 1, 0, 1, 2]], [[0, 1, 2, 3, 4]], [[0, 0, 1]]):
        given = torch.randn(2, len(positions[0]), 3), torch.tensor(positions)
        torch.testing.assert_close(compiled(*given), function(*given))
    assert len(graphs) == 1


def test_a_graph_stops_at_restarts_that_it_cannot_take():
    mask = torch.tensor([[True, True, False, True]])
    for given in (None, mask):
        refuse_restarts(given, 1, 4, torch.tensor([[3, 4, 5, 6]]))
        with pytest.raises(RuntimeError, match="position_ids restart"):
            refuse_restarts(given, 1, 4, torch.tensor([[0, 1, 2, 0]]))
    refuse_restarts(mask, 1, 4, torch.tensor([[3, 4, 0, 5]]))  # the position of a pad


def test_an_operation_without_an_operator_is_refused():
    layout = TokenLayout(sequence_ids=torch.zeros(1, 4, dtype=torch.long))
    with pytest.raises(TypeError, match="make a RowOperation of it"):
        layout.mix(lambda rows: rows, torch.randn(1, 4, 2))
