"""Films and sounds of rows as blobs: what may be given, one name for one medium, which frames are read, what is refused."""

import io
import wave

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import seeing
from penstock.config.media import Vision
from penstock.core.blobs import Film, Sound
from penstock.core.errors import DataError
from penstock.core.types import Prompt, PromptKey
from penstock.data.media import MediaStore, illustrated, thinned
from penstock.data.pictures import from_file, from_film

FRAMES = np.stack([seeing.picture((8, 12), seed) for seed in range(3)])


def animated(frames, kind, **options):
    out = io.BytesIO()
    first, *others = [Image.fromarray(frame) for frame in frames]
    first.save(out, kind, save_all=True, append_images=others, duration=250, **options)
    return out.getvalue()


def wav(samples, rate=8000, channels=1, width=2):
    out = io.BytesIO()
    with wave.open(out, "wb") as opened:
        opened.setnchannels(channels)
        opened.setsampwidth(width)
        opened.setframerate(rate)
        opened.writeframes(samples.tobytes())
    return out.getvalue()


@pytest.fixture
def store(tmp_path):
    return MediaStore(tmp_path / "blobs")


def test_the_same_film_has_one_name_whatever_it_came_in(store, tmp_path):
    (tmp_path / "film").mkdir()
    for place, frame in enumerate(FRAMES):
        Image.fromarray(frame).save(tmp_path / "film" / f"{place}.png")
    (tmp_path / "film.webp").write_bytes(animated(FRAMES, "WEBP", lossless=True))
    forms = [(FRAMES, 4), (list(FRAMES), 4.0), ("film", 4), "film.webp", animated(FRAMES, "PNG")]
    assert len({store.add(form, "a row", tmp_path, "video") for form in forms}) == 1
    (file,) = (tmp_path / "blobs").iterdir()
    film = store.decoded(int(file.name[:15], 16))
    np.testing.assert_array_equal(film.frames_FHWC, FRAMES)
    assert film.rate == 4


def test_a_film_that_does_not_say_its_rate_has_two_frames_a_second(store, tmp_path):
    blob = store.add(FRAMES[..., 0], "a row", tmp_path, "video")
    assert blob.medium == "video"
    film = store.decoded(blob.number)
    assert film.rate == 2
    assert (film.frames_FHWC == FRAMES[..., :1]).all()


def test_a_gif_says_its_rate(store, tmp_path):
    flat = [np.full((8, 8, 3), level, np.uint8) for level in (0, 255, 0)]
    film = store.decoded(store.add(animated(flat, "GIF"), "a row", tmp_path, "video").number)
    assert film.rate == 4
    assert film.frames_FHWC[:, 0, 0, 0].tolist() == [0, 255, 0]


@given(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.floats(0.1, 60))
def test_frames_come_back_from_the_file_even_where_some_are_equal(levels, rate):
    film = Film(np.stack([FRAMES[level] for level in levels]), rate)
    back = from_file(from_film(film, "a test")[0], "a test")
    np.testing.assert_array_equal(back.frames_FHWC, film.frames_FHWC)
    assert back.rate == rate


def test_frames_are_chosen_by_how_many_a_second_and_then_by_how_many():
    """Of 10 a second 2.5: every fourth, 0, 4, 8, …, 24; of these seven 3, from first to last: 0, 12, 24, 1.2 s apart."""
    frames = np.arange(25, dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 2, 3), np.uint8)
    film = Film(frames, 10.0)
    some = thinned(film, Vision(fps=2.5), "a row")
    assert some.frames_FHWC[:, 0, 0, 0].tolist() == [0, 4, 8, 12, 16, 20, 24]
    assert some.rate == 2.5
    few = thinned(film, Vision(fps=2.5, frames=3), "a row")
    assert few.frames_FHWC[:, 0, 0, 0].tolist() == [0, 12, 24]
    assert few.rate == pytest.approx(1 / 1.2)
    assert thinned(film, Vision(fps=30, frames=40), "a row") is film


def test_the_same_sound_has_one_name_whatever_it_came_in(store, tmp_path):
    pulses = np.array([0, 100, -32767, 32767], "<i2")
    (tmp_path / "a.wav").write_bytes(wav(pulses))
    twice = wav(np.repeat(pulses, 2), channels=2)
    floats = (pulses / 32767).astype(np.float32)
    found = {store.add(form, "a row", tmp_path, "audio") for form in ("a.wav", wav(pulses), twice, (floats, 8000))}
    assert len(found) == 1
    sound = store.decoded(found.pop().number)
    assert isinstance(sound, Sound)
    assert sound.rate == 8000
    np.testing.assert_allclose(sound.samples_S, floats, atol=1e-7)


