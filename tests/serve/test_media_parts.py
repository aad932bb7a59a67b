"""Images and sounds in chats: what the model is shown, by OpenAI's own client too; what is refused, and in how many words."""

import asyncio
import base64
import gc
import io
from contextlib import asynccontextmanager

import numpy as np
import pytest

pytest.importorskip("starlette", reason="needs the extra serve")

import httpx
import uvicorn
from openai import AsyncOpenAI, BadRequestError
from PIL import Image
from starlette.applications import Starlette
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

import seeing
from penstock.data.sounds import wav_of
from penstock.models.files import save_model
from penstock.serve.media import MediaLimits, RequestMedia
from serving import BEARER, TOKEN, Process, running, service_of, serving


def png(pixels: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def image(content: bytes, **more) -> dict:
    url = "data:image/png;base64," + base64.b64encode(content).decode()
    return {"type": "image_url", "image_url": {"url": url, **more}}


def audio(content: bytes, form: str = "wav") -> dict:
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(content).decode(), "format": form}}


def text(words: str) -> dict:
    return {"type": "text", "text": words}


def service_with_media(model=None, limits=None):
    service = service_of(model or seeing.built())
    service.media = service.text.store = RequestMedia(limits)
    return service


@asynccontextmanager
async def serving_media(model=None, limits=None):
    """An http client of a server of a model of media, and its service."""
    service = service_with_media(model, limits)
    async with (
        serving(service) as url,
        httpx.AsyncClient(base_url=url, headers=BEARER, timeout=30, trust_env=False, verify=False) as client,
    ):
        yield client, service


def chat(*parts, **more) -> dict:
    return {"messages": [{"role": "user", "content": list(parts)}], "max_tokens": 6, "seed": 3, **more}


async def asked(parts, model=None, limits=None, **more):
    """(status, body) of a chat."""
    async with serving_media(model, limits) as (client, _):
        answer = await client.post("/v1/chat/completions", json=chat(*parts, **more))
    return answer.status_code, answer.json()


async def test_log_probs_of_an_answer_to_a_picture_are_those_of_transformers():
    model, pixels = seeing.built(), seeing.picture((16, 24))
    status, body = await asked([text("what is "), image(png(pixels)), text("?")], model, logprobs=True, return_token_ids=True)
    assert status == 200, body
    (choice,), tokens = body["choices"], body["prompt_token_ids"]
    rendered = model.text.render_chat([{"role": "user", "content": "what is <image>?"}])
    model.text.store = seeing.MediaStore()
    blobs = seeing.shown(model, pixels)
    assert tokens == model.text.rendered.showing(blobs).prompt(rendered)
    whole_T = np.asarray([*tokens, *choice["token_ids"]], np.int32)
    logits_TV = seeing.transformers_logits(model, whole_T, blobs)
    logits_TV[:, sorted(model.text.media)] = -np.inf
    at = np.arange(len(tokens), len(whole_T))
    wanted = logits_TV.log_softmax(-1)[at - 1, whole_T[at].astype(np.int64)]
    np.testing.assert_allclose([one["logprob"] for one in choice["logprobs"]["content"]], wanted, atol=1e-4)


async def test_openais_client_sends_pictures_and_reads_a_stream():
    parts = [image(png(seeing.picture())), text("what is it?"), image(png(seeing.picture(seed=1)), detail="auto")]
    async with (
        serving(service_with_media()) as url,
        AsyncOpenAI(base_url=f"{url}/v1", api_key=TOKEN, max_retries=0) as client,
    ):
        given = {"model": "tiny", "max_tokens": 8, "seed": 4, "messages": [{"role": "user", "content": parts}]}
        whole = await client.chat.completions.create(**given)
        pieces = [one async for one in await client.chat.completions.create(**given, stream=True)]
        with pytest.raises(BadRequestError, match="cannot be decoded"):
            await client.chat.completions.create(**{**given, "messages": chat(image(b"no picture"))["messages"]})
    assert whole.choices[0].message.content == "".join(one.choices[0].delta.content or "" for one in pieces)


async def test_the_same_words_with_another_picture_have_another_answer():
    bodies = [chat(image(png(seeing.picture(seed=seed))), text("what?"), logprobs=True) for seed in (1, 2, 1)]
    async with serving_media() as (client, _):
        answers = await asyncio.gather(*(client.post("/v1/chat/completions", json=body) for body in bodies))
    first, other, again = ([one["logprob"] for one in answer.json()["choices"][0]["logprobs"]["content"]] for answer in answers)
    np.testing.assert_allclose(first, again, atol=5e-5)
    assert abs(first[0] - other[0]) > 1e-3


async def test_a_sound_is_heard():
    model = seeing.of_kind("qwen2_audio")
    content, _ = wav_of(seeing.sound(0.4))
    status, body = await asked([audio(content), text("which note?")], model, return_token_ids=True)
    assert status == 200, body
    (pad,) = model.text.processor.pads.values()
    assert body["prompt_token_ids"].count(pad) == 5  # 800 samples are 20 features, 10 frames


