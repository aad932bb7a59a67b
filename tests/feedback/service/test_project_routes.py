"""Two projects and three people over real HTTP: nobody reads or answers what is of a project that they are no member of."""

import pytest
from feedback_examples import answer, pair
from served import code, refusal

from penstock.feedback import projects
from penstock.feedback.projects import Project
from penstock.feedback.records import Submission
from penstock.product.quarantine import gather
from penstock.product.tenants import new_token


@pytest.fixture
def two(service):
    """ann is in both projects, bob in the first, eve in the second, root (an administrator) in the first."""
    service.store.ask([pair("open")])
    projects.change(service.store, Project("legal").with_guideline("7", "# Of *law*"), new=True)
    service.store.ask([pair("secret", project="legal")])
    people = {name: service.person(name) for name in ("ann", "bob")}
    people["root"] = service.person("root", "admin")
    projects.change(service.store, service.store.project("legal"), add=["ann"])
    people["eve"] = service.person("eve", "adjudicator")
    projects.change(service.store, service.store.project("legal"), add=["eve"])
    projects.change(service.store, service.store.project("default"), remove=["eve"])
    return people


def prompt_of(answer):
    return answer.json()["task"]["prompt"]["text"]


def test_the_only_project_of_somebody_needs_no_name_and_of_two_one_is_named(two):
    assert prompt_of(two["bob"].post("/api/next")) == "prompt open"
    assert prompt_of(two["eve"].post("/api/next")) == "prompt secret"
    refused = two["ann"].post("/api/next")
    assert refused.status_code == 400
    assert "default, legal" in refused.json()["error"]["message"]
    assert prompt_of(two["ann"].post("/api/next?project=legal")) == "prompt secret"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("get", "/api/me", {}),
        ("get", "/api/held", {}),
        ("get", "/api/progress", {}),
        ("post", "/api/next", {}),
        ("post", "/api/undo", {"key": "key-of-a-test-0"}),
        ("get", "/api/adjudicate/list", {}),
        ("post", "/api/adjudicate/fill", {}),
        ("post", "/api/next", {"purpose": "adjudication"}),
    ],
)
def test_a_project_of_others_reads_as_one_that_is_not_there(two, method, path, body):
    answers = [getattr(two["eve"], method)(f"{path}?project={name}", **body) for name in ("default", "nowhere")]
    assert [answer.status_code for answer in answers] == [404, 404]
    assert answers[0].content == answers[1].content


def test_a_handle_of_a_task_of_others_opens_nothing(two, service):
    secret = service.store.tasks(project="legal")[0]
    handle = service.context.handles.handle(secret, "bob")
    bob = two["bob"]
    for path, body in (
        ("/api/renew", {"task": handle}),
        ("/api/submit", {"task": handle, "key": bob.key(), "kind": "vote", "body": {"preference": 1}}),
        ("/api/submit", {"task": handle, "key": bob.key(), "kind": "critique", "body": {"response": None, "text": "x"}}),
    ):
        assert refusal(bob.post(path, **body)) == (404, "not_found")
    assert bob.post("/api/give-back", task=handle).json() == {}
    assert service.store.length() == 0


def test_who_leaves_a_project_neither_sees_nor_answers_what_they_held_and_said_there(two, service):
    ann = two["ann"]
    task = ann.post("/api/next?project=legal").json()["task"]
    ann.submit(task).raise_for_status()
    projects.change(service.store, service.store.project("legal"), remove=["ann"])
    assert ann.get("/api/held?project=legal").status_code == 404
    assert ann.submit(task, {"response": 0, "text": "more"}, "edit").status_code == 404
    assert ann.post("/api/renew", task=task["id"]).status_code == 404
    assert ann.post("/api/undo?project=legal", key=ann.key()).status_code == 404
    assert code(ann.undo()) == "nothing_to_undo"  # and not what they said in the other project
    assert service.store.length() == 1


def test_an_adjudicator_sees_disputes_of_their_projects_alone(two, service):
    [task] = service.store.tasks(project="default")
    for name, preference in (("ann", 3), ("bob", -3)):
        answer(service.store, task, name, preference)
    assert two["root"].post("/api/adjudicate/fill").json() == {"added": 1}
    assert two["eve"].post("/api/adjudicate/fill").json() == {"added": 0}
    [dispute] = two["root"].get("/api/adjudicate/list").json()["tasks"]
    assert two["eve"].get("/api/adjudicate/list").json() == {"tasks": [], "waiting": 0}
    there = service.context.handles.task(dispute["id"], "root")
    handle = service.context.handles.handle(there, "eve")
    assert two["eve"].post("/api/next", purpose="adjudication", task=handle).status_code == 404