def test_wavs_of_8_and_32_bits_are_read(store, tmp_path):
    for samples, width in ((np.array([128, 255, 1], "u1"), 1), (np.array([0, 2**31 - 1, 1 - 2**31], "<i4"), 4)):
        sound = store.decoded(store.add(wav(samples, width=width), "a row", tmp_path, "audio").number)
        assert sound.samples_S.tolist() == [0, 1, -1]


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("video", np.zeros((4, 4)), "video is float64 (4, 4); give uint8 [F, H, W]"),
        ("video", 5, "video is int; give"),
        ("video", (FRAMES, 0), "video has 0 frames a second; give a number above 0"),
        ("video", [FRAMES[0], FRAMES[0][:4]], "video has frames of the sizes [(4, 12), (8, 12)]; they must be equal"),
        ("video", "none.gif", "'none.gif' cannot be read: No such file"),
        ("video", (FRAMES, np.inf), "video has inf frames a second; give a number above 0"),
        ("video", (FRAMES[0], FRAMES[1]), "video has a ndarray of frames a second; give a number above 0"),
        ("video", FRAMES[:0], "video is uint8 (0, 8, 12, 3); give uint8 [F, H, W]"),
        ("video", (), "video has frames of the sizes []; they must be equal, and one at least"),
        ("video", [animated(FRAMES, "GIF")], "a picture of 3 frames; give one frame, or a film in the column video"),
        ("image", animated(FRAMES, "PNG"), "a picture of 3 frames; give one frame, or a film in the column video"),
        ("image", FRAMES[0][:0], "image is uint8 (0, 12, 3); give a path"),
        ("video", b"mp4", "the film cannot be decoded: UnidentifiedImageError"),
        ("audio", "none.wav", "'none.wav' cannot be read: No such file"),
        ("audio", b"OggS" * 9, "is no WAV of plain samples (file does not start with RIFF id); convert it: ffmpeg"),
        ("audio", np.zeros(4), "audio is ndarray; give the path or the bytes of a WAV, or (float array, rate)"),
        ("audio", (np.zeros((2, 4)), 8000), "audio is float64 (2, 4) at 8000 samples a second; give floats [S]"),
        ("audio", (np.zeros(4), 0.5), "audio is float64 (4,) at 0.5 samples a second; give floats [S]"),
        ("audio", "a\0b", "cannot be read: embedded null byte"),
        ("audio", (np.zeros(4), 2**32), "audio is float64 (4,) at 4294967296 samples a second; give floats [S]"),
        ("audio", (np.zeros(4), None), "audio is float64 (4,) at None samples a second; give floats [S]"),
        ("audio", wav(np.zeros(8, "<f4"), width=4).replace(b"\x01\x00", b"\x03\x00", 1), "is no WAV of plain samples (unknown"),
        ("audio", wav(np.zeros(9, "u1"), width=3), "has 24 bits a sample, 8000 samples a second and 9 of 9 bytes; use a whole"),
        ("audio", wav(np.zeros(8, "<i2"))[:-6], "has 16 bits a sample, 8000 samples a second and 10 of 16 bytes; use a whole"),
        ("audio", wav(np.zeros(8, "<i2")).replace((8000).to_bytes(4, "little"), bytes(4)), "0 samples a second and 16 of 16"),
        ("audio", (np.full(4, 2.0), 8000), "audio has samples beyond -1 to 1; divide by the largest"),
    ],
)
def test_what_is_no_medium_is_refused_with_its_row(store, column, value, message, tmp_path):
    with pytest.raises(DataError) as refused:
        store.add(value, "films/0/3", tmp_path, column)
    assert str(refused.value).startswith("films/0/3: ")
    assert message in str(refused.value)


def test_a_row_may_have_media_of_all_kinds_and_several_of_each(tmp_path):
    store = MediaStore()
    sound = (np.zeros(8, np.float32), 8000)
    columns = {"image": [FRAMES[0], FRAMES[1]], "video": list(FRAMES), "audio": [sound, sound]}
    prompt = illustrated(store, tmp_path)(Prompt(PromptKey("rows", 0, 0), "", columns=columns))
    assert [blob.medium for blob in prompt.blobs] == ["image", "image", "video", "audio", "audio"]
    assert prompt.columns["video"] == prompt.blobs[2].hash
    assert prompt.columns["audio"] == [prompt.blobs[3].hash] * 2
    films = illustrated(store, tmp_path)(Prompt(PromptKey("rows", 0, 0), "", columns={"video": [FRAMES, FRAMES[:2]]}))
    assert [blob.medium for blob in films.blobs] == ["video", "video"]


def test_a_row_may_have_an_empty_list_of_media(tmp_path):
    columns = {"image": [], "video": [], "audio": []}
    assert illustrated(MediaStore(), tmp_path)(Prompt(PromptKey("rows", 0, 0), "", columns=columns)).blobs == ()
