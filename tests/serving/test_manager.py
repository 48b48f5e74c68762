"""Continuous batching by the library's entries: requests get what they get alone, whoever comes and goes."""

import asyncio
import re
import threading
import time

import pytest
import torch
from transformers import ContinuousBatchingConfig, GenerationConfig
from transformers.generation import NoRepeatNGramLogitsProcessor
from transformers.generation.continuous_batching import RequestStatus

from hf_seqmix import PolyTransformerConfig, PolyTransformerForCausalLM, TNNConfig, TNNForCausalLM
from hf_seqmix.serving import manager as manager_module
from tests.cache.test_rows import SMALL, of_all_layers, with_copy_keys
from tests.models.suite import VOCAB, perturb

ONCE = {"do_sample": True, "no_repeat_ngram_size": 1}
"""Each token is drawn once at most."""
GREEDY = GenerationConfig(do_sample=False, eos_token_id=-1, max_new_tokens=5)
PROMPTS = [[7] * 3, list(range(1, 31)), [9], [5, 6] * 45, list(range(8, 15))]
LENGTHS = [24, 5, 33, 12, 9]


def quiet(model):
    """A model in float64 that ends no sequence by itself."""
    model = perturb(model, 0.05).double().eval()
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    return model


@pytest.fixture(scope="module", params=[of_all_layers, with_copy_keys], ids=lambda make: make.__name__)
def model(request):
    torch.manual_seed(0)
    return quiet(request.param())


@pytest.fixture(scope="module")
def small():
    torch.manual_seed(0)
    config = PolyTransformerConfig(
        **SMALL, num_hidden_layers=1, max_position_embeddings=40, position_embedding_type="learned"
    )
    return quiet(PolyTransformerForCausalLM(config))


def alone(model, prompt, new_tokens, **options):
    ids = torch.tensor([prompt])
    options = {"do_sample": False, **options}
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, **options)
    return out[0, len(prompt) :].tolist()


@torch.no_grad()
def logprobs(model, prompt, tokens):
    """What the model says of each token after the prompt, read at once."""
    whole = torch.tensor([prompt + tokens])
    chosen = model(whole).logits[0, len(prompt) - 1 : -1].log_softmax(dim=-1).gather(1, whole.new_tensor([tokens]).T)
    return chosen.flatten().tolist()


def collect(manager, names):
    """Return the last result of each request."""
    results, end = {}, time.monotonic() + 60
    while len(results) < len(names) and time.monotonic() < end:
        result = manager.get_result(timeout=1)
        if result is not None and result.status >= RequestStatus.FINISHED:
            results[result.request_id] = result
    return [results[name] for name in names]


@pytest.mark.parametrize(
    "fields",
    [
        {"min_new_tokens": 5},
        {"min_length": 8},
        {"bad_words_ids": [[3], [4, 9]]},
        {"exponential_decay_length_penalty": (2, 1.5)},
        {"forced_eos_token_id": 11},
        {"encoder_no_repeat_ngram_size": 1},
        {"encoder_repetition_penalty": 3.0},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_processors_that_need_lengths_ends_or_the_prompt_are_those_of_generate(small, fields):
    prompt, end = [7, 8, 9], alone(small, [7, 8, 9], 2)[1]
    expected = alone(small, prompt, 8, eos_token_id=end, **fields)
    config = GenerationConfig(do_sample=False, eos_token_id=end, max_new_tokens=8, **fields)
    for given, own in ((config, {}), (GREEDY, {"max_new_tokens": 8, "eos_token_id": end, **fields})):
        with small.continuous_batching_context_manager(given) as manager:
            [result] = collect(manager, [manager.add_request(prompt, **own)])
        assert (result.error, result.generated_tokens) == (None, expected)


def test_requests_join_and_leave_mid_flight(model):
    expected = [alone(model, prompt, length) for prompt, length in zip(PROMPTS, LENGTHS, strict=True)]
    rows = ContinuousBatchingConfig(max_requests_per_batch=3, return_logprobs=True)
    with model.continuous_batching_context_manager(GREEDY, continuous_batching_config=rows) as manager:
        names = [manager.add_request(p, max_new_tokens=n) for p, n in zip(PROMPTS, LENGTHS, strict=True)]
        results = collect(manager, names)
        assert [result.generated_tokens for result in results] == expected
        assert [result.prompt_ids for result in results] == PROMPTS
        for prompt, result in zip(PROMPTS, results, strict=True):
            assert result.logprobs == pytest.approx(logprobs(model, prompt, result.generated_tokens), abs=1e-5)
        # The longest prompt asks for nothing and leaves at once.
        again = [manager.add_request([4] * 40, max_new_tokens=0), manager.add_request(PROMPTS[1], max_new_tokens=5)]
        assert [result.generated_tokens for result in collect(manager, again)] == [[], expected[1]]
    assert not manager.is_running()


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"max_requests_per_batch": 3}, [3, 3]),
        ({"max_batch_tokens": 7}, [2, 4]),
        ({"max_batch_tokens": 2}, [1, 2]),  # less than a prompt has: one at a time
    ],
)
def test_as_many_requests_join_as_the_limits_allow(small, monkeypatch, limits, expected):
    sizes, step = [], manager_module.RequestBatch.step
    monkeypatch.setattr(manager_module.RequestBatch, "step", lambda batch: sizes.append(len(batch)) or step(batch))
    manager = small.init_continuous_batching(GREEDY, ContinuousBatchingConfig(**limits))
    names = [manager.add_request([token, 1, 2]) for token in range(5)]
    manager.start()
    collect(manager, names)
    manager.stop()
    assert sizes[:2] == expected


