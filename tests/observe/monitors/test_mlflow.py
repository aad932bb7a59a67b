"""MLflow: a store in SQLite read back through its client, and tracking servers that are gone or refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from monitor_examples import BEGAN, STORY, answering, event, folder, free_port, metrics, run_of, silent, told

pytest.importorskip("mlflow")
pytest.importorskip("sqlalchemy")

from mlflow import MlflowClient

from penstock.observe.monitors import mlflow as module
from penstock.observe.monitors import monitors_of
from penstock.observe.monitors.monitor import ALL


@pytest.fixture(autouse=True)
def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Artifacts lie in the test's folder, and nothing is tried for long."""
    monkeypatch.chdir(tmp_path)
    for name, value in module.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A store whose tables are made, which takes seconds."""
    path = tmp_path_factory.mktemp("mlflow") / "empty.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path.read_bytes()


@pytest.fixture
def store(tmp_path: Path, empty: bytes) -> str:
    path = tmp_path / "mlflow.db"
    path.write_bytes(empty)
    return f"sqlite:///{path}"


def monitor_to(uri: str, tmp_path: Path, **changes: Any) -> Any:
    return monitors_of(run_of(f"mlflow:{uri}" if uri else "mlflow", **changes), folder(tmp_path))[0]


def only_run(store: str, experiment: str = "penstock") -> tuple[MlflowClient, Any]:
    client = MlflowClient(store)
    found = client.get_experiment_by_name(experiment)
    (run,) = client.search_runs([found.experiment_id])
    return client, run


def points(store: str, name: str) -> list[Any]:
    """What was logged under a name, in order."""
    client, run = only_run(store)
    return list(client.get_metric_history(run.info.run_id, name))


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, empty: bytes) -> str:
    """A store that was told the story of a run that has not finished."""
    path = tmp_path_factory.mktemp("story")
    (path / "mlflow.db").write_bytes(empty)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        assert told(monitor_to(f"sqlite:///{path}/mlflow.db", path, seed=7), STORY) == []
    return f"sqlite:///{path}/mlflow.db"


def test_metrics_keep_their_names_times_and_steps_over_all_stages(story: str) -> None:
    assert [(one.value, one.step, one.timestamp) for one in points(story, "grpo/reward/mean")] == [
        (0.25, 5, int(1000 * (BEGAN + 2))),  # the first stage had 4 steps
        (0.5, 6, int(1000 * (BEGAN + 4))),
    ]


def test_the_spec_is_its_parameters(story: str) -> None:
    _, run = only_run(story)
    expected = {"seed": "7", "stages.1.batch": "4", "stages.1.learner.learning_rate": "0.001"}
    assert expected.items() <= run.data.params.items()
    assert run.info.run_name == "run"


def test_an_alarm_is_a_tag(story: str) -> None:
    assert only_run(story)[1].data.tags["alarm.flat groups"] == "grpo step 2: no gradient"


def test_samples_are_a_table(story: str) -> None:
    client, run = only_run(story)
    (artifact,) = client.list_artifacts(run.info.run_id, "samples")
    table = json.loads(Path(client.download_artifacts(run.info.run_id, artifact.path)).read_text(encoding="utf-8"))
    row = dict(zip(table["columns"], table["data"][0], strict=True))
    assert (row["prompt"], row["text"], row["reward"], row["reward/vowels"]) == ("ab|", "line\nline", 0.25, 0.25)


def test_a_run_that_has_not_finished_has_failed(story: str) -> None:
    assert only_run(story)[1].info.status == "FAILED"


def test_numbers_wait_for_each_other_and_none_is_lost(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "METRICS", 7)
    assert told(monitor_to(store, tmp_path), [metrics(step, loss=1.0 * step) for step in range(1, 21)]) == []
    assert [one.value for one in points(store, "grpo/loss")] == [1.0 * step for step in range(1, 21)]


def later(*events: tuple[float, dict[str, float]]) -> list[Any]:
    """Metrics of steps beyond those that are all sent, by the seconds of each and its values."""
    first = ALL + 1
    return [
        {**event("metrics", step=first + place, values=values), "time": BEGAN + seconds}
        for place, (seconds, values) in enumerate(events)
    ]


def test_of_later_steps_the_newest_numbers_are_sent_every_five_seconds(store: str, tmp_path: Path) -> None:
    events = later((0.1, {"loss": 1.0, "rare": 7.0}), (4.6, {"loss": 2.0}), (5.1, {"loss": 3.0}))
    assert told(monitor_to(store, tmp_path), events) == []
    total = 4 + ALL  # the first stage had 4 steps
    assert [(one.value, one.step) for one in points(store, "grpo/loss")] == [(2.0, total + 2), (3.0, total + 3)]
    assert [(one.value, one.step) for one in points(store, "grpo/rare")] == [(7.0, total + 2)]


def test_an_evaluation_among_later_steps_keeps_its_step(store: str, tmp_path: Path) -> None:
    events = later((0.1, {"loss": 1.0}), (0.2, {"evaluation/reward": 0.5}), (0.3, {"loss": 2.0}))
    told(monitor_to(store, tmp_path), events)
    (found,) = points(store, "grpo/evaluation/reward")
    assert (found.value, found.step) == (0.5, 4 + ALL + 2)


def test_a_long_run_sends_samples_to_its_end(store: str, tmp_path: Path) -> None:
    rows = [{"text": "a", "held_out": True}]
    assert told(monitor_to(store, tmp_path), [event("samples", step=step, rows=rows) for step in range(200)]) == []
    client, run = only_run(store)
    assert len(client.list_artifacts(run.info.run_id, "samples")) == 200


def test_a_finished_run_says_its_headline(store: str, tmp_path: Path) -> None:
    (folder(tmp_path) / "summary.json").write_text('{"headline": "reward 0.2 to 0.5"}', encoding="utf-8")
    told(monitor_to(store, tmp_path), STORY)
    _, run = only_run(store)
    assert (run.info.status, run.data.tags["mlflow.note.content"]) == ("FINISHED", "reward 0.2 to 0.5")


def test_a_resumed_run_goes_on_in_the_same_one(store: str, tmp_path: Path) -> None:
    told(monitor_to(store, tmp_path), STORY[:2])
    told(monitor_to(store, tmp_path), STORY[2:])
    assert [one.step for one in points(store, "grpo/reward/mean")] == [5, 6]


def test_a_run_that_is_resumed_with_other_monitors_goes_on(store: str, tmp_path: Path) -> None:
    told(monitor_to(store, tmp_path), STORY[:2])
    monitors = monitors_of(run_of("prometheus:0", f"mlflow:{store}"), folder(tmp_path))
    assert [warned for monitor in monitors for warned in told(monitor, STORY[2:])] == []
    assert len(points(store, "grpo/reward/mean")) == 2


def test_names_become_those_that_mlflow_allows(store: str, tmp_path: Path) -> None:
    assert told(monitor_to(store, tmp_path), [event("metrics", values={"machine/gpu/box:0/memory": 0.5, "größe": 1.0})]) == []
    _, run = only_run(store)
    assert {"machine/gpu/box_0/memory": 0.5, "grpo/gr__e": 1.0}.items() <= run.data.metrics.items()


def test_the_environment_names_store_and_experiment(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "elsewhere")
    told(monitor_to("", tmp_path), STORY)
    assert only_run(store, "elsewhere")[1].info.run_name == "run"


def test_a_dead_server_is_one_warning(tmp_path: Path) -> None:
    (warned,) = told(monitor_to(f"http://127.0.0.1:{free_port()}", tmp_path), STORY)
    assert "mlflow failed" in warned
    assert warned.endswith("the run goes on")


@pytest.mark.parametrize("status", [401, 403, 500])
def test_a_server_that_refuses_is_one_warning(status: int, tmp_path: Path) -> None:
    with answering(lambda method, path, body: (status, b'{"error_code": "PERMISSION_DENIED", "message": "no"}')) as url:
        (warned,) = told(monitor_to(url, tmp_path), STORY)
    assert "mlflow failed" in warned


def test_a_server_that_never_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with silent() as url:
        (warned,) = told(monitor_to(url, tmp_path), STORY, seconds=30.0)
    assert "mlflow failed" in warned


def test_after_a_refusal_the_server_is_not_asked_at_every_event(tmp_path: Path) -> None:
    asked: list[str] = []

    def answer(method: str, path: str, body: bytes) -> tuple[int, bytes]:
        asked.append(path)
        return 403, b"{}"

    with answering(answer) as url:
        monitor = monitor_to(url, tmp_path)
        told(monitor, [metrics(1, loss=1.0)])
        once = len(asked)
        told(monitor, [metrics(step, loss=1.0) for step in range(2, 30)])
    assert len(asked) == once > 0
