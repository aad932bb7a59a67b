"""What products send and ask for with a token, and what adjudicators decide about the corrections of products' users."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from starlette.responses import Response

from penstock.feedback import records
from penstock.feedback.errors import FeedbackError, KeyReused, NotAllowed, NotFound, Overtaken
from penstock.feedback.service.calls import LARGE, Call, Route, Routes, reply
from penstock.feedback.service.context import Context
from penstock.product import log as product_log
from penstock.product import quarantine
from penstock.product.labels import Policy, summary
from penstock.product.log import MOST_TOGETHER
from penstock.product.quarantine import Correction
from penstock.product.search import Corrections, Embedder, HashedEmbedder, Retrieval
from penstock.product.signals import LONGEST_USER, REASONS, SIGNALS, Reason, Reply, Signal, SignalKind
from penstock.product.tenants import Tenant, tenant_names, tenant_of
from penstock.web.fields import Fields
from penstock.web.guard import bearer
from penstock.web.refusals import Refusal

MOST_TOKENS = 32_768
"""Tokens of a response that a product sends."""
MOST_WAITING = 200
"""Corrections of one answer."""


class Allowance:
    """How many signals each tenant may send: ``burst`` at once, ``rate`` a second in the long run. Of one process.

    ``now`` gives seconds; a clock that goes back fills nothing up.
    """

    def __init__(self, now: Callable[[], float], rate: float = 50.0, burst: float = 1000.0) -> None:
        self._now, self.rate, self.burst = now, rate, burst
        self._lock = threading.Lock()
        self._left: dict[str, tuple[float, float]] = {}

    def spend(self, tenant: str, count: int) -> None:
        """Take ``count`` from what a tenant has left. Raises Refusal, and takes nothing, where that is not enough."""
        with self._lock:
            now = self._now()
            left, then = self._left.get(tenant, (self.burst, now))
            left = min(self.burst, left + max(0.0, now - then) * self.rate)
            if left < count:
                wait = math.ceil((count - left) / self.rate)
                raise Refusal(
                    429, f"more than {self.rate:g} signals a second; try again in {wait} s", code="too_many_signals",
                    headers={"Retry-After": str(wait)},
                )  # fmt: skip
            self._left[tenant] = left - count, now


class ProductRoutes:
    """Handlers for products, and for the corrections that come from them."""

    def __init__(self, context: Context, embedder: Embedder | None = None, retrieval: Retrieval | None = None) -> None:
        """``embedder`` finds the corrections that products ask for; by default by their words."""
        self._store = context.store
        self._embedder, self._retrieval = embedder or HashedEmbedder(), retrieval or Retrieval()
        self._allowance = Allowance(context.store.now)
        self._lock = threading.Lock()
        self._corrections: dict[str, Corrections] = {}

    def routes(self) -> Routes:
        return {
            "/v1/feedback": {"POST": Route(self.feedback, "anyone", "json", "product", most=LARGE, guard=self._tenant)},
            "/v1/corrections": {"POST": Route(self.retrieve, "anyone", "json", "product", most=LARGE, guard=self._tenant)},
            "/api/corrections": {"GET": Route(self.waiting, "adjudicator")},
            "/api/corrections/standing": {"GET": Route(self.standing, "adjudicator")},
            "/api/corrections/rule": {"POST": Route(self.rule, "adjudicator", "json")},
            "/api/admin/product": {"GET": Route(self.summary, "admin", pool="slow")},
        }

    def feedback(self, call: Call) -> Response:
        """Record one signal, or those of ``{"signals": […]}``, all or none."""
        who, fields = call.holder, call.fields
        several = fields.has("signals")
        given = _several(fields) if several else [signal_of(fields)]
        self._allowance.spend(who.name, len(given))
        try:
            recorded = product_log.record(self._store, who, given)
        except NotFound as error:  # these words name nothing but what the product itself sent
            raise Refusal(404, str(error), code="not_found") from error
        except KeyReused as error:
            raise Refusal(409, str(error), code="key_reused") from error
        made = [{"id": one.key, "sequence": one.sequence, "standing": one.standing} for one in recorded]
        return reply({"signals": made} if several else made[0])

    def retrieve(self, call: Call) -> Response:
        """What to put before a prompt: ``{prompt, request}`` gives ``{text, arm, used}``."""
        who, fields = call.holder, call.fields
        prompt, request = fields.text("prompt"), fields.text("request")
        fields.done()
        records.require_name(request, "request")
        self._allowance.spend(who.name, 1)
        with self._lock:
            if who.name not in self._corrections:
                self._corrections[who.name] = Corrections(self._store, who, self._embedder, self._retrieval)
            corrections = self._corrections[who.name]
        return reply(asdict(corrections.retrieve(prompt, request)))

    def waiting(self, call: Call) -> Response:
        """Corrections that nobody has ruled on, the oldest first, with what is odd about them."""
        found = quarantine.waiting(self._store, call.query.get("tenant", ""), MOST_WAITING)
        mine = self._readable(found, call)
        made = [
            {**self._shown(one, call), "added": one.added, "suspicions": list(one.suspicions), "seen": 0}
            for one in found
            if one.id in mine
        ]
        return reply({"corrections": made})

    def standing(self, call: Call) -> Response:
        """Corrections that somebody has ruled on, those ruled on last first; ``expires`` is in seconds from now."""
        found = quarantine.standing(self._store, call.query.get("tenant", ""), limit=MOST_WAITING)
        mine = self._readable([one.correction for one in found], call)
        made = [
            {
                **self._shown(correction, call),
                "verdict": ruling.verdict,
                "expires": ruling.expires - self._store.now(),
                "seen": ruling.sequence,
                "ruled_by": ruling.annotator,
                "ruled": ruling.time,
                "note": ruling.note,
            }
            for correction, ruling in reversed(found)
            if correction.id in mine
        ]
        return reply({"corrections": made})

    def _readable(self, found: Sequence[Correction], call: Call) -> set[str]:
        with self._store.database.read() as connection:
            return quarantine.readable(connection, found, call.who)

    def _shown(self, correction: Correction, call: Call) -> dict[str, Any]:
        """A correction as an adjudicator sees it. Whose it is, administrators alone see: a user's hash, cut."""
        kind, _, name = correction.author.partition(":")
        named = f"{kind} {name[:8] if kind == 'user' else name}" if call.who.role == "admin" else kind
        return {
            "id": correction.id,
            "tenant": correction.tenant,
            **correction.body,
            "by": named,
            "source": correction.source.replace(":", " "),
            "own": correction.author == f"annotator:{call.who.name}",
        }

    def rule(self, call: Call) -> Response:
        """Decide: ``{id, verdict, note, days, seen}``. Nobody decides about their own, or over a ruling not ``seen``."""
        fields = call.fields
        name, verdict = fields.text("id"), fields.text("verdict", one_of=quarantine.VERDICTS)
        note, days = fields.text("note", ""), fields.number("days", quarantine.EXPIRES_DAYS, 0.01, 3650)
        seen = fields.whole("seen", 0, 0) if fields.has("seen") else None
        fields.done()
        chosen: quarantine.Verdict = verdict  # type: ignore[assignment]
        try:
            made = quarantine.rule(self._store, name, chosen, call.who.name, note, days, seen)
        except NotAllowed as error:
            raise Refusal(403, str(error), code="not_allowed") from error
        except Overtaken as error:
            raise Refusal(409, str(error), code="overtaken") from error
        return reply({"id": made.correction, "verdict": made.verdict, "expires": made.expires - self._store.now()})

    def summary(self, call: Call) -> Response:
        """Signals of all products in numbers, with what an administrator should look at; and the same of each tenant."""
        taken = product_log.snapshot(self._store)
        of_each = {name: summary(taken, Policy(tenant=name)) for name in tenant_names(self._store)}
        policy = asdict(Policy()) | {"user_day": product_log.USER_DAY}
        return reply(summary(taken) | {"tenants": of_each, "policy": policy})

    def _tenant(self, headers: Mapping[str, str]) -> Tenant:
        token = bearer(headers)
        found = tenant_of(self._store, token) if token else None
        if found is None:
            raise Refusal(
                401, "give a product's token: Authorization: Bearer … (penstock feedback product STORE TENANT prints one)",
                code="token", headers={"WWW-Authenticate": "Bearer"},
            )  # fmt: skip
        return found