def test_a_batch_by_the_librarys_own_method(small):
    outputs = small.generate_batch(PROMPTS[::2], generation_config=GREEDY)
    assert [o.generated_tokens for o in outputs.values()] == [alone(small, p, 5) for p in PROMPTS[::2]]


def test_a_length_of_the_whole_limits_requests(small, caplog):
    config = GenerationConfig(do_sample=False, eos_token_id=-1, max_length=9)
    outputs = small.generate_batch(PROMPTS[::2], generation_config=config)
    expected = [alone(small, p, 9 - len(p)) if len(p) < 9 else [] for p in PROMPTS[::2]]
    assert [o.generated_tokens for o in outputs.values()] == expected and expected[0]
    assert "max_new_tokens" not in caplog.text


@pytest.mark.parametrize(
    ("ends", "message"),
    [(None, "neither max_new_tokens nor eos_token_id"), (2, "no max_new_tokens: it ends when the model comes to eos")],
)
def test_a_request_without_an_end_is_said(small, caplog, ends, message):
    config = GenerationConfig(do_sample=False, eos_token_id=ends)
    with small.continuous_batching_context_manager(config) as manager:
        name = manager.add_request(PROMPTS[0])
        manager.cancel_request(name)
    assert message in caplog.text


def test_fields_of_the_configuration_without_effect_are_said(small, caplog):
    small.init_continuous_batching(GenerationConfig(do_sample=False, max_length=9, num_return_sequences=1))
    assert not caplog.text
    small.init_continuous_batching(GenerationConfig(num_beams=3, stop_strings=["a"], max_new_tokens=4))
    assert "num_beams=3, stop_strings=['a'] of the generation configuration has no effect here" in caplog.text


@pytest.mark.parametrize("kind", [list, torch.tensor])
def test_tokens_stream_and_an_end_of_sequence_ends(small, kind):
    expected = alone(small, PROMPTS[0], 8)
    stop = expected[3]
    with small.continuous_batching_context_manager(GREEDY) as manager:
        name = manager.add_request(
            PROMPTS[0], max_new_tokens=8, streaming=True, record_timestamps=True, eos_token_id=kind([stop])
        )
        results = list(manager.request_id_iter(name))
    ended = expected[: expected.index(stop) + 1]
    assert [r.generated_tokens for r in results] == [ended[: n + 1] for n in range(len(ended))]
    assert len(results[-1].timestamps) == len(ended)


def test_requests_that_stream_at_once_can_be_read_one_after_the_other(small):
    with small.continuous_batching_context_manager(GREEDY) as manager:
        names = [manager.add_request([7, 8], max_new_tokens=n, streaming=True) for n in (30, 12, 20)]
        lengths = [[len(result.generated_tokens) for result in manager.request_id_iter(name)] for name in names[:2]]
        last = manager.get_result(names[2], timeout=5)
    rest = [result.request_id for result in manager]
    assert lengths == [list(range(1, 31)), list(range(1, 13))]
    assert len(last.generated_tokens) == 1 and rest == [names[2]] * 19


