"""What a user is told who misspells a name."""

from hf_seqmix.training.spelling import allowed_names


def test_names_that_are_like_allowed_ones_are_guessed_and_others_answered_by_all_there_are() -> None:
    allowed = ("hidden_size", "num_heads", "decay")
    assert allowed_names(["hiden_size", "decays"], allowed) == "did you mean hidden_size, decay?"
    assert allowed_names(["hiden_size", "xyz"], allowed) == "allowed are hidden_size, num_heads, decay."
    assert allowed_names(["lr"], allowed) == "allowed are hidden_size, num_heads, decay."
    assert allowed_names(["lr"], allowed, "see --help.") == "see --help."
    assert allowed_names(["decayy", "decays"], allowed, "see --help.") == "did you mean decay?"