def _several(fields: Fields) -> list[Signal]:
    found = fields.take("signals")
    fields.done()
    if not isinstance(found, list) or not 0 < len(found) <= MOST_TOGETHER or not all(isinstance(one, dict) for one in found):
        raise Refusal(400, f"signals: give a list of 1 to {MOST_TOGETHER} objects", param="signals")
    return [_numbered(place, one) for place, one in enumerate(found)]


def _numbered(place: int, given: dict[str, Any]) -> Signal:
    """One signal of several; a refusal says which."""
    try:
        return signal_of(Fields(given))
    except Refusal as error:
        raise Refusal(error.status, f"signals[{place}]: {error.message}", param=error.param, code=error.code) from error
    except FeedbackError as error:
        raise Refusal(400, f"signals[{place}]: {error}") from error


def signal_of(fields: Fields) -> Signal:
    """A signal of a request's fields. Raises Refusal or FeedbackError."""
    kind: SignalKind = fields.text("signal", one_of=SIGNALS)  # type: ignore[assignment]
    reason: Reason = fields.text("reason", "", one_of=("", *REASONS))  # type: ignore[assignment]
    given = fields.object("response") if fields.has("response") else None
    made = Signal(
        key=fields.text("id"),
        user=fields.text("user")[: LONGEST_USER + 1],
        signal=kind,
        reply=None if given is None else _reply_of(Fields(given)),
        response=fields.text("response_id", ""),
        reason=reason,
        text=fields.text("text", ""),
        value=fields.number("value", 0.0) if fields.has("value") else None,
        time=fields.number("time", 0.0) if fields.has("time") else None,
    )
    fields.done()
    return made


def _reply_of(fields: Fields) -> Reply:
    response = records.Response(
        text=fields.text("text"),
        tokens=tuple(_numbers(fields, "tokens", int)),
        logp=tuple(map(float, _numbers(fields, "logp", int, float))),
        run=fields.text("run", ""),
        stage=fields.text("stage", ""),
        version=fields.whole("version", -1, -1),
        sampling=fields.object("sampling"),
        source=fields.text("source", ""),
    )
    made = Reply(fields.text("prompt"), response, fields.text("id", ""), fields.text("request", ""), fields.text("arm", ""))
    fields.done()
    return made


def _numbers(fields: Fields, name: str, *kinds: type) -> list[Any]:
    """A list of numbers that a 32-bit value has room for, empty where there is none."""
    found: Any = fields.take(name, [])

    def fits(one: Any) -> bool:
        return type(one) in kinds and bool(-(1 << 31) <= one < 1 << 31)

    if not isinstance(found, list) or len(found) > MOST_TOKENS or not all(map(fits, found)):
        raise Refusal(400, f"response.{name}: give a list of at most {MOST_TOKENS} numbers", param=name)
    return found
