"""The run directory where the nodes of a cluster share no file system.

It lies on the driver's node, where processes read and write it directly. Every other node has a
folder of its own in place of it, which ends with the run:

    driver's node                                  another node
    run directory ─▶ FileServer ── policies ─────▶ NodeAgent ─▶ folder ─▶ engines, learner
                     FileServer ◀─ logs ────────── NodeAgent ◀─ folder ◀─ all processes
                     FileServer ◀─ checkpoints ─── the learner

Policies travel through Ray's object store, once to each node, which keeps a policy under the digest
of its content while the run directory has it. Games and metrics go to the tracker, on the driver's
node.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import hashlib
import logging
import os
import platform
import shutil
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlforge.errors import CheckpointError, RunError
from rlforge.models.files import cache_dir
from rlforge.system.checkpoint import STATE, prune, receive_checkpoint
from rlforge.system.files import atomic_path, files_below
from rlforge.system.output import Output
from rlforge.types import PolicyRef, value

log = logging.getLogger(__name__)

LOGS_EVERY_S = 1.0
"""Seconds between deliveries of new lines of logs."""

END_S = 30.0
"""Seconds that a node has for its last deliveries."""

_MOST_LOG_BYTES = 1 << 20
"""Most bytes of a log in one call."""

_KEPT_BY_LEARNER = 2
"""Checkpoints that stay on the node of a learner elsewhere."""

_SERVER = "files"

Files = dict[str, "np.ndarray[Any, Any]"]
"""Contents by path relative to a folder, with forward slashes."""


@value
class Packed:
    """A folder in Ray's object store, with the SHA-256 of its names and contents."""

    digest: str
    files: ray.ObjectRef[Files]


@value
class RunFolder:
    """The run directory, as a process on any node sees it.

    Attributes:
        run_dir: Path on the driver's node.
        node: Id of that node; None: there is no other.
        start: Name of this start of the run, which may be resumed on the same nodes.
    """

    run_dir: str
    node: str | None = None
    start: str = ""

    @property
    def here(self) -> bool:
        return self.node is None or self.node == this_node()

    @property
    def path(self) -> Path:
        """The run directory, or the folder that this node has in place of it."""
        if self.here:
            return Path(self.run_dir)
        # Nodes may share the home of a user after all: each then needs a folder of its own.
        return cache_dir() / "nodes" / self.start / this_node()[:12]

    def open(self) -> Path:
        """Return ``path``; on another node with an agent that sends its logs."""
        if not self.here:
            (self.path / "logs").mkdir(parents=True, exist_ok=True)
            _agent(self)
        return self.path

    def fetched(self, path: str) -> ray.ObjectRef[str] | None:
        """Place on this node of the policy at ``path`` of the driver's node; None: ``path`` itself.

        Awaiting it raises CheckpointError where the driver's node has no such folder.
        """
        return None if self.here else _agent(self).fetch.remote(path)

    async def policy(self, policy: PolicyRef) -> PolicyRef:
        """Policy with the place of its files on this node."""
        path = policy.path_or_name if policy.kind == "checkpoint" else None
        found = self.fetched(path) if path is not None else None
        return policy if found is None else dataclasses.replace(policy, path_or_name=await found)

    @property
    def checkpoints(self) -> Path:
        """Folder in which a learner on this node writes its checkpoints."""
        return self.path / "checkpoints"

    def hand_in(self, name: str) -> str:
        """Bring a checkpoint, or what it got since, home; returns its place there."""
        place = Path(self.run_dir) / "checkpoints" / name
        if not self.here:
            files = _read(self.checkpoints / name, state=True)
            ray.get(_server().receive.remote(str(place), files))
            # The run directory has all checkpoints, so that few need stay on this node.
            prune(self.checkpoints, _KEPT_BY_LEARNER)
        return str(place)

    def checkpoint(self, name: str) -> Path | None:
        """Path on this node of a checkpoint with its state; None where the run has none."""
        path = self.checkpoints / name
        if not self.here and not path.exists():
            place = Path(self.run_dir) / "checkpoints" / name
            files: Files | None = ray.get(_server().checkpoint.remote(str(place)))
            if files is not None:
                receive_checkpoint(path, {each: data.tobytes() for each, data in files.items()})
        return path if path.exists() else None


