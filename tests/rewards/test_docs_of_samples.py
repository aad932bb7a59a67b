"""The page says what a sample offers to a reward function, all of it."""

import re
from dataclasses import fields
from pathlib import Path

from penstock.core.types import Sample

PAGE = Path(__file__).resolve().parents[2] / "docs" / "data_and_rewards.md"


def test_the_table_of_what_a_sample_offers_is_complete():
    section = PAGE.read_text().partition("## What a sample offers")[2].partition("\n## ")[0]
    rows = [row for row in section.splitlines() if row.startswith("| `sample.")]
    named = {name for row in rows for name in re.findall(r"`sample\.(\w+)", row.split("|")[1])}
    computed = {name for name in dir(Sample) if isinstance(getattr(Sample, name), property)}
    assert named == ({field.name for field in fields(Sample)} | computed) - {"marked"}