def test_processors_see_the_tokens_of_their_own_request(small):
    """A penalty of repetitions depends on the prompt and what followed it."""
    config = GenerationConfig(do_sample=False, eos_token_id=-1, max_new_tokens=9, repetition_penalty=3.0)
    outputs = small.generate_batch(PROMPTS[::2], generation_config=config)
    expected = [alone(small, prompt, 9, repetition_penalty=3.0) for prompt in PROMPTS[::2]]
    assert [o.generated_tokens for o in outputs.values()] == expected
    assert expected != [alone(small, prompt, 9) for prompt in PROMPTS[::2]]


def tnn():
    return TNNForCausalLM(TNNConfig(**SMALL, num_hidden_layers=2, tie_word_embeddings=False))


@pytest.mark.parametrize("make", [tnn, with_copy_keys, pytest.param(of_all_layers, marks=pytest.mark.slow)])
def test_guidance_without_a_prompt_is_that_of_generate(make):
    """Whether the configuration says nothing of a cache, or one way or the other."""
    torch.manual_seed(0)
    model = quiet(make())
    expected = [alone(model, prompt, 9, guidance_scale=3.0) for prompt in PROMPTS[::2]]
    assert expected != [alone(model, prompt, 9) for prompt in PROMPTS[::2]]
    for use_cache in (None, True, False):
        config = GenerationConfig(do_sample=False, eos_token_id=-1, guidance_scale=3.0, use_cache=use_cache)
        outputs = model.generate_batch(PROMPTS[::2], generation_config=config, max_new_tokens=9)
        assert [(o.error, o.generated_tokens) for o in outputs.values()] == [(None, tokens) for tokens in expected]
        assert config.use_cache is use_cache
    with model.continuous_batching_context_manager(GREEDY) as manager:
        name = manager.add_request(PROMPTS[0], max_new_tokens=9, guidance_scale=3.0)
        assert collect(manager, [name])[0].generated_tokens == expected[0]


def test_a_sampled_request_does_not_depend_on_its_neighbors(small):
    config = GenerationConfig(do_sample=True, top_k=0, eos_token_id=-1, max_new_tokens=12, num_return_sequences=2)
    batching = ContinuousBatchingConfig(seed=3, return_logprobs=True)

    def sample(*prompts):
        with small.continuous_batching_context_manager(config, continuous_batching_config=batching) as manager:
            names = [name for one in manager.add_requests(prompts) for name in (one, f"{one}__child#0")]
            outputs = collect(manager, names)
        return {o.request_id: (o.generated_tokens, o.logprobs) for o in outputs}

    both, first = sample(PROMPTS[0], PROMPTS[2]), sample(PROMPTS[0])
    for name in first:
        assert both[name][0] == first[name][0] and both[name][1] == pytest.approx(first[name][1])
    assert both["req_0"][0] != both["req_0__child#0"][0]
    assert all(-20 < p < 0 for p in first["req_0"][1])
    with small.continuous_batching_context_manager(config, continuous_batching_config=batching) as manager:
        name = manager.add_request(PROMPTS[0], do_sample=False, max_new_tokens=4)
        assert collect(manager, [name])[0].generated_tokens == alone(small, PROMPTS[0], 4)


def test_requests_draw_otherwise_under_each_name_and_seed(small):
    config = GenerationConfig(do_sample=True, top_k=0, eos_token_id=-1, max_new_tokens=12)
    drawn = set()
    for seed in range(3):
        batching = ContinuousBatchingConfig(seed=seed)
        with small.continuous_batching_context_manager(config, continuous_batching_config=batching) as manager:
            names = [manager.add_request(PROMPTS[0], request_id=name) for name in ("0", "1", "2")]
            drawn |= {tuple(output.generated_tokens) for output in collect(manager, names)}
    assert len(drawn) == 9


