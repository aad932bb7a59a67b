"""``penstock serve --capture`` as users meet it: a process, OpenAI's client under a session's key, and the session's sample."""

import httpx
import pytest

from serving import BEARER, Process

openai = pytest.importorskip("openai")


@pytest.fixture(scope="module")
def web(words):
    server = Process(*words, "--capture", "hermes")
    with httpx.Client(base_url=server.url, headers=BEARER, timeout=60) as client:
        yield client
    assert server.end() == 0


def test_a_session_gives_the_tokens_of_its_calls_as_they_were_generated(web):
    opened = web.post("/sessions", json={"row": {"task": 3}}).json()
    with openai.OpenAI(base_url=opened["base_url"], api_key=opened["api_key"], max_retries=0) as client:
        messages = [{"role": "user", "content": "3 + 4"}]
        used = 0
        for _ in range(2):
            answer = client.chat.completions.create(model="any", messages=messages, max_tokens=5)
            used += answer.usage.completion_tokens
            said = answer.choices[0].message.content
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "2"}]
    found = web.post(f"/sessions/{opened['id']}/finish", json={"reward": 0.5}).json()
    sample, turns = found["sample"], found["turns"]
    assert sum(sample["action"]) == used == sum(end - begin for begin, end, _, _ in turns)
    assert [turn[2] for turn in turns] == [None, 0.5]
    scored = web.post("/score", json={"tokens": sample["tokens"]}).json()["logp"]
    assert all(abs(a - b) < 1e-4 for a, b, acted in zip(scored, sample["logp"], sample["action"], strict=True) if acted)
    assert {version for version, acted in zip(sample["version"], sample["action"], strict=True) if acted} == {0}


def test_a_session_without_a_call_and_one_that_is_not_there_are_refused(web):
    opened = web.post("/sessions", json={}).json()
    empty = web.post(f"/sessions/{opened['id']}/finish", json={})
    assert (empty.status_code, "ended without a call" in empty.json()["error"]["message"]) == (409, True)
    assert web.post(f"/sessions/{opened['id']}/finish", json={}).status_code == 404


def test_a_session_needs_the_servers_token_and_its_calls_the_sessions_key(web):
    assert web.post("/sessions", json={}, headers={"Authorization": "Bearer no"}).status_code == 401
    opened = web.post("/sessions", json={}).json()
    asked = {"model": "any", "messages": [{"role": "user", "content": "3"}]}
    assert web.post(f"{opened['base_url']}/chat/completions", json=asked).status_code == 401
