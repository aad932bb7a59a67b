"""What a spec says of models that see, and what is refused before anything is loaded."""

from dataclasses import replace

import pytest

from penstock.algos.ppo import PPO
from penstock.config.engines import VLLM, SGLang
from penstock.config.keeping import RolesSpec
from penstock.config.learner import LoRA
from penstock.config.media import Hearing, Vision
from penstock.config.optimizers import AdamW
from penstock.config.parts import ModelSpec
from penstock.config.run import Run
from penstock.config.spec import parse, plain
from penstock.config.strategies import DDP, FSDP2
from penstock.core.errors import SpecError
from penstock.recipes.hear import hear
from penstock.recipes.see import see


def changed(**learner):
    run = see()
    stage = run.stages[1]
    return replace(stage, learner=replace(stage.learner, **learner))


def test_a_run_comes_back_from_json_with_what_its_models_see():
    run = see()
    assert parse(Run, plain(run)) == run
    assert run.stages[1].model.media == Vision(frozen=False)


HEARD = {"prompt": "<audio>{{ question }}"}


@pytest.mark.parametrize(
    ("media", "data", "message"),
    [
        (None, {}, r"grpo: <image> is in the prompt, and .* alone; set model.media=Vision\(\)"),
        (Hearing(), {}, r"<image> is in the prompt, and the model has model.media=Hearing\(\)"),
        (Vision(), HEARD, r"<audio> is in the prompt, .*; set model.media=Hearing\(\)"),
    ],
    ids=["of a model that reads text alone", "of a model that hears", "a sound of a model that sees"],
)
def test_a_mark_in_the_prompt_that_the_model_does_not_read_is_refused(media, data, message):
    stage = see().stages[1]
    with pytest.raises(SpecError, match=message):
        replace(stage, model=ModelSpec(path="@sft", media=media), data=replace(stage.data, **data))


@pytest.mark.parametrize(
    "learner",
    [
        {"strategy": DDP(ranks=2)},
        {"strategy": FSDP2(ranks=2)},
        {"lora": LoRA()},
        {"unfrozen_layers": 1},
        {"critic": "separate"},
        {"dtype": "mixed"},
        {"replay_routes": True},
    ],
)
def test_learners_that_do_not_train_models_that_see_are_refused(learner):
    with pytest.raises(SpecError, match="grpo: a model of media is trained whole on one device"):
        changed(**learner)


def test_what_is_supported_is_not_refused():
    assert changed(optimizer=AdamW(weight_decay=0.1), dtype="bfloat16").model.media
    stage = see().stages[1]
    assert replace(stage, algorithm=PPO(), learner=replace(stage.learner, critic="shared")).model.media


@pytest.mark.parametrize(
    "changes",
    [{"runtime": "ray"}, {"runtime": "procs", "roles": RolesSpec(engine=SGLang())}],
)
def test_engines_and_runtimes_that_get_no_pictures_are_refused(changes):
    run = see()
    checkpoint = replace(run.checkpoint, every=1)
    with pytest.raises(SpecError, match="media reach Penstock's own engine"):
        replace(run, checkpoint=checkpoint, **changes)


def test_vllm_is_sent_pictures_and_no_sounds():
    run = see()
    run = replace(run, checkpoint=replace(run.checkpoint, every=1))
    over = {"runtime": "procs", "roles": RolesSpec(engine=VLLM())}
    assert replace(run, **over).stages[1].reads_media
    heard = replace(hear(), checkpoint=run.checkpoint)
    with pytest.raises(SpecError, match="media reach Penstock's own engine, and pictures and films vLLM"):
        replace(heard, **over)


@pytest.mark.parametrize(
    ("make", "fields", "message"),
    [
        (Vision, {"frames": -1}, "vision.frames=-1 is negative"),
        (Vision, {"fps": -1}, "vision.fps=-1 is negative"),
        (Vision, {"pixels": -1}, "vision.pixels=-1 is negative"),
        (Hearing, {"rate": 8001}, "hearing.rate=8001: use a multiple of 50"),
        (Hearing, {"seconds": 0}, "hearing.seconds=0 is no length of a sound"),
        (ModelSpec, {"architecture": "encoder-decoder", "media": Vision()}, "media are read by decoders"),
        (ModelSpec, {"media": LoRA()}, "model.media is neither Vision nor Hearing"),
    ],
)
def test_impossible_media_are_refused(make, fields, message):
    with pytest.raises(SpecError) as refused:
        make(**fields)
    assert message in str(refused.value)
