"""The figure of what models of limited separation rank leave."""

import pytest
import torch

from hf_seqmix.analysis.degree.bound_plots import plot_error_bounds
from hf_seqmix.analysis.degree.separation_rank import separation_spectrum


def test_plot_of_bounds(tmp_path):
    spectra = {"flat": separation_spectrum(torch.eye(8)), "single": separation_spectrum(torch.ones(4, 4))}
    plot_error_bounds(spectra, tmp_path / "bounds.png", max_rank=16, title="title")
    assert (tmp_path / "bounds.png").stat().st_size > 10_000
    with pytest.raises(ValueError, match="0 spectra"):
        plot_error_bounds({}, tmp_path / "no.png")
    with pytest.raises(ValueError, match="up to rank 0"):
        plot_error_bounds(spectra, tmp_path / "no.png", max_rank=0)
