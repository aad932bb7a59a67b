"""A run has one writer, whatever began it and on whatever machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from penstock.ckpt import lease
from penstock.ckpt.lease import ATTEMPT, Claims, FolderClaims, Lease, StoreClaims, free
from penstock.ckpt.objects import Objects
from penstock.ckpt.store import CheckpointStore, Position
from penstock.core.contracts import State
from penstock.core.errors import CheckpointError

STATES = {"model": State({"w": np.zeros(2)}, {})}
HOLDER = (
    "import sys, time; from pathlib import Path; from penstock.ckpt.lease import FolderClaims, Lease;"
    "Lease(FolderClaims(Path(sys.argv[1]))).take(); print('held', flush=True); time.sleep(60)"
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "LEASE", 0.4)
    monkeypatch.setattr(lease, "ASKING", 0.01)
    for kind in (FolderClaims, StoreClaims):
        monkeypatch.setattr(kind, "beat", 0.05)


@pytest.fixture(params=["folder", "store"])
def claims(request: pytest.FixtureRequest, tmp_path: Path) -> Claims:
    return FolderClaims(tmp_path) if request.param == "folder" else StoreClaims(Objects(f"file://{tmp_path}/bucket/run"))


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """After a call of it this process is on another machine, whose clock goes an hour behind."""
    real = time.time

    def move() -> None:
        monkeypatch.setattr(lease, "_machine", lambda: {"host": "far", "boot": "b", "container": "c"})
        monkeypatch.setattr(lease.time, "time", lambda: real() - 3600)

    return move


def said(held: Lease) -> dict[str, object]:
    return lease.read_claim(held.claims.read(held.number))


def test_a_run_that_was_given_back_is_free_at_once(claims: Claims, elsewhere: Callable[[], None]) -> None:
    Lease(claims).take().close()
    elsewhere()
    began = time.monotonic()
    with closing(Lease(claims).take()) as held:
        held.check()
    assert held.number == 2
    assert time.monotonic() - began < 0.3


def test_a_holder_on_this_machine_is_refused_at_once_by_name(claims: Claims) -> None:
    with closing(Lease(claims).take()), pytest.raises(CheckpointError) as refused:
        Lease(claims).take()
    assert f"process {os.getpid()} on {lease._machine()['host']} (begun 20" in str(refused.value)
    assert "--take-over" in str(refused.value)


def test_a_holder_that_was_killed_on_this_machine_is_gone_at_once(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(CheckpointError, match=f"process {holder.pid} "):
            Lease(FolderClaims(tmp_path)).take()
        holder.send_signal(signal.SIGSTOP)  # it gives no signs of life, but it is there
        time.sleep(0.6)
        with pytest.raises(CheckpointError, match=f"process {holder.pid} "):
            Lease(FolderClaims(tmp_path)).take()
        holder.kill()
    with closing(Lease(FolderClaims(tmp_path)).take()) as held:
        assert held.number == 2


def test_a_holder_elsewhere_that_gives_signs_of_life_is_refused(claims: Claims, elsewhere: Callable[[], None]) -> None:
    with closing(Lease(claims).take()) as held:
        elsewhere()
        waited: list[str] = []
        with pytest.raises(CheckpointError, match=f"process {os.getpid()} on "):
            Lease(claims, say=waited.append).take()
        held.check()
    assert len(waited) == 1


def test_a_holder_elsewhere_without_signs_of_life_is_gone_after_the_lease(
    claims: Claims, elsewhere: Callable[[], None]
) -> None:
    before = Lease(claims).take()
    before._over.set()  # as if its machine had lost its power
    before._thread.join()
    elsewhere()
    began = time.monotonic()
    with closing(Lease(claims, say=lambda text: None).take()) as held:
        assert 0.4 <= time.monotonic() - began < 2
        held.check()
    with pytest.raises(CheckpointError, match=r"on far \(begun .* has taken this run over"):
        before.check()


def test_one_that_wakes_up_after_its_lease_finds_that_it_lost_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claims = FolderClaims(tmp_path)
    held = Lease(claims).take()
    held._over.set()
    held._thread.join()
    free(claims)
    now = held._confirmed = lease._now()
    held.look()  # it has looked a moment ago
    monkeypatch.setattr(lease, "_now", lambda: now + 10)
    with pytest.raises(CheckpointError, match="has taken this run over"):
        held.look()


def test_whoever_loses_the_run_notices_at_its_next_step(claims: Claims) -> None:
    with closing(Lease(claims).take()) as held:
        assert free(claims).startswith(f"process {os.getpid()} on ")
        deadline = time.monotonic() + 5
        while held.lost is None and time.monotonic() < deadline:
            time.sleep(0.01)
        with pytest.raises(CheckpointError, match="has taken this run over, so this process writes no more"):
            held.look()


def test_a_run_that_was_taken_over_is_free_at_once(claims: Claims, elsewhere: Callable[[], None]) -> None:
    assert free(claims) == ""
    before = Lease(claims).take()
    elsewhere()
    free(claims)
    with closing(Lease(claims).take()) as held:
        held.check()
        assert free(claims) != ""
    before.close()
    assert free(claims) == ""
    assert claims.numbers()[-1] == held.number + 1


def test_who_takes_a_run_over_waits_for_the_end_of_the_one_before(claims: Claims) -> None:
    held = Lease(claims).take()
    threading.Timer(0.2, held.close).start()
    began = time.monotonic()
    free(claims)
    assert 0.15 <= time.monotonic() - began < 0.35


def test_a_process_whose_run_was_taken_writes_no_checkpoint(tmp_path: Path) -> None:
    with closing(Lease(FolderClaims(tmp_path)).take()) as held:
        store = CheckpointStore(tmp_path / "checkpoints", lease=held)
        store.save(Position(0, "s", 1), STATES)
        free(held.claims)
        with pytest.raises(CheckpointError, match="has taken this run over"):
            store.save(Position(0, "s", 2), STATES)
    assert [path.name for path in (tmp_path / "checkpoints").glob("*stage*")] == ["stage-00-s-step-000001"]


def test_a_process_whose_run_was_taken_leaves_the_scores_of_its_new_holder(tmp_path: Path) -> None:
    with closing(Lease(FolderClaims(tmp_path)).take()) as held:
        store = CheckpointStore(tmp_path / "checkpoints", lease=held)
        store.save(Position(0, "s", 1), STATES)
        store.rate(Position(0, "s", 1), 0.5)
        free(held.claims)
        with pytest.raises(CheckpointError, match="has taken this run over"):
            store.rate(Position(0, "s", 1), 0.25)
        with pytest.raises(CheckpointError, match="has taken this run over"):
            store.save(Position(0, "s", 1), STATES)
    assert [entry.score for entry in CheckpointStore(tmp_path / "checkpoints").entries()] == [0.5]


def test_a_holder_that_does_not_see_new_names_yet_sees_in_its_own_claim_who_took_the_run(
    claims: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shared file system keeps a folder's names for up to a minute."""
    with closing(Lease(claims).take()) as held:
        free(claims)
        monkeypatch.setattr(type(claims), "numbers", lambda self: [held.number])
        with pytest.raises(CheckpointError, match=f"process {os.getpid()} on .* has taken this run over"):
            held.check()


