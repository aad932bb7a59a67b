"""Models that see: positions by hand, one pass for pictures and text, towers that learn or stay, folders of transformers."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText

import seeing
from penstock.config.learner import LearnerSpec
from penstock.config.media import Vision
from penstock.config.run import ModelSpec
from penstock.core.errors import DataError, ModelError, TrainingError
from penstock.models.files import load_model, save_model
from penstock.models.language_policy import LanguagePolicy
from penstock.models.scratch import build_model
from penstock.train.learner import DeviceLearner, LearnerPlan, Scoring

LOGP = frozenset({"logp"})


@pytest.fixture(scope="module")
def model():
    """Shared, so never to be changed."""
    return seeing.built()


def logps(model, *rows):
    """The learner's log-probs of the rows of a unit."""
    return Scoring(LanguagePolicy(model)).score([rows], LOGP)["logp"]


def asked(model, *answer):
    """A picture, and a row that answers what it is."""
    (blob,) = seeing.shown(model, seeing.picture())
    return blob, seeing.row(model, "<image>what?", answer, (blob,))


def backward(model, row, policy=None):
    """The gradient of the log-probs of a row, in the parameters."""
    policy = policy or LanguagePolicy(model)
    (batch,) = policy.lay_out([(row,)], 4096)
    policy.outputs(batch, LOGP)["logp"].sum().backward()


def learning():
    """A learner of a tower that is trained."""
    model = seeing.built(frozen=False)
    return DeviceLearner(LanguagePolicy(model), LearnerSpec(learning_rate=1e-2), LearnerPlan(total_steps=2))


def first_weights(model):
    return model.tower.patch_embed.proj.weight


def test_positions_by_hand(model):
    """Two tokens of text, a picture of 2 x 3 tokens, text: in it height and width count, after it text goes on from 2 + 3."""
    (blob,) = seeing.shown(model, seeing.picture((16, 24)))
    position_3T, part_T = model.text.senses.places(np.array([0, 0, *[blob.number] * 6, 0, 0]))
    assert position_3T[0].tolist() == [0, 1, 2, 2, 2, 2, 2, 2, 5, 6]
    assert position_3T[1].tolist() == [0, 1, 2, 2, 2, 3, 3, 3, 5, 6]
    assert position_3T[2].tolist() == [0, 1, 2, 3, 4, 2, 3, 4, 5, 6]
    assert part_T.tolist() == [0, 0, 0, 1, 2, 3, 4, 5, 0, 0]


def test_a_picture_stands_for_its_grid_over_the_square_of_the_merge(model):
    for size, tokens in zip(seeing.SIZES, (9, 6, 2, 3), strict=True):
        (blob,) = seeing.shown(model, seeing.picture(size))
        (grid,) = model.text.senses.of(blob.number).inputs["image_grid_thw"].numpy()
        assert model.text.senses.tokens(blob.number) == np.prod(grid) // 4 == tokens
        made = model.text.showing((blob,)).prompt("a<image>b")
        assert made.count(model.network.config.image_token_id) == tokens


def test_a_shared_prefix_with_its_picture_is_packed_once_and_changes_nothing(model):
    (blob,) = seeing.shown(model, seeing.picture())
    rows = tuple(seeing.row(model, "<image>what?", [50 + n, 60], (blob,)) for n in range(4))
    (shared,), (split,) = LanguagePolicy(model).lay_out([rows], 4096), LanguagePolicy(model, 1.0, False).lay_out([rows], 4096)
    assert (shared.media_N == blob.number).sum() == 9
    assert (split.media_N == blob.number).sum() == 36
    apart = np.concatenate([logps(model, row)[0] for row in rows])
    np.testing.assert_allclose(np.concatenate(logps(model, *rows)), apart, atol=5e-5)


def test_rows_that_show_other_pictures_share_only_what_is_before_them(model):
    one, other = seeing.shown(model, seeing.picture(seed=1), seeing.picture(seed=2))
    rows = tuple(seeing.row(model, "<image>what?", [50], (blob,)) for blob in (one, other))
    (batch,) = LanguagePolicy(model).lay_out([rows], 4096)
    assert len(batch.tokens_N) == sum(len(row.tokens_T) for row in rows) - 1
    assert abs(np.subtract(*logps(model, *rows))).max() > 1e-3


