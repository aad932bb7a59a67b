"""What is known of a diffusion policy before its run begins."""

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.algos import DiffusionDPO, DiffusionNFT, DiffusionRFT, DRaFT, GuardedRatio, flow_grpo
from penstock.cli.explanation import explain
from penstock.config.denoising import Denoising
from penstock.core.errors import SpecError
from penstock.models.families import drawing
from penstock.recipes.digits import digits
from penstock.recipes.see import see
from penstock.runtime.check import check_stages


def test_a_denoiser_is_explained_in_pictures_and_transitions():
    said = "\n".join(explain(digits(steps=2)))
    assert "a denoiser from scratch, preset 1m, of pictures [1, 8, 8]" in said
    assert "10 transitions each (flow); 512 pictures in the whole stage" in said
    assert "cache" not in said
    assert "token" not in said


def check(run, **changes):
    """Before the run, whose last stage has these changes."""
    check_stages(replace(run, stages=(run.stages[0], replace(run.stages[1], **changes))), Path.cwd())


@pytest.mark.parametrize("algorithm", [DiffusionNFT(), flow_grpo(objective=GuardedRatio()), DiffusionRFT()])
def test_a_model_that_writes_is_refused_an_algorithm_of_pictures_before_anything_runs(algorithm):
    with pytest.raises(SpecError, match=r"grpo: \w+ trains denoisers, and this stage's model writes text; take another"):
        check(see(), algorithm=algorithm)


def test_a_model_that_writes_is_refused_a_way_to_draw_before_anything_runs():
    with pytest.raises(SpecError, match=r"grpo: .*denoising is how a diffusion policy draws, and this stage's model writes"):
        check(see(), denoising=Denoising())


def test_a_judge_that_is_not_there_is_refused_before_anything_runs():
    with pytest.raises(SpecError, match=r'draft: .*has no "likelyhood"; did you mean "likelihood"'):
        check(digits("draft"), algorithm=DRaFT(judge="penstock.recipes.digits:likelyhood"))


def test_a_model_that_writes_is_refused_an_algorithm_of_pictures_once_it_is_loaded():
    with pytest.raises(SpecError, match="DiffusionDPO trains denoisers, and this model writes text"):
        drawing(object(), None, DiffusionDPO())