@functools.cache
def _agent(folder: RunFolder) -> Any:
    # The handle can be cached: it stays valid where Ray restarts the agent.
    return ray.get(_server().agent.remote(this_node(), folder))


def on_node(node: str) -> NodeAffinitySchedulingStrategy:
    """Placement of an actor on this node, and on no other."""
    return NodeAffinitySchedulingStrategy(node, soft=False)


def start_server(run_dir: Path) -> tuple[Any, RunFolder]:
    """Start the file server on this node, the driver's; returns its handle, and what clients need.

    Server and agents live as long as the handle is kept.
    """
    folder = RunFolder(run_dir=str(run_dir), node=this_node(), start=os.urandom(6).hex())
    made: Any = ray.remote(FileServer)
    server = made.options(
        name=_SERVER, num_cpus=0, scheduling_strategy=on_node(this_node())
    ).remote(str(run_dir))
    return server, folder


async def come_home(server: Any) -> None:
    """Bring the rest of all logs, and delete the folders that nodes have for this start.

    The rest of nodes that cannot be reached within ``END_S`` stays there.
    """

    async def answered(call: Any, nodes: str) -> Any:
        try:
            return await asyncio.wait_for(call, END_S)
        except (ray.exceptions.RayError, TimeoutError) as error:
            # Raised, this error would hide why the run ended.
            log.warning("the last lines of logs of %s are not here: %s", nodes, error)

    agents = await answered(server.agents.remote(), "other nodes") or {}
    ends = (answered(agent.end.remote(), f"node {node}") for node, agent in agents.items())
    await asyncio.gather(*ends)


def _server() -> Any:
    return ray.get_actor(_SERVER)


def this_node() -> str:
    """Id of the node that this process is on."""
    node: str = ray.get_runtime_context().get_node_id()
    return node


class FileServer:
    """Reads and writes the run directory for other nodes."""

    def __init__(self, run_dir: str) -> None:
        self._logs = Path(run_dir) / "logs"
        self._agents: dict[str, Any] = {}
        self._packed: dict[str, tuple[int, Packed]] = {}
        self._received: dict[tuple[str, str], int] = {}
        self._outputs = dict[str, Output]()

    def agent(self, node: str, folder: RunFolder) -> Any:
        """Agent of a node, which is started at the first call."""
        if node not in self._agents:
            # Made by the server, the agent outlives every process whose log it sends.
            made: Any = ray.remote(NodeAgent)
            self._agents[node] = made.options(
                num_cpus=0, max_restarts=-1, max_concurrency=8, scheduling_strategy=on_node(node)
            ).remote(folder)
        return self._agents[node]

    def agents(self) -> dict[str, Any]:
        return self._agents

    def pack(self, path: str) -> Packed:
        """Files of a policy, without a learner's state; CheckpointError without a folder."""
        folder = Path(path)
        if not folder.is_dir():
            raise CheckpointError(f"{path}: no such folder on the driver's node")
        changed = folder.stat().st_mtime_ns
        if path not in self._packed or self._packed[path][0] != changed:
            for gone in [name for name in self._packed if not Path(name).is_dir()]:
                del self._packed[gone]
            files = _read(folder, state=False)
            self._packed[path] = changed, Packed(digest=_digest(files), files=ray.put(files))
        return self._packed[path][1]

    def checkpoint(self, path: str) -> Files | None:
        return _read(Path(path), state=True) if Path(path).is_dir() else None

    def digests(self) -> set[str]:
        """Digests of the policies that the driver's node still has."""
        return {packed.digest for path, (_, packed) in self._packed.items() if Path(path).is_dir()}

    def receive(self, path: str, files: Files) -> None:
        receive_checkpoint(Path(path), {name: data.tobytes() for name, data in files.items()})

    def append(self, node: str, name: str, begin: int, data: bytes) -> None:
        """Add to a log or output what a node's has from the byte ``begin`` on."""
        # An agent that was restarted may send again what the log has already.
        known = self._received.get((node, name), 0)
        if name.endswith(".out"):
            # A node begins an output anew when it is full; here it is limited by itself.
            known = known if begin else 0
            if name not in self._outputs:
                self._outputs[name] = Output(self._logs / name)
            self._outputs[name].write(data[max(0, known - begin) :])
        else:
            with (self._logs / name).open("ab") as file:
                file.write(data[max(0, known - begin) :])
        self._received[node, name] = max(known, begin + len(data))

    def received(self, node: str) -> dict[str, int]:
        """Bytes here of each log of a node."""
        return {name: size for (of, name), size in self._received.items() if of == node}


