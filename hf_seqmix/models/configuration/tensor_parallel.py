"""The plan by which the library's tensor parallelism splits a model's linear layers."""

from collections.abc import Sequence

__all__ = ["GLU_PLAN", "gathered_plan", "tensor_parallel_plan"]

Plan = dict[str, str]
"""Name of a module or parameter, a star for each number in it -> a style of the library."""

GLU_PLAN: Plan = {"gate_proj": "colwise", "up_proj": "colwise", "down_proj": "rowwise"}
"""Of the gated linear unit."""

_GATHERED = {"colwise": "colwise_gather_output", "rowwise": "rowwise_split_input"}


def gathered_plan(plan: Plan) -> Plan:
    """Turn the plan of a mixer into one that splits its projections only: each device has all channels.

    What a mixer has of its own, by channels (`operator...`), then stays whole.
    """
    return {name: _GATHERED.get(style, style) for name, style in plan.items() if not name.startswith("operator")}


def tensor_parallel_plan(mixers: Sequence[Plan | None], feed_forward: Plan, has_tokens: bool) -> Plan:
    """Return a backbone's plan.

    The library knows layers by their names without the number. Mixers of a hybrid may want layers of one name split in
    two ways. Then the projections of all its mixers are split, and none of the mixing. Where one mixer has no plan,
    all mixers stay whole.

    Args:
        mixers: the plan of each kind of mixer, names from the mixer on; None for one that is not to be split.
        feed_forward: names from the feed-forward on.
        has_tokens: whether there is an embedding of tokens.
    """
    known = [plan for plan in mixers if plan is not None]
    merged: Plan = {}
    if len(known) == len(mixers):
        merged = {name: style for plan in known for name, style in plan.items()}
        if any(merged[name] != style for plan in known for name, style in plan.items()):
            merged = {name: style for plan in known for name, style in gathered_plan(plan).items()}
    embedding: Plan = {"embed_tokens": "embedding_rowwise"} if has_tokens else {}
    return {
        **embedding,
        **{f"layers.*.mixer.{name}": style for name, style in merged.items()},
        **{f"layers.*.mlp.{name}": style for name, style in feed_forward.items()},
    }