@pytest.mark.parametrize(
    ("prompt", "arguments", "message"),
    [
        ([1] * 30, {"max_new_tokens": 12}, "30 tokens and max_new_tokens is 12, but the model has learned positions"),
        ([], {}, "the prompt has no tokens"),
        ([VOCAB + 3], {}, "the vocabulary has ids 0 to 60"),
        ([1], {"tempereture": 2.0}, "unknown logit_processor_kwargs"),
        ([1], {"num_beams": 4, "stop_strings": ["a"]}, "cannot have num_beams=4, stop_strings=['a']"),
        ([1], {"max_time": 0.0}, "cannot have max_time=0.0"),
        ([1], {"max_new_tokens": 2.5}, "max_new_tokens is 2.5, a float; it must be an integer"),
        ([1], {"max_new_tokens": "3"}, "max_new_tokens is '3', a str"),
        ([1], {"eos_token_id": "</s>"}, "eos_token_id holds '</s>', a str; each token that ends a request must be"),
        ([1], {"eos_token_id": [2, 5.0]}, "eos_token_id holds 5.0, a float"),
    ],
)
def test_a_request_fails_alone(small, prompt, arguments, message):
    with small.continuous_batching_context_manager(GREEDY) as manager:
        names = [manager.add_request([3, 4]), manager.add_request(prompt, **arguments)]
        good, bad = collect(manager, names)
    assert good.error is None and good.generated_tokens == alone(small, [3, 4], 5)
    assert bad.status == RequestStatus.FAILED and message in bad.error


def test_a_request_may_use_every_position(small):
    with small.continuous_batching_context_manager(GREEDY) as manager:
        [result] = collect(manager, [manager.add_request([1] * 30, max_new_tokens=11)])  # the last is not read
    assert (result.error, result.generated_tokens) == (None, alone(small, [1] * 30, 11))


def test_draws_are_from_the_tokens_that_generate_draws_from():
    """By default the 50 likeliest."""
    model = quiet(TNNForCausalLM(TNNConfig(**{**SMALL, "vocab_size": 400}, num_hidden_layers=1)))
    likeliest = model(torch.tensor([[5]])).logits[0, 0].topk(50).indices.tolist()
    drawing = GenerationConfig(do_sample=True, eos_token_id=-1, max_new_tokens=1, num_return_sequences=100)
    results = model.generate_batch([[5]], generation_config=drawing)
    drawn = {token for result in results.values() for token in result.generated_tokens}
    assert len(results) == 100 and len(drawn) > 20
    assert drawn <= set(likeliest)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("text", "the prompt is text, 'text'.*tokenizer"),
        ([1.5, 2], "holds 1.5, a float"),
        (torch.tensor([[1, 2], [3, 4]]), r"has shape \(2, 2\); a request is one prompt"),
        (torch.tensor([1.0, 2.0]), "holds 1.0, a float"),
    ],
)
def test_a_prompt_of_another_kind_fails_alone(small, prompt, message):
    results = list(small.generate_batch([[5, 6], prompt, torch.tensor([[5, 6]])], generation_config=GREEDY).values())
    assert re.search(message, results[1].error) and results[1].generated_tokens == []
    assert results[0].generated_tokens == results[2].generated_tokens == alone(small, [5, 6], 5)


def test_a_name_that_was_given_by_hand_is_given_to_no_other_request(small):
    manager = small.init_continuous_batching(GREEDY)
    names = [manager.add_request([3, 4], request_id=name) for name in ("req_0", None, "req_2", None)]
    assert names == ["req_0", "req_1", "req_2", "req_3"]


def test_a_name_that_is_no_string_is_refused(small):
    with small.continuous_batching_context_manager(generation_config=GREEDY) as manager:
        with pytest.raises(TypeError, match="request_id is 7, a int; it must be a string: '7'"):
            manager.add_request([5, 6], request_id=7)
        with pytest.raises(TypeError, match="request_id is 7"):
            manager.cancel_request(7)
        name = manager.add_request(torch.tensor([5, 6]), request_id="7")
        assert collect(manager, [name])[0].generated_tokens == alone(small, [5, 6], 5)