async def test_media_are_let_go_with_their_request():
    async with serving_media() as (client, service):
        (await client.post("/v1/chat/completions", json=chat(image(png(seeing.picture())), text("?")))).raise_for_status()
        await asyncio.sleep(0)
        gc.collect()
        assert len(service.media._held) == 0


BOMB = png(np.zeros((200, 200, 3), np.uint8))
GIF = io.BytesIO()
Image.fromarray(seeing.picture()).save(GIF, "GIF", save_all=True, append_images=[Image.fromarray(seeing.picture(seed=2))])


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (image(b"abc"), "the picture cannot be decoded"),
        (image(b""), "has 0 bytes"),
        (image(BOMB), "make it smaller"),
        (image(png(seeing.picture()) + bytes(5000)), "has 6"),
        (image(GIF.getvalue()), "2 frames"),
        (image(png(seeing.picture()), detail="high"), "detail is not supported here"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,!!"}}, "is not in base64"),
        ({"type": "image_url", "image_url": {"url": "data:text/html,hello"}}, "no image in base64"),
        ({"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}}, "images are fetched from nowhere"),
        ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, "images are fetched from nowhere"),
        ({"type": "image_url", "image_url": {}}, "url=null"),
        ({"type": "image_url"}, "parts are of type text, image_url or input_audio"),
        ({"type": "video_url", "video_url": {"url": "x"}}, "parts are of type text, image_url or input_audio"),
        (audio(wav_of(seeing.sound())[0]), "the model reads pictures and films, and the prompt has sounds"),
        (audio(b"x", "mp3"), "format="),
        (text("<image>"), "0 pictures and 1 marks"),
        (text("<|image_pad|>"), "the text spells <|image_pad|>"),
        ("words", "parts are of type text, image_url or input_audio"),
    ],
)
async def test_bad_media_are_a_bad_request_in_one_line(part, message):
    status, body = await asked([part, text("?")], limits=MediaLimits(pixels=10_000, file_bytes=6_000))
    assert status == 400
    assert message in body["error"]["message"]
    assert "\n" not in body["error"]["message"]


async def test_a_request_has_so_many_media_at_most():
    status, body = await asked([image(png(seeing.picture()))] * 3, limits=MediaLimits(count=2))
    assert (status, body["error"]["message"]) == (400, "3 images and sounds; a request takes 2")


async def test_a_sound_that_would_be_huge_at_the_models_rate_is_refused_before():
    slow = wav_of(seeing.Sound(np.zeros(4000, np.float32), 1))[0]
    status, body = await asked([audio(slow), text("?")], seeing.of_kind("qwen2_audio"))
    assert (status, "it lasts 4000.00 s" in body["error"]["message"]) == (400, True)


async def test_a_server_of_a_model_that_reads_text_alone_says_so(serve):
    async with serve() as (client, _):
        answer = await client.post("/v1/chat/completions", json=chat(image(png(seeing.picture()))))
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "messages[0].content[0]")
    assert "reads text alone (it was started without --media)" in error["message"]


def gallery() -> uvicorn.Server:
    """A server of pictures: one, one that leads elsewhere, one that is too large."""

    async def picture(request):
        return Response(png(seeing.picture()), media_type="image/png")

    async def elsewhere(request):
        return RedirectResponse("/picture")

    async def large(request):
        return Response(bytes(20_000))

    paths = {"/picture": picture, "/elsewhere": elsewhere, "/large": large}
    app = Starlette(routes=[Route(path, handler) for path, handler in paths.items()])
    return uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))


async def test_images_are_fetched_from_hosts_that_are_allowed_and_go_nowhere_else():
    async with running(gallery()) as pictures:
        limits = MediaLimits(hosts=(pictures.removeprefix("http://"),), file_bytes=10_000)
        answers = []
        async with serving_media(limits=limits) as (client, service):
            for address in (f"{pictures}/picture", f"{pictures}/elsewhere", f"{pictures}/large", "http://127.0.0.1:1/x"):
                part = {"type": "image_url", "image_url": {"url": address}}
                body = chat(part, text("what?"), return_token_ids=True)
                answers.append(await client.post("/v1/chat/completions", json=body))
    one, *refused = answers
    assert one.status_code == 200
    assert one.json()["prompt_token_ids"].count(service.text.processor.pads["image"]) == 9
    messages = ("answers with status 307", "has more than 10000 bytes", "images are fetched from 127.0.0.1")
    for answer, message in zip(refused, messages, strict=True):
        assert answer.status_code == 400
        assert message in answer.text


def test_the_command_serves_a_folder_that_sees(tmp_path):
    save_model(seeing.built(), tmp_path / "model")
    server = Process(str(tmp_path / "model"), "--port", "0", "--media", "vision", "--device", "cpu")
    try:
        body = chat(image(png(seeing.picture())), text("what?"), return_token_ids=True)
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60, trust_env=False)
        assert answer.status_code == 200
        assert answer.json()["prompt_token_ids"].count(seeing.built().network.config.image_token_id) == 9
    finally:
        assert server.end() == 0
