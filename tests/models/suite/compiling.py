"""Compiled and exported graphs."""

import copy
from typing import Any, ClassVar

import pytest
import torch
import transformers
from torch._dynamo.testing import CompileCounterWithBackend

from tests.models.suite.base import PADS, VOCAB, SuiteBase
from tests.tolerances import assert_close

# By default each direction is compiled and exported once: causal models in evaluation, with caches, and with
# positions, the others in training, and for all lengths.
FIRST_CAUSAL = [pytest.param(True, id="causal"), pytest.param(False, id="bidirectional", marks=pytest.mark.slow)]
FIRST_BOTH = [pytest.param(True, id="causal", marks=pytest.mark.slow), pytest.param(False, id="bidirectional")]


class CompilingTests(SuiteBase):
    """Graphs give what the model gives, forward and backward."""

    # Tracing a second layer takes as long again. Families whose layers differ have all.
    few_layers: ClassVar[dict[str, int]] = {"num_hidden_layers": 1}

    @pytest.mark.parametrize("is_causal", FIRST_CAUSAL, indirect=True)
    # Without a mask the graph is a part of this one.
    @pytest.mark.parametrize("masked", [pytest.param(False, marks=pytest.mark.slow), True])
    # Tracing for gradients takes as long again; by default the compiled step of training has that.
    @pytest.mark.parametrize("backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.slow)])
    # A graph without a cache takes as long again; that of the training step has none.
    @pytest.mark.parametrize(
        "caches",
        [pytest.param([None], id="cache"), pytest.param([False, None], id="with and without", marks=pytest.mark.slow)],
    )
    def test_compiles_in_one_graph(self, is_causal, masked, backend, caches):
        """One graph without a mask, one for pads wherever they are, each with a cache and without."""
        torch._dynamo.reset()
        model = self.make("Model", is_causal, **self.few_layers)
        counter = CompileCounterWithBackend(backend)
        compiled = torch.compile(model, backend=counter, fullgraph=True)
        for pads in PADS.values() if masked else [None]:
            mask = None if pads is None else torch.tensor(pads)
            ids = torch.randint(VOCAB, (2, 9))
            real = torch.ones(2, 9, dtype=torch.bool) if mask is None else mask.bool()
            expected = model(ids, attention_mask=mask, use_cache=False)[0][real]
            for use_cache in caches:  # by default a causal model builds a cache, within the graph
                assert_close(compiled(ids, attention_mask=mask, use_cache=use_cache)[0][real], expected)
        assert counter.frame_count <= 2

    @pytest.mark.slow  # by default tests/ecosystem/test_compile.py has graphs for all lengths, of two families
    @pytest.mark.parametrize("masked", [False, True])
    def test_compiles_at_most_twice_for_all_lengths(self, is_causal, masked):
        torch._dynamo.reset()
        model = self.make("Model", is_causal, **self.few_layers)
        counter = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(model, backend=counter, fullgraph=True)
        for length in (9, 11, 14, 20, 33):
            ids = torch.randint(VOCAB, (2, length))
            mask = torch.ones(2, length, dtype=torch.long) if masked else None
            if mask is not None:
                mask[0, 3:5] = mask[1, :2] = 0
            real = torch.ones(2, length, dtype=torch.bool) if mask is None else mask.bool()
            actual = compiled(ids, attention_mask=mask, use_cache=False)[0]
            assert_close(actual[real], model(ids, attention_mask=mask, use_cache=False)[0][real])
        assert counter.frame_count <= 2

    @pytest.mark.parametrize("is_causal", FIRST_BOTH, indirect=True)
    @pytest.mark.parametrize("masked", [pytest.param(False, marks=pytest.mark.slow), True])
    def test_exports_with_any_length(self, is_causal, masked):
        model = self.make("Model", is_causal, **self.few_layers)

        def arguments(length: int) -> dict[str, Any]:
            ids = torch.randint(VOCAB, (2, length))
            mask = torch.ones(2, length, dtype=torch.long)
            mask[0, 1:3] = 0
            return {"input_ids": ids, "attention_mask": mask if masked else None, "use_cache": False}

        length = torch.export.Dim("length", min=2, max=4096)
        shapes = {"input_ids": {1: length}, "attention_mask": {1: length} if masked else None, "use_cache": None}
        program = torch.export.export(model, (), kwargs=arguments(12), dynamic_shapes=shapes)
        for n in (12, 5, 40):
            inputs = arguments(n)
            real = torch.ones(2, n, dtype=torch.bool) if not masked else inputs["attention_mask"].bool()
            assert_close(program.module()(**inputs)[0][real], model(**inputs)[0][real])

    @pytest.mark.parametrize("is_causal", FIRST_CAUSAL, indirect=True)
    def test_exports_with_positions(self, is_causal):
        """Whether positions restart is data of the program."""
        model = self.make("Model", is_causal, **self.few_layers)

        def arguments(positions: list[int]) -> dict[str, Any]:
            ids = torch.randint(VOCAB, (2, len(positions)))
            return {"input_ids": ids, "position_ids": torch.tensor([positions]), "use_cache": False}

        length = torch.export.Dim("length", min=2, max=4096)
        shapes = {"input_ids": {1: length}, "position_ids": {1: length}, "use_cache": None}
        program = torch.export.export(model, (), arguments(list(range(7))), strict=False, dynamic_shapes=shapes)
        for positions in (list(range(7)), [0, 1, 2, 0, 0, 1, 2, 3, 4]):
            inputs = arguments(positions)
            assert_close(program.module()(**inputs)[0], model(**inputs)[0])

    @pytest.mark.parametrize("static", [False, pytest.param(True, marks=pytest.mark.slow)])
    def test_the_librarys_exporter_takes_both_stages_of_generation(self, static):
        if True not in self.directions:
            pytest.skip("a bidirectional family does not generate")
        exporters = pytest.importorskip("transformers.exporters")
        from transformers.exporters.utils import decompose_for_generation

        try:
            exporter = exporters.DynamoExporter()
        except ImportError as error:
            pytest.skip(str(error))
        model = self.make("ForCausalLM", pad_token_id=0, **self.few_layers)
        mask = torch.tensor(PADS["left"])
        inputs = {"input_ids": torch.randint(1, VOCAB, mask.shape) * mask, "attention_mask": mask}
        cache = {"cache_implementation": "static", "max_length": 16} if static else {}
        how = {
            "generation_config": transformers.GenerationConfig(pad_token_id=0, **cache),
            "multi_token_decode": static,
        }
        config = exporters.DynamoConfig(dynamic=static)
        exported = exporter.export_for_generation(model, inputs, config, **how)
        programs = getattr(exported, "components", exported)  # older releases return the programs themselves
        stages = decompose_for_generation(model, inputs, **how)
        assert list(programs) == list(stages) == ["prefill", "decode"]
        for name, (module, given) in stages.items():
            expected = module(**copy.deepcopy(given)).logits
            tensors = {key: value for key, value in given.items() if key not in ("use_cache", "return_dict")}
            program = getattr(programs[name], "program", programs[name])
            actual = program.module()(**tensors).logits
            real = mask.bool() if name == "prefill" else torch.ones(expected.shape[:2], dtype=torch.bool)
            assert_close(actual[real], expected[real])

    @pytest.mark.slow
    def test_compiles_packed_rows(self, is_causal):
        """In one graph for all lengths, forward and backward."""
        torch._dynamo.reset()
        model = self.make("Model", is_causal, **self.few_layers)
        counter = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(model, backend=counter, fullgraph=True)
        for positions in ([0, 1, 0, 1, 2, 3, 4, 0, 1], list(range(7)), [0, 1, 2, 0, 1]):
            ids, given = torch.randint(VOCAB, (2, len(positions))), torch.tensor([positions])
            gradients = []
            for function in (model, compiled):
                model.zero_grad()
                y = function(ids, position_ids=given)[0]
                y.square().mean().backward()
                gradients.append((y, *(p.grad for p in model.parameters() if p.grad is not None)))
            for actual, expected in zip(*reversed(gradients), strict=True):
                torch.testing.assert_close(actual, expected)
        assert counter.frame_count <= 2

    @pytest.mark.parametrize("is_causal", FIRST_BOTH, indirect=True)
    def test_a_compiled_training_step_has_the_same_gradients(self, is_causal):
        torch._dynamo.reset()
        batch = self.batch("ForTokenClassification")
        model = self.make("ForTokenClassification", is_causal, hidden_dropout=0.0, **self.few_layers).train()
        model(**batch).loss.backward()
        expected = {name: p.grad.clone() for name, p in model.named_parameters()}
        model.zero_grad()
        torch.compile(model, backend="aot_eager", fullgraph=True)(**batch).loss.backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.grad, expected[name], msg=name)