def test_of_many_that_come_at_once_one_holds_the_run(claims: Claims) -> None:
    held: list[Lease] = []
    refused: list[CheckpointError] = []
    begin = threading.Barrier(8)

    def come() -> None:
        begin.wait()
        try:
            held.append(Lease(claims).take())
        except CheckpointError as error:
            refused.append(error)

    threads = [threading.Thread(target=come) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(held), len(refused)) == (1, 7), (held, refused, claims.numbers())
    held[0].check()
    held[0].close()


def test_what_starts_a_run_again_by_itself_waits_for_the_end_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Lease(FolderClaims(tmp_path)).take()
    monkeypatch.setenv(ATTEMPT, "1")
    threading.Timer(0.3, before.close).start()
    began = time.monotonic()
    with closing(Lease(FolderClaims(tmp_path), say=lambda text: None).take()) as held:
        assert held.number == 2
    assert time.monotonic() - began >= 0.25


def test_a_learner_that_is_started_again_waits_for_a_while(tmp_path: Path) -> None:
    with closing(Lease(FolderClaims(tmp_path)).take()):
        began = time.monotonic()
        with pytest.raises(CheckpointError, match="is at work in it"):
            Lease(FolderClaims(tmp_path), patience=0.2, say=lambda text: None).take()
        assert time.monotonic() - began >= 0.2


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b'{"beat": 1}'])
def test_a_claim_that_says_nothing_is_waited_for_and_then_free(content: bytes, tmp_path: Path) -> None:
    claims = FolderClaims(tmp_path)
    claims.create(3, content)
    began = time.monotonic()
    with closing(Lease(claims, say=lambda text: None).take()) as held:
        assert held.number == 4
    assert time.monotonic() - began >= 0.4


