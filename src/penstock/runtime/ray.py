"""The processes of a run in a Ray cluster: an actor for each, in the bundles of a placement group.

An actor is the run's agent on its node: it holds the resources, starts the role as a process of its own, and passes on how
that ended. So a role is the same program here as on one machine, with its own main thread, signals and, for a foreign engine,
Python. Its standard input ends with the actor; it then ends at once with all it has started (``die_with_parent``), so nothing
outlives an actor, a node or the driver. What goes to an actor and comes back is JSON text; groups go over our own sockets and
weights through a channel, neither through Ray.

Ray restarts nothing and repeats no call: the supervisor does, which knows what a role was doing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from penstock.config.placement import Bundles
from penstock.core.errors import RoleError, SpecError
from penstock.runtime.node_agent import NodeAgent
from penstock.runtime.supervisor import SHUTDOWN_GRACE, Child, Place, Role

ROOM = 900.0
"""Seconds that the cluster may take to find room, as one that grows on demand does."""
WAITED = 10.0
"""Seconds after which a wait for room is reported."""
CONNECT_TIMEOUT = 10.0
"""Seconds in which a cluster's head must take a connection."""
AGAIN = 0.25
"""Seconds before an actor is tried again."""
HANDLING = 5.0
"""Seconds in which an actor that lives must have ended its process."""
SMALL_STORE = 80 << 20
"""Bytes of the object store of a cluster of our own, which holds nothing of ours."""

Result = TypeVar("Result")


class RayNodeAgent(NodeAgent):
    """The actor."""

    def address(self) -> str:
        import ray.util

        return str(ray.util.get_node_ip_address())


class RayChild:
    """A role that an actor has started."""

    def __init__(self, role: Role, actor: Any) -> None:
        self.role, self.actor, self.address = role, actor, ""
        self._ended: asyncio.Task[int]
        self.ending: asyncio.Task[None] | None = None
        """Its end, once that has begun; takes at most :data:`HANDLING` seconds."""

    async def ask(self, verb: str, **values: Any) -> Any:
        """Have the actor carry a verb out. Raises RoleError with what it says is wrong, RayError where it is gone."""
        answer = json.loads(await self.actor.call.remote(verb, json.dumps(values)))
        if "error" in answer:
            raise RoleError(answer["error"])
        return answer["value"]

    async def start(self) -> None:
        """Start the role on the node that the actor is on."""
        log = str(self.role.log.resolve()) if self.role.log else ""
        self.address = await self.ask("start", **vars(self.role) | {"log": log}, driver=sys.executable)
        self._ended = asyncio.ensure_future(self._attend())

    def signal(self, number: int, alone: bool = False) -> None:
        if number == signal.SIGKILL:
            self._end()
        else:
            self._telling = asyncio.ensure_future(self._tell(number, alone))

    async def _tell(self, number: int, alone: bool) -> None:
        with contextlib.suppress(_gone()):
            await self.ask("signal", number=number, alone=alone)

    def _end(self) -> asyncio.Task[None]:
        self.ending = self.ending or asyncio.ensure_future(self._end_through_agent())
        return self.ending

    async def _end_through_agent(self) -> None:
        """End the process and all it has started, then the actor. Through the actor while that answers: a process that stands
        still does not notice that its input has ended."""
        try:
            with contextlib.suppress(_gone(), RoleError, TimeoutError):
                async with asyncio.timeout(HANDLING):
                    await self.ask("signal", number=int(signal.SIGKILL), alone=False)
        finally:
            self.kill()

    def kill(self) -> None:
        """End the actor, and with it the process. Where the driver has left the cluster, both have ended with that."""
        import ray

        if ray.is_initialized():
            ray.kill(self.actor, no_restart=True)

    async def wait(self) -> int:
        """Its exit code; that of SIGKILL where the actor or its node has died."""
        return await asyncio.shield(self._ended)

    async def _attend(self) -> int:
        try:
            if self.role.log is None:
                await asyncio.gather(self._pass_on("stdout"), self._pass_on("stderr"))
            return int(await self.ask("wait"))
        except _gone():
            return -signal.SIGKILL

    async def _pass_on(self, pipe: str) -> None:
        """What the process prints goes to the terminal of the driver."""
        while text := await self.ask("read", pipe=pipe):
            print(text, end="", file=getattr(sys, pipe), flush=True)

    async def stop(self) -> int:
        """SIGTERM, and the end of the actor after :data:`SHUTDOWN_GRACE` seconds at the latest."""
        self.signal(signal.SIGTERM, alone=True)
        try:
            return await asyncio.wait_for(self.wait(), SHUTDOWN_GRACE)
        except TimeoutError:
            return -signal.SIGKILL
        finally:
            await self._end()


def _gone() -> type[Exception]:
    """The error of a call to an actor that has died, or that cannot be reached."""
    from ray.exceptions import RayError

    return RayError


