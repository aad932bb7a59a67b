"""What Prometheus reads of the service: in its format, and for nobody who could learn what is gold."""

import pytest
from feedback_examples import gold, pair
from served import code

from penstock.cli.main import main
from penstock.web.metrics import values
from prometheus_text import read

TOKEN = "a-token-of-sixteen-or-more"


def test_counts_are_read_by_an_administrator(service):
    service.store.ask([gold(), *(pair(str(number)) for number in range(3))])
    root, ann = service.person("root", "admin"), service.person("ann")
    ann.submit(ann.next()).raise_for_status()
    assert ann.next() is not None
    service.client().get("/nowhere")
    answer = root.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = read(answer.text)
    of = '{project="default",purpose="ask"}'
    assert [found[f"penstock_feedback_{name}{of}"] for name in ("tasks", "tasks_open", "judgements")] == [3, 3, 1]
    assert found['penstock_feedback_tasks{project="default",purpose="gold"}'] == 1
    assert found['penstock_feedback_people{role="admin"}'] == found['penstock_feedback_people{role="annotator"}'] == 1
    assert (found["penstock_feedback_leases"], found["penstock_feedback_events_total"]) == (1, 2)
    assert found['penstock_feedback_requests_total{route="/api/submit",status="200"}'] == 1
    assert found['penstock_feedback_requests_total{route="other",status="404"}'] == 1
    assert found["penstock_feedback_request_seconds_count"] == sum(
        value for name, value in found.items() if name.startswith("penstock_feedback_requests_total")
    )


def test_only_administrators_and_the_token_read_them(serve):
    service = serve(metrics_token=TOKEN)
    for role in ("annotator", "adjudicator"):
        assert code(service.person(role, role).get("/metrics")) == "not_allowed"
    for given in (None, "Bearer", "Bearer wrong-token-of-sixteen", f"Basic {TOKEN}"):
        headers = {} if given is None else {"Authorization": given}
        assert service.client().get("/metrics", headers=headers).status_code == 401
    scraped = service.client().get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    assert read(scraped.text)["penstock_feedback_events_total"] == 0


def test_without_a_token_none_is_right(service):
    assert service.client().get("/metrics", headers={"Authorization": "Bearer"}).status_code == 401


def test_labels_are_escaped():
    lines = values("x_total", "counter", "of texts", [({"a": 'q"\\\n'}, 1)])
    assert lines[-1] == 'penstock_x_total{a="q\\"\\\\\\n"} 1'
    assert len(read("\n".join(lines) + "\n")) == 1


@pytest.mark.parametrize("text", ["short\n", "a token with spaces in it\n"])
def test_a_token_that_is_none_ends_the_command(capsys, tmp_path, empty_store, text):
    (tmp_path / "token").write_text(text)
    (tmp_path / "token").chmod(0o600)
    assert main(["feedback", "serve", str(empty_store), "--metrics-token-file", str(tmp_path / "token")]) == 2
    assert "a secret is one line" in capsys.readouterr().err