@pytest.mark.parametrize("frozen", [True, False])
def test_a_frozen_tower_gets_no_gradient_and_one_that_is_not_does(frozen):
    model = seeing.built(frozen)
    backward(model, asked(model, 50, 51)[1])
    grown = [parameter.grad is not None and bool(parameter.grad.any()) for parameter in model.tower.parameters()]
    assert any(grown) is not frozen
    assert model.network.get_input_embeddings().weight.grad is not None


def test_the_gradient_of_the_tower_is_that_of_transformers():
    model = seeing.built(frozen=False)
    blob, row = asked(model, 50)
    backward(model, row)
    ours = first_weights(model).grad.clone()
    model.network.zero_grad()
    tokens = torch.from_numpy(row.tokens_T.astype(np.int64))[None]
    model.network.set_attn_implementation("eager")
    logits = model.network(
        input_ids=tokens, **model.text.senses.of(blob.number).inputs, use_cache=False,
        mm_token_type_ids=(tokens == model.network.config.image_token_id).int(),
    ).logits[0, -2]  # fmt: skip
    logits[sorted(model.text.media)] = -1e9
    logits.log_softmax(-1)[50].backward()
    torch.testing.assert_close(ours, first_weights(model).grad, atol=1e-4, rtol=1e-3)


def test_an_optimizer_step_of_the_tower_changes_what_is_seen_at_once():
    """The fused optimizer leaves no trace on the parameters, so features kept from before a step must be given up by name."""
    learner = learning()
    model = learner.policy.model
    (blob,) = seeing.shown(model, seeing.picture())
    with torch.no_grad():
        (before,) = model.encoded([blob.number])
    for parameter in model.tower.parameters():
        parameter.grad = torch.ones_like(parameter)
    learner.masters.step(1e-2, 1e9)
    learner.policy.stepped(1)
    with torch.no_grad():
        (after,) = model.encoded([blob.number])
        (fresh,) = model._encode([model.text.senses.of(blob.number)])
    assert float((after - before).abs().max()) > 1e-3
    torch.testing.assert_close(after, fresh)


def test_a_step_on_text_alone_leaves_a_tower_that_is_trained_as_it_was():
    learner = learning()
    model = learner.policy.model
    before = first_weights(model).detach().clone()
    backward(model, seeing.row(model, "what?", [50, 51]), learner.policy)
    learner.masters.step(1e-2, 1e9)
    torch.testing.assert_close(first_weights(model), before, atol=0, rtol=0)


def test_blocks_that_are_computed_twice_give_the_same_gradient():
    found = []
    for again in (False, True):
        model = seeing.built(frozen=False)
        spec = LearnerSpec(gradient_checkpointing=again)
        policy = DeviceLearner(LanguagePolicy(model), spec, LearnerPlan(total_steps=1)).policy
        backward(model, asked(model, 50, 51)[1], policy)
        found.append(first_weights(model).grad)
    torch.testing.assert_close(*found)


def test_a_critic_with_a_trunk_of_its_own_is_refused(model):
    one = torch.zeros(1, 1, dtype=torch.int64)
    with pytest.raises(ModelError, match=r"set learner\.critic=shared or none"):
        model.hidden(one, one, None, torch.nn.Identity())


def test_tokens_of_media_have_no_probability(model):
    hidden_AH = torch.randn(3, model.config.hidden_size)
    probability_AV = model.logits(hidden_AH).softmax(-1).detach()
    assert float(probability_AV[:, sorted(model.text.media)].max()) == 0.0
    assert len(model.text.media) == 2


def test_an_action_that_stands_for_a_part_of_a_picture_is_refused(model):
    row = seeing.row(model, "what?", [50])
    row.columns["tokens_T"][-1] = model.network.config.image_token_id
    with pytest.raises(TrainingError, match="row 0: an action shows a part of a medium"):
        logps(model, row)