class NodeAgent:
    """Keeps a node's folder: brings policies there, and the logs of its processes home."""

    def __init__(self, folder: RunFolder) -> None:
        self._server = _server()
        self._folder, self._node = folder.path, this_node()
        self._policies = self._folder / "policies"
        self._policies.mkdir(parents=True, exist_ok=True)
        self._fetcher = ThreadPoolExecutor(max_workers=1)
        self._under_way: dict[str, Future[str]] = {}
        self._asking, self._sending = threading.Lock(), threading.Lock()
        self._sent: dict[str, int] = ray.get(self._server.received.remote(self._node))
        self._ends = threading.Event()
        threading.Thread(target=self._send_on, daemon=True).start()

    def fetch(self, path: str) -> str:
        """See ``RunFolder.fetched``."""
        # Engines that ask at once share one answer: a policy travels once to each node.
        with self._asking:
            fetches = self._under_way.items()
            self._under_way = {asked: each for asked, each in fetches if not each.done()}
            if path not in self._under_way:
                self._under_way[path] = self._fetcher.submit(self._fetch, path)
            fetch = self._under_way[path]
        return fetch.result()

    def _fetch(self, path: str) -> str:
        packed: Packed = ray.get(self._server.pack.remote(path))
        place = self._policies / packed.digest
        if not place.exists():
            kept = ray.get(self._server.digests.remote())
            for policy in self._policies.iterdir():
                if policy.name not in kept and not policy.name.startswith("."):
                    shutil.rmtree(policy)
            files: Files = ray.get(packed.files)
            if _digest(files) != packed.digest:
                raise RunError(f"{path} arrived damaged at {platform.node()}")
            try:
                with atomic_path(place) as work:
                    for name, data in files.items():
                        (work / name).parent.mkdir(parents=True, exist_ok=True)
                        (work / name).write_bytes(data.data)
            except OSError as error:
                raise RunError(
                    f"{platform.node()} cannot keep {path} in {place.parent}: "
                    f"{error.strerror}; free some there, or set RLFORGE_CACHE"
                ) from error
        return str(place)

    def send_logs(self) -> None:
        with self._sending:
            logs = self._folder / "logs"
            for file in sorted([*logs.glob("*.log"), *logs.glob("*.out")]):
                with file.open("rb") as stream:
                    sent, size = self._sent.get(file.name, 0), os.fstat(stream.fileno()).st_size
                    # ``Output`` has begun the file anew.
                    begin = stream.seek(sent if sent <= size else 0)
                    while data := stream.read(_MOST_LOG_BYTES):
                        ray.get(self._server.append.remote(self._node, file.name, begin, data))
                        begin = self._sent[file.name] = begin + len(data)

    def _send_on(self) -> None:
        while not self._ends.wait(LOGS_EVERY_S):
            # The disk of the driver's node may be full: what was not sent is sent next time.
            with contextlib.suppress(OSError, ray.exceptions.RayError):
                self.send_logs()

    def end(self) -> None:
        """Send the rest of the logs and delete the folder."""
        self._ends.set()
        self.send_logs()
        shutil.rmtree(self._folder, ignore_errors=True)
        # The folder above is not empty while it has one of another node.
        with contextlib.suppress(OSError):
            self._folder.parent.rmdir()


def _read(folder: Path, *, state: bool) -> Files:
    """Files of a folder; with ``state`` also what only a learner that resumes reads."""
    paths = sorted(files_below(folder))
    files = {file.relative_to(folder).as_posix(): file for file in paths}
    return {
        name: np.fromfile(file, dtype=np.uint8)
        for name, file in files.items()
        if state or not name.startswith(f"{STATE}/")
    }


def _digest(files: Files) -> str:
    whole = hashlib.sha256()
    for name, data in sorted(files.items()):
        whole.update(f"{name}\0{data.size}\0".encode())
        whole.update(data.data)
    return whole.hexdigest()
