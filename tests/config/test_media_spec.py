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


def test_a_mark_in_the_prompt_of_a_model_that_reads_text_alone_is_refused():
    with pytest.raises(SpecError, match=r"grpo: <image> is in the prompt, and .* alone; set model.media=Vision\(\)"):
        replace(see().stages[1], model=ModelSpec(path="@sft"))


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


def test_encoder_decoders_do_not_see():
    with pytest.raises(SpecError, match="media are read by decoders"):
        ModelSpec(architecture="encoder-decoder", media=Vision())


def test_something_else_than_a_vision_is_refused():
    with pytest.raises(SpecError, match=r"model\.media is neither Vision nor Hearing"):
        ModelSpec(media=LoRA())


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
    ("make", "message"),
    [
        (lambda: Vision(frames=-1), "vision.frames=-1 is negative"),
        (lambda: Vision(fps=-1), "vision.fps=-1 is negative"),
        (lambda: Hearing(rate=8001), "hearing.rate=8001: use a multiple of 50"),
        (lambda: Hearing(seconds=0), "hearing.seconds=0 is no length of a sound"),
    ],
)
def test_impossible_media_are_refused(make, message):
    with pytest.raises(SpecError) as refused:
        make()
    assert message in str(refused.value)


def test_a_mark_that_the_model_does_not_read_is_refused():
    stage = see().stages[1]
    with pytest.raises(SpecError, match=r"<image> is in the prompt, and the model has model.media=Hearing\(\)"):
        replace(stage, model=ModelSpec(path="@sft", media=Hearing()))
    with pytest.raises(SpecError, match=r"<audio> is in the prompt, .*; set model.media=Hearing\(\)"):
        replace(stage, data=replace(stage.data, prompt="<audio>{{ question }}"))


def test_a_negative_number_of_pixels_is_refused():
    with pytest.raises(SpecError, match=r"vision\.pixels=-1 is negative"):
        Vision(pixels=-1)
