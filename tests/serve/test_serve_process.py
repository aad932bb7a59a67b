"""``penstock serve`` as its users meet it: a process, and OpenAI's own client."""

import signal
import threading
import time

import httpx
import pytest

from serving import BEARER, TOKEN, Process

openai = pytest.importorskip("openai")

LONG = {"model": "model-of-tests", "prompt": "3 + 4 =", "max_tokens": 100, "seed": 5}


@pytest.fixture(scope="module")
def server(words):
    started = Process(*words)
    yield started
    started.end()


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=TOKEN, max_retries=0) as made:
        yield made


def test_the_first_line_says_where_it_is_and_what_is_allowed(server):
    assert server.line.startswith("serving model-of-tests at http://127.0.0.1:")
    assert "weights and pauses need the token" in server.line


def test_openais_client_lists_the_model(client):
    assert [model.id for model in client.models.list()] == ["model-of-tests"]
    assert client.models.retrieve("model-of-tests").owned_by == "penstock"


def test_openais_client_completes(client):
    answer = client.completions.create(**LONG, n=2, logprobs=0, extra_body={"return_token_ids": True})
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert len(answer.choices[0].logprobs.token_logprobs) == len(answer.choices[0].token_ids)
    assert answer.usage.completion_tokens == sum(len(choice.token_ids) for choice in answer.choices)


def test_openais_client_chats_and_streams(client):
    asked = {
        "model": "model-of-tests",
        "messages": [{"role": "user", "content": "3 + 4"}],
        "max_completion_tokens": 20,
        "seed": 1,
    }
    whole = client.chat.completions.create(**asked, logprobs=True)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert said == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    assert len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"model": "gpt"}, "NotFoundError"),
        ({"prompt": [10**6]}, "BadRequestError"),
        ({"frequency_penalty": 1.0}, "BadRequestError"),
        ({"extra_body": {"surprise": 1}}, "BadRequestError"),
    ],
)
def test_openais_client_reads_the_errors(client, fields, error):
    with pytest.raises(getattr(openai, error)) as raised:
        client.completions.create(**(LONG | fields))
    assert raised.value.body["param"] in ("model", "prompt", "frequency_penalty", "surprise")


def test_openais_client_needs_the_token(server):
    stranger = openai.OpenAI(base_url=f"{server.url}/v1", api_key="not-the-token-at-all", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()


def test_many_clients_at_once_get_what_they_would_alone(client):
    alone = client.completions.create(**LONG).choices[0].text
    found = []

    def ask(seed):
        answer = client.completions.create(**(LONG | {"seed": seed}))
        found.append((seed, answer.choices[0].text))

    threads = [threading.Thread(target=ask, args=(5 if place % 2 else place,)) for place in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 24
    assert {said for seed, said in found if seed == 5} == {alone}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_order(words, number):
    started = Process(*words)
    with httpx.Client(base_url=started.url, headers=BEARER) as admin:
        assert admin.get("/health").json()["status"] == "ok"
    assert started.end(number) == 0
    assert started.stderr == ""


def test_a_signal_ends_it_while_a_stream_runs_that_nobody_reads(words):
    started = Process(*words)
    with httpx.Client(base_url=started.url, headers=BEARER, timeout=120) as admin:
        admin.post("/pause", json={})
        with admin.stream("POST", "/v1/chat/completions", json={
            "messages": [{"role": "user", "content": "x"}], "stream": True, "max_tokens": 5,
        }) as answer:  # fmt: skip
            next(answer.iter_lines())
            began = time.monotonic()
            code = started.end()
    assert (code, time.monotonic() - began < 19) == (0, True)
