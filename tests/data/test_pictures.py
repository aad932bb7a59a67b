"""Pictures of rows as blobs: what may be given, one name for one picture, and what a prompt keeps of it."""

import io

import numpy as np
import pytest
from PIL import Image

import seeing
from penstock.algos.sft import SFT
from penstock.config.parts import Truncate
from penstock.config.run import DataSpec
from penstock.core.errors import DataError, SpecError
from penstock.data.media import MediaStore, illustrated
from penstock.data.texts import prompt_tokens
from penstock.data.units import Units, prompts_of
from penstock.models.media import MEDIA

PIXELS = seeing.picture((8, 16))


def png(pixels, **options):
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG", **options)
    return out.getvalue()


@pytest.fixture
def pictures(tmp_path):
    return MediaStore(tmp_path / "blobs")


def rows(count: int = 3):
    """Rows with a picture each, for data specs of this file."""
    return [{"image": seeing.picture(seed=n), "question": "what?", "answer": "12"} for n in range(count)]


@pytest.fixture(scope="module")
def model():
    """Shared; the tests add pictures to its store."""
    return seeing.built()


def units(model, tmp_path, **changes):
    return Units(spec(**changes), tmp_path, 0, SFT(), model.text, model.context)


def spec(**changes):
    options = {"prompt": "<image>{{ question }}", "completion": " {{ answer }}", "shuffle": False}
    return DataSpec(source="test_pictures:rows", **(options | changes))


def test_the_same_picture_has_one_name_whatever_it_came_in(pictures, tmp_path):
    (tmp_path / "one.png").write_bytes(png(PIXELS, compress_level=1))
    found = [
        pictures.add(PIXELS, "a row", tmp_path),
        pictures.add("one.png", "a row", tmp_path),
        pictures.add(png(PIXELS, compress_level=9), "a row", tmp_path),
    ]
    assert len(set(found)) == 1
    assert [file.name for file in (tmp_path / "blobs").iterdir()] == [found[0].hash]


@pytest.mark.parametrize("folder", [True, False])
def test_pixels_come_back_by_number(folder, tmp_path):
    pictures = MediaStore(tmp_path / "blobs" if folder else None)
    blob = pictures.add(PIXELS, "a row", tmp_path)
    assert blob.number == int(blob.hash[:15], 16)
    np.testing.assert_array_equal(pictures.decoded(blob.number), PIXELS)


def test_a_picture_that_another_process_put_there_is_found(pictures, tmp_path):
    blob = pictures.add(PIXELS, "a row", tmp_path)
    np.testing.assert_array_equal(MediaStore(tmp_path / "blobs").decoded(blob.number), PIXELS)


def test_grey_pictures_get_three_equal_channels(pictures, tmp_path):
    blob = pictures.add(PIXELS[:, :, 0], "a row", tmp_path)
    assert (pictures.decoded(blob.number) == PIXELS[:, :, :1]).all()


def test_pixels_in_another_shape_are_another_picture(pictures, tmp_path):
    flat = np.zeros((4, 6), np.uint8)
    assert pictures.add(flat, "a row", tmp_path) != pictures.add(flat.reshape(6, 4), "a row", tmp_path)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros((4, 4)), "image is float64 (4, 4); give a path, the bytes of a picture file, or uint8"),
        (np.zeros((4, 4, 4), np.uint8), "image is uint8 (4, 4, 4)"),
        (5, "image is int"),
        ("none.png", "'none.png' cannot be read: No such file"),
        (b"no picture", "the picture cannot be decoded: UnidentifiedImageError"),
        (png(PIXELS)[:60], "the picture cannot be decoded"),
    ],
)
def test_what_is_no_picture_is_refused_with_its_row(pictures, value, message, tmp_path):
    with pytest.raises(DataError) as refused:
        pictures.add(value, "digits/0/3", tmp_path)
    assert str(refused.value).startswith("digits/0/3: ")
    assert message in str(refused.value)


def test_a_prompt_keeps_the_name_of_its_picture_and_no_pixel(model, tmp_path):
    prompt = prompts_of(spec(), tmp_path, 0, model.text)(1)
    assert prompt.columns["image"] == prompt.blobs[0].hash
    assert prompt.text == "<image>what?"
    assert not any(isinstance(value, np.ndarray) for value in prompt.columns.values())


def test_a_row_may_have_several_pictures(model, tmp_path):
    change = illustrated(model.text.store, tmp_path)
    prompt = prompts_of(spec(), tmp_path, 0, seeing.tiny_text())(0)
    two = change(type(prompt)(prompt.key, "<image><image>", columns={"image": [PIXELS, seeing.picture()]}))
    assert len(two.blobs) == 2
    assert two.columns["image"] == [blob.hash for blob in two.blobs]


def test_a_chat_shows_pictures_where_its_message_says(model, tmp_path):
    prompt = prompts_of(spec(chat=True), tmp_path, 0, model.text)(0)
    tokens_T = prompt_tokens(prompt, model.text)
    assert model.text.media_columns(tokens_T, prompt.blobs)[MEDIA].astype(bool).sum() == 9
    assert model.text.tokenizer.decode(tokens_T[:3]).startswith("<|im_start|>")
    (row,) = units(model, tmp_path, chat=True)(0)
    np.testing.assert_array_equal(row.tokens_T[: len(tokens_T)], tokens_T)


def test_a_row_without_a_picture_stays_as_it_is(tmp_path):
    prompt = prompts_of(spec(), tmp_path, 0, seeing.tiny_text())(0)
    bare = type(prompt)(prompt.key, "what?", columns={"question": "what?"})
    assert illustrated(MediaStore(), tmp_path)(bare) is bare


def test_rows_to_imitate_say_which_tokens_show_their_picture(model, tmp_path):
    (row,) = units(model, tmp_path)(2)
    (blob,) = seeing.shown(model, seeing.picture(seed=2))
    assert (row.columns[MEDIA] == blob.number).sum() == 9
    assert not row.columns[MEDIA][row.action_T].any()


def test_rows_with_pictures_are_not_cut(model, tmp_path):
    with pytest.raises(SpecError, match="half a medium shows nothing"):
        units(model, tmp_path, too_long=Truncate(tokens=8))


def test_a_row_whose_picture_has_no_mark_is_named(model, tmp_path):
    with pytest.raises(DataError, match="test_pictures:rows row 0: the prompt has 1 pictures and 0 marks <image>"):
        units(model, tmp_path, prompt="{{ question }}")(0)
