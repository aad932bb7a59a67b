"""Data sets of the Hugging Face hub, and local folders or tables, through the datasets package. Its only home."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.config.run import DataSpec
from penstock.core.errors import DataError
from penstock.core.network import hub_is_reachable
from penstock.data.rows import Rows, span

_TABLES = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json"}


def open_hub(spec: DataSpec, place: str, base: Path) -> Rows:
    """Open ``NAME[:SUBSET]`` where NAME is a hub data set, a local folder, or a .parquet, .csv or .json file.

    Raises:
        DataError: the package is missing, or the data set cannot be loaded; one line with the package's own words.
    """
    try:
        import datasets
    except ImportError as error:
        raise DataError("hub data sets need the datasets package; run: pip install penstock[hub]") from error
    try:
        name, table = _load(datasets, spec, place, base)
    except Exception as error:
        words = " ".join(str(error).split())
        raise DataError(f"{spec.source} (split {spec.split}): {type(error).__name__}: {words[:300]}") from error
    if not hasattr(table, "select"):
        raise DataError(f"{spec.source} (split {spec.split}): not a table of rows; name a single split")
    return Rows(spec.name or name, table.select(span(spec, len(table))))


def _load(datasets: Any, spec: DataSpec, place: str, base: Path) -> tuple[str, Any]:
    local = (base / Path(place).expanduser()).resolve()
    if local.is_file():
        if local.suffix not in _TABLES:
            raise DataError(f"{local}: cannot tell its format; use {', '.join(_TABLES)}")
        return local.stem, datasets.load_dataset(_TABLES[local.suffix], data_files=str(local), split=spec.split)
    if (local / "dataset_dict.json").is_file():
        return local.name, datasets.load_from_disk(str(local))[spec.split]
    if (local / "state.json").is_file():
        return local.name, datasets.load_from_disk(str(local))
    if local.is_dir():
        return local.name, datasets.load_dataset(str(local), split=spec.split)
    name, _, subset = place.partition(":")
    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = before or not hub_is_reachable()
    try:
        return name, datasets.load_dataset(name, subset or None, split=spec.split)
    finally:
        datasets.config.HF_HUB_OFFLINE = before