@pytest.mark.parametrize("return_logprobs", [False, True])
def test_a_request_without_tokens_to_draw_fails_alone(small, return_logprobs):
    """Mid-flight, between a greedy and a sampled request, which get what they get without the third."""
    batching = ContinuousBatchingConfig(seed=3, return_logprobs=return_logprobs)

    def serve(bad):
        with small.continuous_batching_context_manager(GREEDY, continuous_batching_config=batching) as manager:
            names = [manager.add_request([5, 6], request_id="greedy", max_new_tokens=20)]
            if bad:
                names.append(manager.add_request([7] * 9, request_id="bad", max_new_tokens=25, **bad))
            names.append(manager.add_request([3], request_id="drawn", max_new_tokens=20, do_sample=True))
            results = collect(manager, names)
            assert collect(manager, [manager.add_request([3, 4])])[0].generated_tokens == alone(small, [3, 4], 5)
        return results

    greedy, bad, drawn = serve({**ONCE, "suppress_tokens": list(range(4, VOCAB))})
    assert sorted(bad.generated_tokens) == [0, 1, 2, 3] and bad.status == RequestStatus.FAILED
    assert "no token is left to draw" in bad.error and len(bad.logprobs) == 4 * return_logprobs
    without = serve(None)
    assert [greedy.generated_tokens, drawn.generated_tokens] == [result.generated_tokens for result in without]
    assert greedy.generated_tokens == alone(small, [5, 6], 20) and greedy.error is drawn.error is None


def test_all_of_a_request_fail_where_each_is_without_tokens(small):
    config = GenerationConfig(**ONCE, eos_token_id=-1, max_new_tokens=9, num_return_sequences=2)
    with small.continuous_batching_context_manager(config) as manager:
        name = manager.add_request([3, 4], suppress_tokens=list(range(VOCAB)))
        results = collect(manager, [name, f"{name}__child#0"])
        again = manager.add_request([3, 4])
        assert [r.error for r in collect(manager, [again, f"{again}__child#0"])] == [None, None]
    assert all("no token is left to draw" in result.error for result in results)


def test_a_processor_that_fails_mid_flight_ends_its_request_alone(small, monkeypatch):
    def fail_at_five(self, input_ids, scores):
        if input_ids.shape[1] == 5:
            raise AssertionError
        return scores

    monkeypatch.setattr(NoRepeatNGramLogitsProcessor, "__call__", fail_at_five)
    with small.continuous_batching_context_manager(GREEDY) as manager:
        names = [manager.add_request([7, 8], no_repeat_ngram_size=9), manager.add_request([3, 4])]
        bad, good = collect(manager, names)
    assert bad.error == "AssertionError()" and bad.generated_tokens == alone(small, [7, 8], 3)
    assert good.error is None and good.generated_tokens == alone(small, [3, 4], 5)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_scores_that_are_not_finite_are_not_drawn_from(small, value):
    with small.continuous_batching_context_manager(GREEDY) as manager:
        names = [
            manager.add_request([7, 8], do_sample=True, sequence_bias=[[[5], value]]),
            manager.add_request([3, 4]),
        ]
        bad, good = collect(manager, names)
    assert f"the highest score is {value}, and has to be finite" in bad.error
    assert good.generated_tokens == alone(small, [3, 4], 5)


def test_canceled_and_stopped_requests(small):
    long = {"max_new_tokens": 30}
    manager = small.init_continuous_batching(GREEDY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manager.batch, "step", lambda: [])  # nothing ever ends
        manager.start()
        dropped, failed = manager.add_request([1, 2], **long), manager.add_request([3], **long)
        manager.cancel_request(dropped)
        with manager.pause():
            pass
        while {state.request_id for state in manager.batch.states} != {failed}:
            time.sleep(0.01)
        manager.stop(hard_stop=True)
    (result,) = manager
    assert result.request_id == failed and "stopped before this request was finished" in result.error
    assert manager.add_request([1]) is None and manager.get_result() is None


def test_what_is_canceled_before_it_is_seen_never_runs_and_ends_its_reader(small):
    manager = small.init_continuous_batching(GREEDY)
    with pytest.MonkeyPatch.context() as patch:
        drain = manager_module._drain

        def between(source):
            """A request comes and goes while the manager looks at its queues, one after the other."""
            taken = drain(source)
            patch.setattr(manager_module, "_drain", drain)
            manager.add_request([1, 2], request_id="gone", max_new_tokens=30)
            manager.cancel_request("gone")
            return taken

        patch.setattr(manager_module, "_drain", between)
        patch.setattr(manager.batch, "step", lambda: [])  # nothing ever ends
        manager.start()
        reading = threading.Thread(target=lambda: list(manager.request_id_iter("gone")))
        reading.start()
        other = manager.add_request([3], max_new_tokens=30)
        while {state.request_id for state in manager.batch.states} != {other} or manager._waiting:
            time.sleep(0.01)
        manager.cancel_request("gone")  # to whoever began to read later
        reading.join(10)
        assert not reading.is_alive()
        manager.stop(hard_stop=True)


