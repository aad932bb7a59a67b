"""Images, sounds and videos over HTTP: for those who were shown the task, by addresses that tell nothing."""

import base64
import json

import pytest
from feedback_examples import asked

from media_examples import png, wav
from penstock.core.blobs import Blob
from penstock.feedback.records import Item, Response, Task

BLACK, WHITE, SOUND = Blob.of(png(0), "image/png"), Blob.of(png(255), "image/png"), Blob.of(wav(), "audio/wav")
CONTENTS = {BLACK: png(0), WHITE: png(255), SOUND: wav()}


@pytest.fixture
def shown(service, person):
    """A person and a task with media as it was shown to them."""
    responses = (Response("", blobs=(BLACK,)), Response("bright", blobs=(WHITE,)))
    service.store.ask([Task(Item("Draw what you hear.", responses, blobs=(SOUND,)))], CONTENTS.__getitem__)
    return person, person.next()


def test_each_place_has_its_own(service, shown):
    person, task = shown
    [sound], pictures = task["prompt"]["media"], [one["media"] for one in task["responses"]]
    answer = person.get(sound["url"])
    assert (answer.content, answer.headers["content-type"], sound["kind"]) == (wav(), "audio/wav", "audio/wav")
    assert answer.headers["x-content-type-options"] == "nosniff"
    bright = next(place for place, one in enumerate(task["responses"]) if one["text"] == "bright")
    assert person.get(pictures[bright][0]["url"]).content == png(255)
    assert person.get(pictures[1 - bright][0]["url"]).content == png(0)


def test_an_address_tells_no_content(shown):
    _, task = shown
    sent = json.dumps(task)
    assert not any(blob.hash[:12] in sent for blob in CONTENTS)


def test_who_was_not_shown_a_task_sees_nothing_of_it(service, shown):
    _, task = shown
    url = task["prompt"]["media"][0]["url"]
    other, admin = service.person("bob"), service.person("root", "admin")
    assert [who.get(url).status_code for who in (other, admin)] == [404, 404]
    assert service.client().get(url).status_code == 401
    other.next()
    assert other.get(url).status_code == 404  # the address of another person


@pytest.mark.parametrize("name", ["{}.p.1", "{}.2.0", "{}.0.1", "{}.-1.0", "{}.p", "{}", "0.p.0", "{}.p.0.0", "..%2f..%2fetc"])
def test_other_addresses_hold_nothing(shown, name):
    person, task = shown
    assert person.get("/api/media/" + name.format(task["id"])).status_code == 404


@pytest.mark.parametrize(
    ("asked", "first", "last"), [("bytes=0-", 0, None), ("bytes=10-19", 10, 19), ("bytes=44-99999999", 44, None)]
)
def test_players_get_the_part_that_they_ask_for(shown, asked, first, last):
    person, task = shown
    size = len(wav())
    answer = person.http.get(task["prompt"]["media"][0]["url"], headers={"Range": asked})
    last = size - 1 if last is None else last
    assert (answer.status_code, answer.headers["content-range"]) == (206, f"bytes {first}-{last}/{size}")
    assert answer.content == wav()[first : last + 1]


@pytest.mark.parametrize("asked", ["bytes=9-5", "bytes=-5", "bytes=0-1,3-4", "bytes=99999999-", "lines=0-1"])
def test_other_ranges_get_the_whole(shown, asked):
    person, task = shown
    answer = person.http.get(task["prompt"]["media"][0]["url"], headers={"Range": asked})
    assert (answer.status_code, answer.content) == (200, wav())


def test_what_was_judged_can_be_seen_again(service, shown):
    person, task = shown
    person.submit(task)
    assert person.get(task["prompt"]["media"][0]["url"]).status_code == 200


def test_an_upload_brings_media_as_data_urls(service, admin):
    def upload(*media):
        return admin.post("/api/admin/ask", name="q.jsonl", text=json.dumps({"prompt": "Draw night.", "media": media}))

    urls = ["data:image/png;base64," + base64.b64encode(png(shade)).decode() for shade in (0, 255)]
    assert upload(*urls).json()["new"] == 1
    [task] = asked(service.store)
    assert [one.blobs for one in task.item.responses] == [(BLACK,), (WHITE,)]
    refused, outside = upload("a.png", "b.png"), upload("../a.png", urls[0])
    assert "uploads hold data: URLs" in refused.json()["error"]["message"]
    assert outside.status_code == 400
    assert "/tmp" not in refused.text + outside.text


def test_administrators_read_what_a_response_holds(service, shown):
    person, task = shown
    person.submit(task)
    found = service.person("root", "admin").get("/api/admin/events").json()
    assert "[image/png, " in json.dumps(found)
