"""Asking, gold, accounts and deletion over HTTP, as the commands do it."""

import json
from dataclasses import replace

import pytest
from feedback_examples import PLAIN, enrol, pair
from served import code

ROW = {"prompt": "p", "responses": ["a", "b"]}


def upload(admin, *rows, **fields):
    text = "".join(json.dumps(row) + "\n" for row in rows)
    return admin.post("/api/admin/ask", **{"name": "q.jsonl", "text": text, **fields})


def test_an_upload_asks_what_a_file_asks(service, admin):
    checked = upload(admin, ROW, ROW, overlap=2, check=True).json()
    assert checked == {"questions": 1, "same": 1, "unused": []}
    assert service.store.tasks() == []
    assert upload(admin, ROW, overlap=2).json() == {"questions": 1, "same": 0, "unused": [], "new": 1}
    [task] = map(service.store.task, service.store.tasks())
    assert (task.form, task.overlap, task.item.prompt) == ("pair", 2, "p")


def test_a_file_of_many_questions_is_taken(service, admin):
    rows = [{"prompt": f"question {number} " + "p" * 3000, "responses": ["a", "b"]} for number in range(40)]
    assert upload(admin, *rows).json()["new"] == 40


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"name": "q.parquet"}, "Parquet"),
        ({"to": ["nobody"], "overlap": 1}, "nobody: no such person"),
        ({"form": "song"}, "one of"),
        ({"scale": [1]}, "scale"),
        ({"extra": 1}, "unknown field"),
        ({"text": json.dumps(ROW) + '\n{"prompt": 1}\n'}, "q.jsonl:2: it has prompt"),
        ({"format": "argilla", "text": '{"fields": ["p", "a"]}\n'}, "q.jsonl:1: fields=['p', 'a']; in a record of Argilla"),
        ({"format": "argilla", "text": '{"fields": {"p": "q", "a": "b"}, "metadata": []}\n'}, "q.jsonl:1: metadata=[]"),
        ({"round": "r" * 121}, "at most 120"),
        ({"axes": ["a", "a"]}, "each once"),
    ],
)
def test_a_bad_upload_is_refused_and_nothing_is_written(service, admin, fields, why):
    found = upload(admin, ROW, **fields)
    assert found.status_code == 400
    assert why in found.json()["error"]["message"]
    assert "/tmp" not in found.text
    assert service.store.tasks() == []


def test_gold_is_made_shown_and_taken_back(service, admin):
    [task] = service.store.ask([pair("x")])
    made = admin.post("/api/admin/gold", task=task, answer=1, reason="see the manual").json()["task"]
    [shown] = admin.get("/api/admin/gold").json()["gold"]
    assert (shown["task"], shown["answer"]["preference"], shown["demoted"]) == (made, 1, False)
    assert admin.post("/api/admin/gold", task=made, demote=True, reason="wrong").json() == {"event": 2}
    assert admin.get("/api/admin/gold").json()["gold"][0]["demoted"]
    assert admin.post("/api/admin/gold", task=task, answer=1).status_code == 400
    assert admin.post("/api/admin/gold/agreed").json() == {"pairs": [], "promoted": 0}


def test_the_version_of_the_guideline_that_was_read_is_kept(serve):
    service = serve(guideline_version="7")
    service.store.ask([pair("x"), pair("y")])
    ann = service.person("ann")
    ann.submit(ann.next()).raise_for_status()
    ann.submit(ann.next(), guideline="6").raise_for_status()
    assert [event.guideline for event in service.store.events()] == ["7", "6"]
    assert ann.submit("0" * 32, guideline="v" * 101).status_code == 400


def test_somebody_who_does_not_qualify_reads_why(serve):
    service = serve(replace(PLAIN, qualify=1))
    root, ann = service.person("root", "admin"), service.person("ann")
    upload(root, {**ROW, "gold": "tie"}, gold=True)
    upload(root, ROW)
    assert ann.get("/api/me").json()["admission"] == {"qualify": 1, "done": 0, "paused": "", "quota": 0}
    ann.submit(ann.next()).raise_for_status()
    assert ann.next() is None
    assert ann.get("/api/me").json()["admission"]["paused"] == "did not qualify: 0 of 1 known answers right"


