"""A database password in a URL is refused before anything is shown or written; where it belongs, it works."""

import contextlib
import os
import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy", reason="needs the extra feedback")

from penstock.cli.main import main
from penstock.config.ask import Ask
from penstock.config.engines import Served
from penstock.config.run import DataSpec, ModelSpec
from penstock.core.errors import PenstockError, SpecError
from penstock.core.network import require_no_password
from penstock.feedback.store import Store
from penstock.product.source import rows

SECRET = "hunter2"
URL = f"postgresql://ann:{SECRET}@127.0.0.1:1/votes"


@pytest.mark.parametrize(
    "words",
    [
        ("explain", "human_loop", "--store", URL),
        ("train", "human_loop", "--store", URL),
        ("feedback", "status", URL),
        ("feedback", "enrol", URL, "bob"),
        ("feedback", "serve", URL, "--port", "0"),
        ("ui", ".", "--store", URL, "--port", "0"),
    ],
    ids=" ".join,
)
def test_no_command_shows_or_keeps_a_password_of_a_url(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(list(words)) == 2
    said = capsys.readouterr()
    assert SECRET not in said.out + said.err
    assert "postgresql://ann:…@127.0.0.1:1/votes" in said.err
    assert "PGPASSFILE" in said.err
    assert said.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "made",
    [
        lambda: DataSpec(source=f"feedback:{URL}"),
        lambda: DataSpec(source="feedback:@run", options={"rows": {"source": [f"feedback:{URL}"]}}),
        lambda: Ask(name="ask", model=ModelSpec(path="@sft"), data=DataSpec(source="x.jsonl"), store=URL),
        lambda: Served(url=f"http://ann:{SECRET}@gpu:8000"),
        lambda: Store.open(URL),
        lambda: Store.open(f"mysql://ann:{SECRET}@host/votes"),
        lambda: rows(URL, Path(), {}),
    ],
    ids=["source", "options", "store", "engine", "open", "unknown kind", "rows"],
)
def test_neither_a_spec_nor_a_store_takes_a_password_in_a_url(made):
    with pytest.raises(PenstockError) as refused:
        made()
    assert SECRET not in str(refused.value)
    assert "PGPASSFILE" in str(refused.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"postgres://ann:{SECRET}@host/db", "postgres://ann:…@host/db"),
        (f"postgresql+psycopg://ann:{SECRET}/x@host/db", "postgresql+psycopg://ann:…@host/db"),
        (f"postgresql://:{SECRET}@host", "postgresql://:…@host"),
        (f"postgresql://ann@host/db?password={SECRET}", "postgresql://ann@host/db?password=…"),
        (f"postgresql://ann@host/db?a=b&sslpassword={SECRET}&c=d", "postgresql://ann@host/db?a=b&sslpassword=…&c=d"),
        (f"postgresql://ann@host/db?PASSWORD={SECRET}", "postgresql://ann@host/db?PASSWORD=…"),
    ],
)
def test_the_refusal_shows_the_url_without_the_password(url, shown):
    with pytest.raises(SpecError) as refused:
        require_no_password(url)
    assert str(refused.value).startswith(f"{shown}: ")
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "plain",
    ["postgresql://ann@host:5432/db", "postgresql://ann@/db?host=%2Ftmp", "http://127.0.0.1:8000,http://127.0.0.1:8001",
     "feedback.db", "@run", "See http://example.org:80 or write to ann@example.org", 5, None],
)  # fmt: skip
def test_what_holds_no_password_is_taken(plain):
    assert require_no_password(plain) is None  # and raised nothing


def test_a_password_file_opens_a_store_that_asks_for_a_password(monkeypatch):
    """Under real password authentication, by the variable that the refusal names; without it the server says no."""
    psycopg = pytest.importorskip("psycopg", reason="PostgreSQL: needs the extra postgres")
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
    from private_postgresql import NoPostgreSQL, private_postgresql

    with contextlib.ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o755)  # the server runs as another user
        rules, key = folder / "pg_hba.conf", folder / "pgpass"
        rules.write_text("local all penstock trust\nlocal all ann scram-sha-256\n")
        rules.chmod(0o644)
        key.touch(0o600)
        key.write_text(f"*:*:*:ann:{SECRET}\n")
        try:
            url, _ = opened.enter_context(private_postgresql(f"hba_file={rules}"))
        except NoPostgreSQL as error:
            pytest.skip(f"PostgreSQL: {error}")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"CREATE ROLE ann LOGIN PASSWORD '{SECRET}'")
            connection.execute("GRANT ALL ON SCHEMA public TO ann")
        mine = url.replace("penstock@", "ann@")
        monkeypatch.setenv("PGPASSFILE", os.devnull)
        with pytest.raises(PenstockError, match="no password supplied"):
            Store.open(mine)
        monkeypatch.setenv("PGPASSFILE", str(key))
        with Store.open(mine) as store:
            assert store.length() == 0