class Cluster(Place):
    """The cluster that ``RAY_ADDRESS`` names, or one of our own that ends with the run."""

    def __init__(self, bundles: Bundles) -> None:
        """Raises SpecError where Ray is not installed."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")  # else a call that comes after the end joins a cluster again
        if not os.environ.get("RAY_ADDRESS") and "RAY_AUTH_MODE" not in os.environ:
            # Ray listens on every interface, and a client that is let in can run code; it reads these when it is imported.
            os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        try:
            import ray  # noqa: F401
        except ImportError as cause:
            raise SpecError('runtime="ray" needs Ray: pip install "penstock[ray]"') from cause
        self.bundles = bundles
        self.host = ""
        self._group: Any = None
        self._own: str = ""
        self._children: weakref.WeakSet[RayChild] = weakref.WeakSet()
        self._note: Callable[..., None] = lambda what, **fields: None

    async def open(self, note: Callable[..., None]) -> None:
        """Join or start the cluster and reserve the bundles.

        Raises:
            SpecError: the cluster cannot be reached, or it has no room within :data:`ROOM` seconds.
        """
        import ray
        import ray.util

        self._note = note
        stop = signal.getsignal(signal.SIGTERM) or signal.SIG_DFL
        try:
            self._join()
        except (ConnectionError, RuntimeError, ValueError) as error:
            where = os.environ.get("RAY_ADDRESS", "this machine")
            raise SpecError(f"the Ray cluster at {where} does not answer: {error}") from error
        with contextlib.suppress(ValueError):  # in another thread Ray sets no handler either
            signal.signal(signal.SIGTERM, stop)  # its own ends the driver at once, so that nothing is saved
        self.host = ray.util.get_node_ip_address()
        totals = [bundle.total for bundle in self.bundles.bundles]
        self._group = ray.util.placement_group([total or {"CPU": 0.001} for total in totals], strategy=self.bundles.strategy)
        await self._room(self._group.ready(), f"the run, which takes {_in_words(totals)}")

    def _join(self) -> None:
        import ray

        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": True}
        if address := os.environ.get("RAY_ADDRESS"):
            require_listening(address)
            ray.init(address=address, **quiet)
            return
        totals = [bundle.total for bundle in self.bundles.bundles]
        needed = {name: sum(total.get(name, 0.0) for total in totals) for total in totals for name in total}
        cores = max(os.cpu_count() or 1, -(-int(1000 * needed.pop("CPU", 0.0)) // 1000))
        needed.pop("GPU", None)  # Ray counts those that are there
        self._own = tempfile.mkdtemp(prefix="penstock-ray-")
        ray.init(
            address="local", num_cpus=cores, resources=needed or None, include_dashboard=False,
            object_store_memory=SMALL_STORE, _temp_dir=self._own, _node_ip_address="127.0.0.1", **quiet,
        )  # fmt: skip

    async def spawn(self, role: Role) -> Child:
        """An actor in the role's bundle; waits until the cluster has room for it.

        Raises:
            SpecError: that took longer than :data:`ROOM` seconds.
            RoleError: the node does not see the run's folder.
        """
        return await self._room(self._settled(role), f"{role.name}, which takes {_in_words([self._bundle(role)])}")

    async def _settled(self, role: Role) -> Child:
        """A child that has started. Ray may place an actor on a node that has died and of which it does not know it yet, and
        tells of no change; so that is tried again."""
        while True:
            child = RayChild(role, self._actor(role))
            try:
                await child.start()
                self._children.add(child)
                return child
            except _gone():
                child.kill()
                await asyncio.sleep(AGAIN)
            except BaseException:
                child.kill()
                raise

    def _bundle(self, role: Role) -> dict[str, float]:
        return self.bundles.bundles[self.bundles.find(role.name)[0]].total

    def _actor(self, role: Role) -> Any:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        index, takes = self.bundles.find(role.name)
        where = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
        return ray.remote(RayNodeAgent).options(  # type: ignore[attr-defined]
            num_cpus=takes.cpus, num_gpus=takes.gpus, resources=dict(takes.custom) or None, scheduling_strategy=where,
            max_restarts=0, max_task_retries=0,
        ).remote()  # fmt: skip

    async def _room(self, found: Awaitable[Result], what: str) -> Result:
        """Wait for room; tells of it where it takes long."""
        waiting = asyncio.ensure_future(found)
        try:
            done, _ = await asyncio.wait({waiting}, timeout=WAITED)
            if not done:
                self._note("waiting for room in the cluster", reason=what)
                print(f"penstock: waiting for room in the cluster for {what}", file=sys.stderr, flush=True)
                done, _ = await asyncio.wait({waiting}, timeout=ROOM)
            if not done:
                import ray

                raise SpecError(
                    f"the cluster found no room in {ROOM:.0f} s for {what}; it has {_in_words([ray.cluster_resources()])}"
                )
            return waiting.result()
        finally:
            waiting.cancel()

    async def close(self) -> None:
        """Give the bundles back and leave the cluster; one of our own ends."""
        import ray
        import ray.util

        endings = [child.ending for child in self._children if child.ending is not None]
        await asyncio.gather(*endings, return_exceptions=True)
        if ray.is_initialized():
            if self._group is not None:
                ray.util.remove_placement_group(self._group)
            ray.shutdown()
        if self._own:
            shutil.rmtree(self._own, ignore_errors=True)


def require_listening(address: str) -> None:
    """Ask first: Ray tries for minutes, and loudly.

    Raises:
        SpecError: nobody listens at ``HOST:PORT``, or the address is none; ``auto`` is Ray's own to find.
    """
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not port.isdigit() or "/" in address:
        raise SpecError(f"RAY_ADDRESS={address}: run penstock on a node of the cluster and set HOST:PORT of its head, or auto")
    try:
        socket.create_connection((host, int(port)), CONNECT_TIMEOUT).close()
    except OSError as error:
        raise SpecError(f"no Ray cluster at RAY_ADDRESS={address}: {error}; unset it for one on this machine") from error


def _in_words(totals: Sequence[Mapping[str, float]]) -> str:
    """Resources in words: ``2 × (CPU 1); CPU 1, GPU 1``."""
    unsaid = ("memory", "object_store_memory")  # Ray's own, as those with a colon are
    shown = [
        sorted((name, amount) for name, amount in total.items() if name not in unsaid and ":" not in name) for total in totals
    ]
    words = [", ".join(f"{name} {amount:g}" for name, amount in parts) or "nothing" for parts in shown]
    return "; ".join(f"{words.count(word)} × ({word})" if words.count(word) > 1 else word for word in dict.fromkeys(words))
