"""Data sets of the Hugging Face hub, and local folders or tables, through the datasets package. Its only home."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.config.run import DataSpec
from penstock.core.contracts import Source
from penstock.core.errors import DataError
from penstock.core.network import hub_is_reachable
from penstock.data.files import open_rows
from penstock.data.held import plain
from penstock.data.rows import Chain, DataRow, Rows


class Table:
    """Rows of a table without the nulls that Arrow puts where rows have other keys."""

    def __init__(self, table: Any) -> None:
        if not hasattr(table, "features") or isinstance(table, dict):
            raise DataError("not a table of rows; name a single split")
        self._table = table
        self._json = {name for name, feature in table.features.items() if type(feature).__name__ == "Json"}
        """Columns whose values are kept as JSON, with nulls that somebody wrote."""

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, index: int) -> DataRow:
        return {name: value if name in self._json else plain(value) for name, value in self._table[index].items()}


def open_hub(spec: DataSpec, place: str, base: Path) -> Source:
    """Open ``NAME[:SUBSET]`` where NAME is a hub data set, a local folder, or a .parquet file.

    JSON and CSV are read by our own readers, because the package guesses at types: "007" becomes 7 and "2024-01-05" a date.

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
    return Rows.of(spec, name, table)


def _load(datasets: Any, spec: DataSpec, place: str, base: Path) -> tuple[str, Any]:
    local = (base / Path(place).expanduser()).resolve()
    if local.is_file():
        return local.stem, Table(datasets.load_dataset("parquet", data_files=str(local), split=spec.split))
    if (local / "dataset_dict.json").is_file():
        return local.name, Table(datasets.load_from_disk(str(local))[spec.split])
    if (local / "state.json").is_file():
        return local.name, Table(datasets.load_from_disk(str(local)))
    if local.is_dir():
        return local.name, _built(datasets, str(local), None, spec.split)
    name, _, subset = place.partition(":")
    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = before or not hub_is_reachable()
    try:
        return name, _built(datasets, name, subset or None, spec.split)
    finally:
        datasets.config.HF_HUB_OFFLINE = before


def _built(datasets: Any, name: str, subset: str | None, split: str) -> Any:
    """The table of a data set's files; those of JSON and CSV row by row, as they are spelled."""
    builder = datasets.load_dataset_builder(name, subset)
    files = getattr(builder.config, "data_files", None) or {}
    written = {base.__name__ for base in type(builder).__mro__} & {"Json", "Csv"}
    if written and split not in files:
        raise DataError(
            f'no split "{split}" among {", ".join(map(str, files))}; of JSON and CSV name one, and use skip and size'
        )
    if not written:
        return Table(datasets.load_dataset(name, subset, split=split))
    fetched = datasets.DownloadManager().download([str(file) for file in files[split]])
    return Chain([open_rows(Path(place), str(file)) for place, file in zip(fetched, files[split], strict=True)])
