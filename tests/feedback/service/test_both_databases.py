"""A whole session, from the invitation to the export, on SQLite and on PostgreSQL."""

from feedback_examples import HandClock, pair
from served import Service, csrf_of, sign_in

from penstock.feedback.policy import QueuePolicy
from penstock.feedback.store import Store


def test_a_session_from_the_invitation_to_the_export(place, desk):
    with Store.open(place, QueuePolicy(gold_share=0, repeat_share=0), HandClock()) as store:
        service = Service(desk, store)
        store.ask([pair(str(number), overlap=1) for number in range(3)])
        secret = service.context.accounts.enrol("root", "admin", {"language": "de"})
        with service.client() as client:
            csrf = csrf_of(client.get(f"/invite/{secret}"))
            assert client.post(f"/invite/{secret}", data={"password": "a long password", "csrf": csrf}).status_code == 303
            assert client.get(f"/invite/{secret}").status_code == 404
            client.post("/sign-out", data={"csrf": client.get("/api/me").json()["csrf"]})
            assert sign_in(client, "root", "a wrong password").status_code == 401
            assert sign_in(client, "root", "a long password").status_code == 303
            service.restart()
            client.headers["X-CSRF-Token"] = client.get("/api/me").json()["csrf"]
            for number in range(3):
                task = client.post("/api/next", json={}).json()["task"]
                said = {"key": f"a-key-of-a-test-{number}", "task": task["id"], "kind": "vote", "body": {"preference": 1}}
                assert client.post("/api/submit", json=said).json() == {"event": number + 1, "done": number + 1}
            assert client.post("/api/undo", json={"key": "an-undo-of-a-test"}).json()["task"]["id"] == task["id"]
            overview = client.get("/api/admin/overview").json()
            assert (overview["events"], overview["annotators"][0]["done"]) == (4, 2)
            assert len(client.get("/api/admin/export?form=pairs").text.splitlines()) == 2
            assert client.post("/api/admin/annotators", json={"name": "ann"}).status_code == 200
            assert client.post("/api/admin/annotators", json={"name": "ann", "enabled": False}).status_code == 200
        assert len(store.verify().judgements()) == 2
        service.app.close()