def test_a_canceled_request_takes_its_further_sequences_with_it(small):
    config = GenerationConfig(do_sample=True, eos_token_id=-1, max_new_tokens=30, num_return_sequences=3)
    manager = small.init_continuous_batching(config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manager.batch, "step", lambda: [])  # nothing ever ends
        manager.start()
        dropped = manager.add_request([1, 2])
        while len(manager.batch.states) < 3:
            time.sleep(0.01)
        manager.cancel_request(dropped)
        while manager.batch.states:
            time.sleep(0.01)
        manager.stop(hard_stop=True)
    assert list(manager) == []


def test_an_error_in_a_step_ends_the_manager_and_its_requests(small):
    manager = small.init_continuous_batching(GREEDY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manager.batch, "step", lambda: 1 / 0)
        manager.start()
        (result,) = collect(manager, [manager.add_request([1, 2])])
        manager.stop()
    assert "division" in result.error and isinstance(manager.background_thread_status.fatal_error, ZeroDivisionError)


def test_results_reach_an_event_loop(small):
    async def serve(manager):
        done = asyncio.get_running_loop().create_future()
        manager.register_result_handler("mine", done.set_result)
        manager.add_request([3, 4], request_id="mine")
        return await asyncio.wait_for(done, 60)

    with small.continuous_batching_context_manager(GREEDY) as manager:
        assert asyncio.run(serve(manager)).generated_tokens == alone(small, [3, 4], 5)


def test_a_manager_is_kept_for_the_next_session(small):
    small.generate_batch([[1]], generation_config=GREEDY, persistent_manager=True)
    kept = small.init_continuous_batching()
    outputs = small.generate_batch([[3, 4]], generation_config=GREEDY, persistent_manager=True)
    assert small.init_continuous_batching() is kept
    assert [o.generated_tokens for o in outputs.values()] == [alone(small, [3, 4], 5)]
    small.destroy_cached_continuous_batching_manager()
    assert small.init_continuous_batching() is not kept and not kept.is_running()


def test_reading_a_request_ends_where_nothing_will_come(small):
    manager = small.init_continuous_batching(GREEDY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manager.batch, "step", lambda: [])  # nothing ever ends
        manager.start()
        name = manager.add_request([1, 2], max_new_tokens=30)
        reading = manager.request_id_iter(name)
        manager.cancel_request(name)
        while manager.batch.states or manager._results.may_come(name):
            time.sleep(0.01)
        assert list(reading) == list(manager.request_id_iter(name)) == list(manager.request_id_iter("unknown")) == []
        manager.stop(hard_stop=True)


def test_a_request_that_was_read_to_its_end_is_not_waited_for(small):
    with small.continuous_batching_context_manager(GREEDY) as manager:
        name = manager.add_request([1, 2])
        assert len(list(manager.request_id_iter(name))) == 1
        assert list(manager.request_id_iter(name)) == []


def test_a_prompt_that_leaves_no_room_fails_alone(small):
    config = GenerationConfig(do_sample=False, eos_token_id=-1, max_length=4)
    with small.continuous_batching_context_manager(config) as manager:
        long, short = collect(manager, [manager.add_request([1, 2, 3, 4, 5]), manager.add_request([1, 2])])
    assert "the prompt has 5 tokens, which leaves 0 to generate: give a shorter prompt" in long.error
    assert short.error is None and len(short.generated_tokens) == 2


def test_a_manager_that_was_kept_says_that_its_configuration_stays(small, caplog):
    kept = small.init_continuous_batching(GREEDY)
    kept.stop(keep_for_next_session=True)
    try:
        assert small.init_continuous_batching() is small.init_continuous_batching(GREEDY) is kept and not caplog.text
        assert small.init_continuous_batching(GenerationConfig(max_new_tokens=2)) is kept
        assert "call destroy_cached_continuous_batching_manager() for one with that given here" in caplog.text
    finally:
        small.destroy_cached_continuous_batching_manager()
