"""What products send, over real HTTP: with a token, once, within bounds; and what becomes of their users' corrections."""

import httpx
import numpy as np
import pytest
from served import refusal, strings

from penstock.feedback.service.app import FeedbackApp
from penstock.product.labels import labels
from penstock.product.log import snapshot
from penstock.product.routes import Allowance, ProductRoutes
from penstock.product.search import Retrieval
from penstock.product.tenants import new_token, revoke_tokens
from penstock.web.refusals import Refusal


@pytest.fixture
def shop(service):
    with product(service, "shop") as client:
        yield client


def product(service, tenant) -> httpx.Client:
    client = service.client()
    client.headers["Authorization"] = f"Bearer {new_token(service.store, tenant)}"
    return client


def thumb(user="u1", key="", kind="thumbs_up", **fields):
    response = {"prompt": "How long do refunds take?", "text": "A year.", "run": "r", "version": 3}
    return {"id": key or f"{user}-{kind}", "user": user, "signal": kind, "response": response, **fields}


def edit(text="Five days.", user="u1"):
    return thumb(user, kind="edit", text=text)


@pytest.fixture
def judy(service):
    return service.person("judy", "adjudicator")


def waiting(who):
    """The one correction that waits for a ruling."""
    (found,) = who.get("/api/corrections").json()["corrections"]
    return found


def test_a_signal_is_recorded_once_and_its_id_with_other_content_is_refused(shop, service):
    first = shop.post("/v1/feedback", json=thumb())
    assert first.json() == {"id": "u1-thumbs_up", "sequence": 1, "standing": "counted"}
    assert shop.post("/v1/feedback", json=thumb()).json() == first.json()
    other = thumb(kind="thumbs_down", key="u1-thumbs_up")
    assert refusal(shop.post("/v1/feedback", json=other)) == (409, "key_reused")
    assert snapshot(service.store).until == 1


def test_several_are_recorded_together_or_not_at_all(shop, service):
    answer = shop.post("/v1/feedback", json={"signals": [thumb(f"u{i}") for i in range(100)]})
    assert [one["sequence"] for one in answer.json()["signals"]] == list(range(1, 101))
    assert len(labels(service.store)) == 1
    bad = shop.post("/v1/feedback", json={"signals": [thumb("new"), {**thumb("other"), "signal": "love"}]})
    assert bad.status_code == 400
    assert "signals[1]: signal=" in bad.json()["error"]["message"]
    assert snapshot(service.store).until == 100


@pytest.mark.parametrize("count", [0, 101])
def test_none_or_too_many_at_once_are_refused(shop, count):
    assert shop.post("/v1/feedback", json={"signals": [thumb(f"u{i}") for i in range(count)]}).status_code == 400


def test_without_a_token_that_holds_nothing_is_recorded(service, shop):
    with service.client() as stranger:
        for headers in ({}, {"Authorization": "Bearer penstock_product_" + "0" * 48}, {"Authorization": "Basic eDp5"}):
            assert refusal(stranger.post("/v1/feedback", json=thumb(), headers=headers)) == (401, "token")
    assert shop.post("/v1/feedback", json=thumb()).status_code == 200
    revoke_tokens(service.store, "shop")
    assert shop.post("/v1/feedback", json=thumb("u2")).status_code == 401
    assert snapshot(service.store).until == 1


def test_a_products_token_opens_nothing_else(shop):
    for path in ("/api/corrections", "/api/admin/product", "/api/me", "/api/admin/export"):
        assert shop.get(path).status_code == 401


def test_a_page_of_another_site_cannot_send_signals(shop):
    answer = shop.post("/v1/feedback", json=thumb(), headers={"Origin": "https://evil.example"})
    assert refusal(answer) == (403, "foreign_origin")


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"extra": 1}, "extra"),
        ({"user": 7}, "user"),
        ({"reason": "bored"}, "reason"),
        ({"response": {"prompt": "p"}}, "text"),
        ({"response": {"prompt": "p", "text": "a", "tokens": ["1"]}}, "tokens"),
        ({"response": {"prompt": "p", "text": "a", "gold": True}}, "gold"),
        ({"value": "5"}, "value"),
    ],
)
def test_what_is_not_of_a_signal_is_refused_by_its_name(shop, change, param):
    answer = shop.post("/v1/feedback", json=thumb() | change)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_a_response_named_that_was_never_sent_is_not_found(shop):
    answer = shop.post("/v1/feedback", json={"id": "k", "user": "u", "signal": "copy", "response_id": "r-9"})
    assert refusal(answer) == (404, "not_found")
    assert "send the response itself first" in answer.json()["error"]["message"]


def test_a_flood_is_stopped_for_its_tenant_alone(service, shop):
    with product(service, "bank") as bank:
        calls = [shop.post("/v1/feedback", json={"signals": [thumb(f"u{i}-{j}") for j in range(100)]}) for i in range(11)]
        assert [answer.status_code for answer in calls[:10]] == [200] * 10
        assert refusal(calls[10]) == (429, "too_many_signals")
        assert int(calls[10].headers["Retry-After"]) >= 1
        assert bank.post("/v1/feedback", json=thumb()).status_code == 200


def test_an_allowance_fills_up_again():
    seconds = [0.0]
    allowance = Allowance(lambda: seconds[0], rate=2, burst=10)
    allowance.spend("shop", 10)
    with pytest.raises(Refusal, match="try again in 2 s"):
        allowance.spend("shop", 4)
    seconds[0] = 2.0
    allowance.spend("shop", 4)
    with pytest.raises(Refusal):
        allowance.spend("shop", 1)