def test_roles_and_quotas_change_and_one_administrator_stays(service, admin):
    enrol(service.store, "ann")
    assert admin.post("/api/admin/annotators", name="ann", change={"role": "adjudicator", "quota": 9}).json() == {}
    assert (service.store.annotator("ann").role, service.store.annotator("ann").quota) == ("adjudicator", 9)
    assert code(admin.post("/api/admin/annotators", name="root", change={"role": "annotator"})) == "not_allowed"
    assert admin.post("/api/admin/annotators", name="ann", change={"role": "king"}).status_code == 400


def test_votes_are_exported_by_pseudonym_and_a_person_is_deleted(service, admin, ann, shown):
    ann.submit(shown).raise_for_status()
    [row] = map(json.loads, admin.get("/api/admin/export?form=votes").text.splitlines())
    assert row["annotator"].startswith("annotator-")
    assert (row["kind"], row["preference"], row["guideline"], row["counts"]) == ("vote", row["preference"], "1", True)
    pseudonym = admin.post("/api/admin/forget", name="ann", votes="keep").json()["pseudonym"]
    assert ann.get("/api/me").status_code == 401
    assert [event.annotator for event in service.store.events()] == [pseudonym]
    assert admin.get("/api/admin/leaderboard").json() == {"models": []}
    refused = admin.get("/api/admin/leaderboard?axis=zzz")
    assert (refused.status_code, refused.json()["error"]["message"][:10]) == (400, "axis 'zzz'")


def test_the_work_of_a_person_is_excluded_and_counts_again(service, admin, ann, shown):
    ann.submit(shown).raise_for_status()
    given = {"name": "ann", "reason": "votes without reading"}
    event = admin.post("/api/admin/exclude", key="exclusion-1", **given).json()["event"]
    assert admin.post("/api/admin/exclude", key="exclusion-1", **given).json()["event"] == event
    assert service.store.state().judgements() == []
    assert admin.post("/api/admin/exclude", key="inclusion-1", event=event, reason="it was somebody else").status_code == 200
    assert len(service.store.state().judgements()) == 1


@pytest.mark.parametrize(
    ("fields", "status", "why"),
    [
        ({"name": "ann"}, 400, "reason"),
        ({"name": "nobody", "reason": "r"}, 404, ""),
        ({"name": "ann", "reason": "r", "since": 20, "until": 10}, 400, "ends before it begins"),
        ({"event": 1, "reason": "r"}, 409, ""),
        ({"event": 1, "name": "ann", "reason": "r"}, 400, "unknown field"),
    ],
)
def test_an_exclusion_that_cannot_be_is_refused(service, admin, fields, status, why):
    service.person("ann")
    found = admin.post("/api/admin/exclude", key="exclusion-1", **fields)
    assert found.status_code == status
    assert why in found.text
    assert service.store.length() == 0


def test_uploaded_gold_is_in_the_log_by_who_uploads(service, admin):
    upload(admin, {**ROW, "gold": 1}, gold=True).raise_for_status()
    [event] = service.store.events()
    assert (event.kind, event.annotator, event.body) == ("promote", "root", {"reason": "asked with its known answer"})
    refused = [admin.post("/api/admin/gold", task=event.task, answer=answer, reason="no") for answer in (2, "what")]
    assert [answer.status_code for answer in refused] == [400, 400]
    assert "has another known answer" in refused[0].json()["error"]["message"]
    assert service.store.length() == 1


def test_a_body_that_is_no_object_is_named_as_json_names_it(admin):
    for body, name in (("null", "null"), ("[]", "array"), ("5", "number"), ("true", "boolean"), ('"a"', "string")):
        answer = admin.http.post("/api/admin/ask", content=body, headers={"Content-Type": "application/json"})
        assert answer.json()["error"]["message"] == f"the body is a JSON {name}; send an object"


def test_which_project_is_asked_in_the_words_of_http(service, admin):
    admin.post("/api/admin/project", new="legal").raise_for_status()
    service.store.ask([pair("x")])
    message = upload(admin, ROW).json()["error"]["message"]
    assert message == "which project? there are: default, legal; name one (?project=NAME)"
