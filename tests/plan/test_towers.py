"""What a tower takes: counted before it is there, and from the headers of a folder."""

import json
from dataclasses import replace

import pytest

import seeing
from penstock.cli.explanation import explain
from penstock.config.learner import LearnerSpec
from penstock.config.media import Hearing, Vision
from penstock.config.run import ModelSpec
from penstock.models.files import save_model
from penstock.models.presets import new_tower, preset_shape, shape_behind, shape_of, tower_in
from penstock.models.scratch import build_model
from penstock.plan.memory import footprint
from penstock.recipes.see import see


@pytest.mark.parametrize("media", [Vision(), Hearing(), Hearing(seconds=3)])
@pytest.mark.parametrize("preset", ["1m", "3m"])
def test_parameters_of_a_new_tower_are_counted_before_it_is_there(media, preset):
    spec = ModelSpec(preset=preset, vocabulary=320, context=64, media=media)
    tower = build_model(spec, ["which digit?"], 0).tower
    assert new_tower(spec) == sum(parameter.numel() for parameter in tower.parameters())


@pytest.mark.parametrize("kind", ["qwen2_vl", "gemma3", "idefics3", "qwen2_audio", "llava"])
def test_parameters_of_a_tower_are_read_from_the_headers_of_its_folder(kind, tmp_path):
    model = seeing.of_kind(kind)
    save_model(model, tmp_path / "model")
    assert tower_in(tmp_path / "model") == sum(parameter.numel() for parameter in model.tower.parameters())


def test_a_folder_is_sized_with_its_tower_only_where_media_are_read(tmp_path):
    save_model(seeing.of_kind("qwen2_vl"), tmp_path / "model")
    run, path = see(), str(tmp_path / "model")
    seeing_one, text_alone = (shape_behind(ModelSpec(path=path, media=media), run) for media in (Vision(frozen=False), None))
    assert (seeing_one.tower > 0, seeing_one.tower_learns, text_alone.tower) == (True, True, 0)
    assert seeing_one.parameters == text_alone.parameters


def test_a_folder_whose_part_for_text_leaves_fields_out_is_sized_when_it_is_loaded(tmp_path):
    """As Gemma 3's config.json does."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": {"hidden_size": 64}}))
    assert shape_of(tmp_path) is None


def test_a_frozen_tower_takes_its_weights_and_one_that_learns_gradients_and_moments_too():
    bare = replace(preset_shape("1m"), vocabulary=320)
    plain = footprint(bare, LearnerSpec())
    frozen = footprint(replace(bare, tower=1000), LearnerSpec())
    learning = footprint(replace(bare, tower=1000, tower_learns=True), LearnerSpec(), reference=True)
    assert frozen.weights - plain.weights == 4000
    assert (frozen.gradients, frozen.moments) == (plain.gradients, plain.moments)
    assert learning.weights == 2 * frozen.weights
    assert (learning.gradients - plain.gradients, learning.moments - plain.moments) == (4000, 8000)


def test_explain_names_the_tower():
    assert sum("0.19M in its tower" in line for line in explain(see())) == 2
