"""The learner: carries the run out, with the other roles in processes of their own."""

from __future__ import annotations

import sys

from penstock.core.errors import PenstockError, RanksLost
from penstock.runtime.bootstrap import RANKS_LOST, Bootstrap
from penstock.runtime.listeners import EventSender
from penstock.runtime.session import Session
from penstock.runtime.stopping import Interrupted, StopSignal
from penstock.train.fleet import launch_ranks_by
from penstock.train.launcher import RemoteLauncher
from penstock.train.rendezvous import host_of_this_node


def train(bootstrap: Bootstrap) -> int:
    """Carry the run out, with the other roles in processes of their own; gives the exit code.

    Events, and how the run ended, go to the process that launched it.
    """
    if bootstrap.rank_threads:
        launch_ranks_by(RemoteLauncher(bootstrap.folder, host_of_this_node(), bootstrap.token, bootstrap.rank_threads))
    with StopSignal() as stop, EventSender(bootstrap) as sender:
        session = Session(bootstrap.run, bootstrap.folder, [sender], bootstrap.base, stop=stop, bootstrap=bootstrap)
        try:
            session.execute(bootstrap.resuming)
        except RanksLost as lost:
            print(f"penstock: {lost}", file=sys.stderr, flush=True)
            return RANKS_LOST
        except (Interrupted, PenstockError) as error:
            sender.ended(error)
            return 130 if isinstance(error, Interrupted) else 2
        sender.ended()
    return 0