# Corrections


def test_a_correction_is_approved_by_an_adjudicator_and_then_retrieved_as_data(service, shop, judy):
    shop.post("/v1/feedback", json=edit())
    asked = {"prompt": "How long do refunds take, please?", "request": "q7"}
    assert shop.post("/v1/corrections", json=asked).json() == {"text": "", "arm": "corrections", "used": []}
    found = waiting(judy)
    assert (found["text"], found["original"], found["suspicions"]) == ("Five days.", "A year.", [])
    assert judy.post("/api/corrections/rule", id=found["id"], verdict="approved").json()["verdict"] == "approved"
    answer = shop.post("/v1/corrections", json=asked).json()
    assert answer["used"] == [found["id"]]
    assert '"corrected": "Five days."' in answer["text"]
    assert judy.get("/api/corrections").json()["corrections"] == []
    with product(service, "bank") as bank:
        assert bank.post("/v1/corrections", json=asked).json()["used"] == []


def test_the_service_finds_corrections_as_it_was_told_to(service, shop, judy):
    class Blind:
        name = "blind"

        def __call__(self, texts):
            return np.ones((len(texts), 1), np.float32)

    shop.post("/v1/feedback", json=edit())
    judy.post("/api/corrections/rule", id=waiting(judy)["id"], verdict="approved")
    asked = {"prompt": "something else", "request": "q7"}
    assert shop.post("/v1/corrections", json=asked).json()["used"] == []

    def app(control: float) -> FeedbackApp:
        return FeedbackApp(service.context, ProductRoutes(service.context, Blind(), Retrieval(control=control)).routes())

    service.app.close()
    service.app = service.desk.app = app(1.0)
    assert shop.post("/v1/corrections", json=asked).json()["arm"] == "control"
    service.app.close()
    service.app = service.desk.app = app(0.0)
    assert len(shop.post("/v1/corrections", json=asked).json()["used"]) == 1


def test_annotators_and_authors_rule_on_nothing(shop, ann, judy):
    shop.post("/v1/feedback", json=edit(user="judy"))
    assert ann.get("/api/corrections").status_code == 403
    name = waiting(judy)["id"]
    assert ann.post("/api/corrections/rule", id=name, verdict="approved").status_code == 403
    refused = judy.post("/api/corrections/rule", id=name, verdict="approved")
    assert refusal(refused) == (403, "not_allowed")
    assert "wrote this correction" in refused.json()["error"]["message"]


def test_administrators_see_signals_in_numbers(shop, admin):
    shop.post("/v1/feedback", json={"signals": [thumb(f"u{i}", kind="thumbs_down", reason="wrong") for i in range(3)]})
    found = admin.get("/api/admin/product").json()
    assert found["signals"] == {"thumbs_down": 3}
    assert found["reasons"] == {"wrong": 3}
    assert found["labels"] == [0, 1]
    assert found["tenants"]["shop"]["labels"] == [0, 1]
    assert found["policy"]["user_day"] == 50


def test_each_tenants_numbers_are_its_own(service, shop):
    shop.post("/v1/feedback", json={"signals": [thumb(f"u{i}") for i in range(3)]})
    with product(service, "bank") as bank:
        bank.post("/v1/feedback", json=thumb("u9"))
    found = service.person("root", "admin").get("/api/admin/product").json()
    assert {name: (one["users"], one["labels"]) for name, one in found["tenants"].items()} == {
        "bank": (1, [0, 0]),
        "shop": (3, [1, 0]),
    }
    assert (found["users"], found["labels"]) == (4, [1, 0])


def test_administrators_alone_are_told_which_user_it_was(service, shop, judy, admin):
    shop.post("/v1/feedback", json=edit())
    user = snapshot(service.store).events[0].user
    assert [waiting(who)["by"] for who in (judy, admin)] == ["user", f"user {user[:8]}"]
    assert not any(user in text for text in strings(waiting(judy)))


def test_what_was_decided_is_listed_with_why_by_whom_and_for_how_long(service, shop, judy):
    for text in ("Five days.", "Six days."):
        shop.post("/v1/feedback", json=edit(text, user=text[:3]))
    for one in judy.get("/api/corrections").json()["corrections"]:
        verdict = "approved" if one["text"] == "Five days." else "rejected"
        judy.post("/api/corrections/rule", id=one["id"], verdict=verdict, note=f"it is {verdict}", days=2, seen=0)
    found = {one["text"]: one for one in judy.get("/api/corrections/standing").json()["corrections"]}
    assert {text: (one["verdict"], one["note"], one["ruled_by"]) for text, one in found.items()} == {
        "Five days.": ("approved", "it is approved", "judy"),
        "Six days.": ("rejected", "it is rejected", "judy"),
    }
    assert 86_400 < found["Five days."]["expires"] <= 2 * 86_400


def test_nobody_rules_over_a_ruling_that_they_have_not_seen(service, shop, judy, admin):
    shop.post("/v1/feedback", json=edit())
    name = waiting(judy)["id"]
    assert admin.post("/api/corrections/rule", id=name, verdict="rejected", seen=0).status_code == 200
    assert refusal(judy.post("/api/corrections/rule", id=name, verdict="approved", seen=0)) == (409, "overtaken")
    (found,) = judy.get("/api/corrections/standing").json()["corrections"]
    assert found["verdict"] == "rejected"
    again = judy.post("/api/corrections/rule", id=name, verdict="approved", seen=found["seen"])
    assert again.json()["verdict"] == "approved"
