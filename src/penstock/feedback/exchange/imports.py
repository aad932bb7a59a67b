"""Labels that others have gathered, into a store: HH-RLHF as votes, rt-polarity as ratings, anything that ``formats`` reads."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

from penstock.data.files import numbered_json_rows, text_rows
from penstock.feedback.errors import FeedbackError
from penstock.feedback.exchange.formats import Imported, as_vote
from penstock.feedback.exchange.questions import ask
from penstock.feedback.records import Annotator, Item, Response, Submission, Task
from penstock.feedback.store import Store

TURN = "\n\nAssistant:"
AT_ONCE = 500
"""Tasks put into the store in one transaction."""


def load(store: Store, imported: Imported) -> int:
    """Put imported tasks and judgements into a store; gives how many judgements were new. Again, it adds nothing.

    Raises:
        FeedbackError: an annotator of that name is there and is not an imported one, or a judgement is malformed.
    """
    before = store.length()
    for project in {task.project for task, _ in imported}:
        for name in sorted({submission.annotator for _, said in imported for submission in said}):
            store.enrol(Annotator(name, nature="imported"), project)
    for start in range(0, len(imported), AT_ONCE):
        part = imported[start : start + AT_ONCE]
        store.ask([task for task, _ in part])
        store.record([submission for _, said in part for submission in said])
    return store.length() - before


def moved(imported: Imported, project: str) -> Imported:
    """The same in a project, where its tasks have other names."""
    made = [(replace(task, project=project), said) for task, said in imported]
    return [
        (task, [replace(one, task=task.id, key=f"import:{one.annotator}:{task.id}") for one in said]) for task, said in made
    ]


def ask_people(store: Store, imported: Imported, overlap: int, guideline: str = "1") -> int:
    """Put imported items to people as tasks of their own, of ``overlap`` seats; gives how many are new."""
    return ask(store, [replace(task, overlap=overlap, guideline=guideline, round="people") for task, _ in imported])


def hh_rlhf(path: Path, annotator: str = "hh-rlhf", most: int | None = None) -> Imported:
    """Votes of the format of HH-RLHF (Bai et al. 2022, arXiv 2204.05862): the dialogues ``chosen`` and ``rejected``.

    The prompt is the dialogue up to the last ``Assistant:``. Pairs whose dialogues part before that are left out.

    Raises:
        FeedbackError: a row is not of this format; names it.
    """
    found: Imported = []
    for number, (_, row) in enumerate(islice(numbered_json_rows(path), most)):
        try:
            before, mark, chosen = row["chosen"].rpartition(TURN)
            also_before, _, rejected = row["rejected"].rpartition(TURN)
        except (KeyError, AttributeError) as error:
            raise FeedbackError(f"{path} row {number}: not of the format of HH-RLHF ({error!r})") from error
        if mark and before == also_before and chosen != rejected:
            found.append(as_vote(before + TURN, chosen, rejected, annotator, f"{path.name}/{number}"))
    return found


def rt_polarity(folder: Path, annotator: str = "rt-polarity", most: int | None = None) -> Imported:
    """Ratings of film sentences, 1 for positive and 0 for negative (Pang & Lee 2005): ``pos.txt`` and ``neg.txt``.

    Args:
        folder: where the two files are.
        annotator: the name that the ratings get.
        most: sentences of each file at most.

    Raises:
        FeedbackError: a file is not there.
    """
    found: Imported = []
    for name, value in (("pos", 1), ("neg", 0)):
        path = folder / f"{name}.txt"
        if not path.is_file():
            raise FeedbackError(f"{path}: there is no such file; the folder of rt-polarity holds pos.txt and neg.txt")
        for number, row in enumerate(islice(text_rows(path), most)):
            item = Item("Write a sentence about a film.", (Response(row["text"], source="imported"),), f"{name}/{number}")
            task = Task(item=item, form="rating", overlap=1, scale=(0.0, 1.0), guideline="imported")
            body = {"scores": {"overall": [value]}}
            found.append((task, [Submission("rating", task.id, annotator, f"import:{annotator}:{task.id}", body)]))
    return found