def test_corrections_gathered_from_annotators_are_for_members_of_their_project(two, service):
    new_token(service.store, "shop")
    task = service.store.next_task("bob").task
    service.store.submit(Submission("edit", task, "bob", "edit-key", {"response": 0, "text": "better"}))
    assert gather(service.store, "shop") == 1
    [shown] = two["root"].get("/api/corrections").json()["corrections"]
    assert two["eve"].get("/api/corrections").json() == {"corrections": []}
    ruling = {"id": shown["id"], "verdict": "approved", "note": "fine"}
    assert two["eve"].post("/api/corrections/rule", **ruling).status_code == 404
    assert two["root"].post("/api/corrections/rule", **ruling).status_code == 200
    assert two["eve"].get("/api/corrections/standing").json() == {"corrections": []}


def test_each_project_has_its_guideline_and_its_progress(two):
    ann = two["ann"]
    me = ann.get("/api/me?project=legal").json()
    assert (me["project"], me["guideline"]["version"]) == ("legal", "7")
    assert "<em>law</em>" in me["guideline"]["html"]
    assert ann.get("/api/me?project=default").json()["guideline"]["version"] == "1"
    ann.submit(ann.post("/api/next?project=legal").json()["task"]).raise_for_status()
    assert ann.get("/api/progress?project=legal").json() == {"done": 1, "left": 0}
    assert ann.get("/api/progress?project=default").json() == {"done": 0, "left": 1}


def test_undo_takes_back_what_was_said_in_the_project_that_is_open(two, service):
    ann = two["ann"]
    for name in ("legal", "default"):
        ann.submit(ann.post(f"/api/next?project={name}").json()["task"]).raise_for_status()
    undone = ann.post("/api/undo?project=legal", key=ann.key()).json()
    assert undone["task"]["prompt"]["text"] == "prompt secret"
    assert [event.project for event in service.store.state().judgements()] == ["default"]


def test_an_administrator_makes_a_project_and_changes_it_and_its_members(two, service):
    root = two["root"]
    made = root.post("/api/admin/project", new="tax", add=["bob"], forms=["rating"], axes=["right", "kind"], scale=[1, 5])
    assert made.json() == {"name": "tax"}
    root.post("/api/admin/project?project=tax", overlap=5, guideline="# Tax", version="a", policy={"quota": 9}, add=["eve"],
              remove=["bob"]).raise_for_status()  # fmt: skip
    found = root.get("/api/admin/project?project=tax").json()
    assert (found["forms"], found["axes"], found["scale"], found["overlap"]) == (["rating"], ["right", "kind"], [1.0, 5.0], 5)
    assert (found["guideline"], found["guidelines"], found["policy"]) == ("a", {"a": "# Tax"}, {"quota": 9})
    assert (found["members"], found["projects"]) == (["eve"], ["default", "legal", "tax"])
    for wrong in ({"policy": {"held": 3}}, {"guideline": "# Other", "version": "a"}, {"forms": ["duel"]}, {"new": "tax"}):
        assert root.post("/api/admin/project?project=tax", **wrong).status_code == 400
    assert root.post("/api/admin/project?project=tax", add=["nobody"]).status_code == 404


@pytest.mark.parametrize("path", ["overview", "gold", "leaderboard", "export", "project"])
def test_what_an_administrator_looks_at_is_of_a_project_that_must_be_named(two, path):
    root = two["root"]
    assert root.get(f"/api/admin/{path}").status_code == 400
    assert root.get(f"/api/admin/{path}?project=nowhere").status_code == 404


def test_numbers_exports_and_guideline_versions_are_of_one_project(two, service):
    eve, root = two["eve"], two["root"]
    eve.submit(eve.next()).raise_for_status()
    assert service.store.events()[-1].guideline == "7"  # of its project
    progress = [root.get(f"/api/admin/overview?project={name}").json()["progress"][0] for name in ("default", "legal")]
    assert [one["judgements"] for one in progress] == [0, 1]
    assert root.get("/api/admin/export?project=default").status_code == 404
    rows = root.get("/api/admin/export?project=legal&form=votes")
    assert '"prompt": "prompt secret"' in rows.text or '"prompt":"prompt secret"' in rows.text
    assert "feedback-legal-votes-1.jsonl" in rows.headers["Content-Disposition"]
    assert [len(root.get(f"/api/admin/events{more}").json()["events"]) for more in ("", "?project=default")] == [1, 0]


def test_the_page_opens_the_project_that_is_named_and_then_remembers_it(two):
    ann = two["ann"]
    assert 'name="project" content="default"' in ann.get("/").text
    assert 'name="project" content="legal"' in ann.get("/?project=legal").text
    assert 'name="project" content="legal"' in ann.get("/").text
    assert 'content="default"' in two["bob"].get("/?project=legal").text  # it is none of bob's
    assert "legal" not in two["bob"].get("/").text
    assert 'content="legal"' in two["root"].get("/admin?project=legal").text


def test_who_is_in_no_project_reads_why_there_is_nothing(two, service):
    projects.change(service.store, service.store.project("default"), remove=["bob"])
    assert code(two["bob"].get("/api/me")) == "no_project"
    assert two["bob"].get("/").status_code == 200