def test_a_folder_loads_with_transformers_own_class_and_gives_the_same_logits(model, tmp_path):
    save_model(model, tmp_path / "saved")
    whole = AutoModelForImageTextToText.from_pretrained(tmp_path / "saved").eval()
    loaded = load_model(str(tmp_path / "saved"), media=Vision())
    loaded.text.store = model.text.store
    (blob,) = seeing.shown(model, seeing.picture((16, 24)))
    tokens_T = np.asarray(loaded.text.showing((blob,)).prompt("what <image> is it?"), np.int32)
    tokens = torch.from_numpy(tokens_T.astype(np.int64))[None]
    with torch.no_grad():
        theirs = whole(
            input_ids=tokens, **loaded.text.senses.of(blob.number).inputs,
            mm_token_type_ids=(tokens == whole.config.image_token_id).int(),
        ).logits[0]  # fmt: skip
    torch.testing.assert_close(seeing.transformers_logits(loaded, tokens_T, (blob,)), theirs, atol=2e-4, rtol=1e-4)
    again = seeing.row(loaded, "what <image> is it?", [50, 51], (blob,))
    np.testing.assert_array_equal(logps(loaded, again)[0], logps(model, again)[0])


def test_a_folder_is_read_as_text_alone_where_nobody_wants_to_see(model, tmp_path):
    save_model(model, tmp_path / "saved")
    blind = load_model(str(tmp_path / "saved"))
    assert type(blind.network).__name__ == "Qwen2ForCausalLM"
    with pytest.raises(ModelError, match=r"reads text alone; .*model.media=Vision\(\)"):
        blind.text.showing(seeing.shown(model, seeing.picture()))


def test_rows_with_pictures_are_not_given_to_a_model_that_reads_text_alone(model, tiny):
    with pytest.raises(TrainingError, match="rows show media to a model that reads text alone"):
        logps(tiny(), asked(model, 50)[1])


def test_another_type_of_model_cannot_be_made_to_see(tiny, tmp_path):
    save_model(tiny(), tmp_path / "saved")
    with pytest.raises(
        ModelError, match='Vision of type "qwen2" is not supported, that of qwen2_vl, qwen2_5_vl, qwen3_vl, llava, gemma3, '
    ):
        load_model(str(tmp_path / "saved"), media=Vision())


def test_the_size_of_the_model_from_scratch():
    model = build_model(ModelSpec(layers=3, vocabulary=320, context=64, media=Vision()), ["which digit?"], 0)
    assert 0.7e6 < sum(parameter.numel() for parameter in model.network.parameters()) < 0.9e6
    model.check()


@pytest.mark.parametrize(
    ("text", "pictures", "message"),
    [
        ("what?", 1, "has 1 pictures and 0 marks <image>"),
        ("<image>what?", 0, "has 0 pictures and 1 marks <image>"),
        ("<image> <|image_pad|>", 1, "the text spells <|image_pad|>, which is a part of a medium"),
    ],
)
def test_prompts_whose_marks_and_pictures_differ_are_refused(model, text, pictures, message):
    with pytest.raises(ModelError) as refused:
        model.text.showing(seeing.shown(model, *[seeing.picture()] * pictures)).prompt(text)
    assert message in str(refused.value)


def test_tokens_that_are_not_those_of_the_pictures_are_refused(model):
    one, other = seeing.shown(model, seeing.picture((24, 24)), seeing.picture((8, 16)))
    tokens_T = np.asarray(model.text.showing((one,)).prompt("<image>"), np.int32)
    with pytest.raises(ModelError, match="9 tokens show pictures, and the pictures have 2"):
        model.text.media_columns(tokens_T, (other,))


def test_what_the_processor_made_is_kept_by_picture_and_settings(model):
    senses, (blob,) = seeing.built().text.senses, seeing.shown(model, seeing.picture((24, 24), seed=9))
    senses.store = model.text.store
    first = senses.of(blob.number)
    assert senses.of(blob.number) is first
    senses.processor.processor.size = {"shortest_edge": 64, "longest_edge": 16 * 16}
    assert senses.of(blob.number).grid == (1, 2, 2)
    assert len(senses._kept) == 2


def test_encoded_pictures_are_forgotten_where_they_take_too_much(monkeypatch):
    """A server is shown new pictures for ever."""
    model, seen = seeing.built(), []
    names = [blob.number for blob in seeing.shown(model, *(seeing.picture(seed=seed) for seed in range(4)))]
    size = model.encoded(names[:1])[0].nbytes
    monkeypatch.setattr("penstock.models.media_model.ROOM", 2 * size)
    for name in names:
        model.encoded([name])
        seen.append(len(model._features))
    assert seen == [1, 2, 3, 1]


def test_a_picture_that_nobody_has_is_an_error(model):
    with pytest.raises(DataError, match="medium 000000000000005 is not in memory"):
        model.text.senses.of(5)