def test_a_store_that_is_away_for_a_while_loses_nobody_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claims = StoreClaims(Objects(f"file://{tmp_path}/bucket/run"))
    write = claims._objects.write

    def away(*given: object, **more: object) -> None:
        raise ConnectionError("no such host")

    with closing(Lease(claims).take()) as held:
        monkeypatch.setattr(claims._objects, "write", away)
        time.sleep(0.2)
        monkeypatch.setattr(claims._objects, "write", write)
        beats = said(held)["beat"]
        deadline = time.monotonic() + 5
        while said(held)["beat"] == beats and time.monotonic() < deadline:
            time.sleep(0.01)
        assert said(held)["beat"] != beats


def test_claims_of_earlier_versions_in_a_store_count_on(tmp_path: Path) -> None:
    objects = Objects(f"file://{tmp_path}/bucket/run")
    objects.write("attempts/000004-002.json", json.dumps({"host": "old", "process": 7, "time": 1.0}).encode())
    with closing(Lease(StoreClaims(objects), say=lambda text: None).take()) as held:
        assert held.number == 5
        held.check()


def test_a_store_that_is_away_is_asked_again_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claims = StoreClaims(Objects(f"file://{tmp_path}/bucket/run"))

    def away(*given: object) -> None:
        raise ConnectionError("no such host")

    with monkeypatch.context() as patched:
        patched.setattr(claims._objects, "sizes", away)
        lease.require_free(claims)
    assert claims.numbers() == []


def test_a_run_that_somebody_holds_is_not_free(claims: Claims) -> None:
    lease.require_free(claims)
    with closing(Lease(claims).take()), pytest.raises(CheckpointError, match="is at work in it"):
        lease.require_free(claims)


def test_a_store_that_made_the_claim_and_did_not_say_so_refuses_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claims = StoreClaims(Objects(f"file://{tmp_path}/bucket/run"))
    create = claims.create
    monkeypatch.setattr(claims, "create", lambda number, content: create(number, content) and False)
    with closing(Lease(claims).take()) as held:
        held.check()
        assert held.number == 1


def test_a_store_that_fails_as_the_claim_is_made_leaves_nothing_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claims = StoreClaims(Objects(f"file://{tmp_path}/bucket/run"))

    def away(number: int, content: bytes) -> bool:
        raise ConnectionError("reset")

    wanting = Lease(claims)
    with monkeypatch.context() as patched:
        patched.setattr(claims, "create", away)
        with pytest.raises(ConnectionError):
            wanting.take()
    assert wanting.number == 0
    with closing(wanting.take()):
        assert claims.numbers() == [1]


def test_without_a_table_of_processes_a_number_that_is_used_again_blocks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "_started", lambda process: "there")
    before = Lease(FolderClaims(tmp_path)).take()
    before._over.set()
    before._thread.join()
    with closing(Lease(FolderClaims(tmp_path), say=lambda text: None).take()) as held:
        assert held.number == 2


def test_of_two_that_hold_one_number_the_first_writes_no_more_and_ends_nothing(claims: Claims) -> None:
    """Claims that somebody removed by hand while the run was held."""
    first = Lease(claims).take()
    first._over.set()
    first._thread.join()
    claims.remove(1)
    with closing(Lease(claims).take()) as second:
        assert second.number == 1
        with pytest.raises(CheckpointError, match="has taken this run over"):
            first.check()
        first.close()
        second.check()
        assert "ended" not in said(second)
