"""The account of a run's time in words, for the terminal and the report."""

from __future__ import annotations

from penstock.observe.timeline import Account, RoleTime, bottleneck, times
from penstock.ui.metrics import duration

LAGS_SHOWN = 10


def account_lines(found: Account) -> list[str]:
    """A table of the roles, and a line each for bubbles, lag and stalls where there is something to say."""
    rows = [("role", "alive", "work", "of which"), *role_rows(found)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}  {d}" for a, b, c, d in rows]
    stated = facts(found)
    return [*lines, *([""] if stated else []), *(f"{name}: {value}" for name, value in stated)]


def account_view(found: Account) -> dict[str, list[tuple[str, ...]]]:
    """The same for a page: ``roles`` as rows of four, ``facts`` as (what, value)."""
    return {"roles": list(role_rows(found)), "facts": list(facts(found))}


def role_rows(found: Account) -> list[tuple[str, str, str, str]]:
    """(role, seconds alive, share spent on work, seconds by kind) of every role."""
    return [(role.role, seconds(role.alive), share_text(role.work, role.alive), kinds_text(role)) for role in found.roles]


def facts(found: Account) -> list[tuple[str, str]]:
    """(what, value) of the bottleneck, bubbles, lag and stalls."""
    stated = []
    if (held := bottleneck(found)) is not None:
        stated.append(("bottleneck", str(held)))
    for kind, shares in times(found).items():
        stated.append(
            (f"time of {kind}s", ", ".join(f"{what} {share:.0%}" for what, share in shares.items() if share >= 0.005))
        )
    if found.learner_waits is not None:
        stated.append(("the learner waits", f"{found.learner_waits:.1%} of its time"))
    if found.generators_idle is not None:
        stated.append(("generators are idle", f"{found.generators_idle:.1%} of their time"))
    if found.lags:
        stated.append(("lag of trained tokens", lag_text(found)))
    if found.stalls:
        count = sum(count for _, count in found.stalls)
        middle, high = seconds(found.stall(0.5)), seconds(found.stall(0.95))
        stated.append(
            ("stall of a weight update", f"p50 {middle}, p95 {high}, longest {seconds(found.stall(1.0))}, of {count:,}")
        )
    return stated


def kinds_text(role: RoleTime) -> str:
    """Seconds by kind and the idle rest."""
    parts = [f"{kind} {seconds(spent)}" for kind, spent in role.seconds.items()]
    return ", ".join([*parts, f"idle {seconds(role.idle)}"])


def lag_text(found: Account) -> str:
    """The histogram: the share of tokens of each lag, the largest ones together."""
    total = sum(found.lags.values())
    lags = sorted(found.lags)
    shown = lags if len(lags) <= LAGS_SHOWN else lags[: LAGS_SHOWN - 1]
    parts = [f"{lag}: {found.lags[lag] / total:.1%}" for lag in shown]
    if len(shown) < len(lags):
        rest = lags[len(shown) :]
        parts.append(f"{rest[0]} to {rest[-1]}: {sum(found.lags[lag] for lag in rest) / total:.1%}")
    return f"{', '.join(parts)} (mean {found.mean_lag:.2f} versions)"


def share_text(part: float, whole: float) -> str:
    return f"{min(1.0, part / whole):.0%}" if whole > 0 else "–"


def seconds(value: float) -> str:
    """A time with three digits: 12.3 s, 1.2 ms, 45 µs; from two minutes on in minutes and hours."""
    if value >= 120:
        return duration(value)
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if value * scale >= 1:
            return f"{value * scale:.{1 if value * scale >= 10 else 2}f} {unit}"
    return f"{value * 1e6:.0f} µs"
