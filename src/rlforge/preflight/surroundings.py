"""Conditions of a start on this machine: folders, limits, torch, proxies, clock, locale.

``rlforge doctor`` lists the ``findings``. Commands that start something call ``require`` before
they make anything.
"""

from __future__ import annotations

import datetime
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from rlforge.config.per_policy import of_policy, policy_names
from rlforge.config.schema import PolicyConfig
from rlforge.errors import ConfigError, counted, raise_all
from rlforge.kinds import kind_of
from rlforge.models.catalog import locate
from rlforge.models.files import cache_dir
from rlforge.models.load import local_copy, unfetched
from rlforge.models.made import made_model
from rlforge.preflight.allowances import allowances
from rlforge.preflight.finding import Finding, State
from rlforge.preflight.fit import in_gib
from rlforge.preflight.memory.plan import PROCESS_BYTES
from rlforge.system.cgroups import core_limit, memory_limit
from rlforge.system.files import readable_size
from rlforge.system.folders import (
    LONGEST_FOR_RAY,
    lacks_token,
    nearest,
    obstacle,
    owner,
    ray_base,
    token_folder,
)
from rlforge.system.hardware import detect, ram
from rlforge.system.network import ProxyError, check_proxies, silent_proxies
from rlforge.types import value

#: Bytes of a learner or an engine on a CPU on top of its process, with the smallest model. The
#: second number is with board games, whose texts and samples other processes hold as well.
BATCH_BYTES = (130 * 2**20, 370 * 2**20)

#: Bytes and files of a run, of the smallest kind, with its first update, besides checkpoints.
RECORDS_BYTES, RECORDS_FILES = 2**20, 60

#: Numbers of four bytes that a checkpoint and its state have of each one that is trained.
TRAINED_NUMBERS = {"lora": 4, "full": 3}

#: Bytes of free disk below which a folder is noted.
LITTLE = 256 * 2**20

#: Bytes of shared memory below which Ray's object store is on disk.
LEAST_SHARED = 2**30

SHARED = Path("/dev/shm")


@value
class Place:
    """A folder that a start may write to.

    Attributes:
        variable: Name of the one that moves it, of the environment or of the configuration.
        needed: A run cannot do without it.
        size, parts: Bytes that the start writes there at least, and of what.
    """

    what: str
    path: Path
    variable: str
    needed: bool = True
    size: int = RECORDS_BYTES
    parts: str = ""


def require(config: PolicyConfig, run_dir: Path | None = None) -> list[str]:
    """Notes on what is missing and can be done without; ConfigError, a line each, for all else.

    run_dir: folder of the run or of the state, where it is known already.
    """
    found = [*findings(config, run_dir)]
    raise_all(f"{one.what}: {one.detail}" for one in found if one.state == "problem")
    return [f"{one.what}: {one.detail}" for one in found if one.state == "note"]


def findings(config: PolicyConfig, run_dir: Path | None = None) -> Iterator[Finding]:
    """Every condition of this machine, in order."""
    for place in places(config, run_dir):
        yield _of_place(place)
    yield _temporary()
    if config.hardware.ray_address is None:
        yield from _of_ray()
        yield _memory(config)
        yield _cores()
        yield _torch(config)
    yield from allowances(config, max(RECORDS_BYTES, _first_checkpoint(config) // 2))
    yield _proxies()
    yield _clock()
    yield _locale()


def places(config: PolicyConfig, run_dir: Path | None = None) -> Iterator[Place]:
    """The folders that a start of ``config`` may write to."""
    made = made_model(config.model.kind)
    yield Place(
        what="cache",
        path=cache_dir(),
        variable="RLFORGE_CACHE",
        # A model that is there is only read, as from a cache that others keep.
        needed=made is not None and local_copy(config.model) is None,
    )
    if made is None:
        from huggingface_hub import constants

        yield Place(
            what="hub's cache",
            path=Path(constants.HF_HUB_CACHE),
            variable="HF_HOME",
            needed=unfetched(config.model),
            # Weights have two bytes or more for each number.
            size=2 * _model_size(config),
            parts="weights of the model",
        )
    if kind_of(config).learns:
        path = run_dir or Path(config.run_dir or Path("runs", config.name))
        first = _first_checkpoint(config)
        yield Place(
            what="run folder",
            path=path,
            variable="run_dir",
            size=RECORDS_BYTES + first,
            parts=f"records, and {readable_size(first)} for a first checkpoint" if first else "",
        )
    elif run_dir is not None:
        yield Place(what="state folder", path=run_dir, variable="serve.state_dir")


def _of_place(place: Place) -> Finding:
    if place.needed and (shortage := _shortage(place)) is not None:
        detail = f"{place.path}: {shortage}; make room, or set {place.variable} to another disk"
        return Finding(what=place.what, state="problem", detail=detail)
    hindrance = obstacle(place.path)
    if hindrance is not None:
        detail = f"{place.path}: {hindrance}; set {place.variable} to a folder of yours"
        return Finding(what=place.what, state="problem" if place.needed else "note", detail=detail)
    there, free = nearest(place.path), _free(place.path)
    detail = (
        f"{place.path}: can be written, {readable_size(free)} free, of {owner(there)} "
        f"({place.variable} moves it)"
    )
    return Finding(what=place.what, state="note" if free < LITTLE else "ok", detail=detail)


def _shortage(place: Place) -> str | None:
    """Words for what a file system lacks for the start; None: nothing that is known."""
    there = nearest(place.path)
    if not there.is_dir():
        return None
    free, room = _free(there), os.statvfs(there)
    # File systems without sizes, such as /proc, say 0.
    if room.f_blocks and free < place.size:
        parts = f" ({place.parts})" if place.parts else ""
        needs = f"the start needs {readable_size(place.size)} at least{parts}"
        return f"{readable_size(free)} free, and {needs}"
    # So do those that have no fixed number of files.
    if room.f_files and room.f_favail < RECORDS_FILES:
        files = counted(room.f_favail, "further file")
        return f"room for {files}, and the start makes {RECORDS_FILES} or more"
    return None


def _free(path: Path) -> int:
    return shutil.disk_usage(nearest(path)).free


def _model_size(config: PolicyConfig) -> int:
    """Numbers in the model; 0 where its shape is not known."""
    shape = locate(config.model).shape
    return 0 if shape is None else shape.parameters


def _first_checkpoint(config: PolicyConfig) -> int:
    """Bytes of the first checkpoints with their state, at least; 0 where that is not known."""
    shape = locate(config.model).shape
    if shape is None or not kind_of(config).learns:
        return 0
    total = 0
    for name in policy_names(config):
        train = of_policy(config, name).learner.train
        whole = train == "full"
        trained = shape.parameters if whole else shape.adapter_parameters(config.model.lora)
        total += 4 * TRAINED_NUMBERS[train] * trained
    return total


def _temporary() -> Finding:
    what, asked = "temporary folder", os.environ.get("TMPDIR")
    try:
        used = tempfile.gettempdir()
    except OSError:
        detail = f"neither TMPDIR={asked or ''} nor /tmp can be written; set TMPDIR"
        return Finding(what=what, state="problem", detail=detail)
    if asked and os.path.abspath(asked) != used:
        why = "cannot be written" if os.path.isdir(asked) else "does not exist"
        detail = f"TMPDIR={asked} {why}; {used} is used instead"
        return Finding(what=what, state="note", detail=detail)
    detail = f"{used}: can be written, {readable_size(_free(Path(used)))} free (TMPDIR moves it)"
    return Finding(what=what, state="ok", detail=detail)


def _of_ray() -> Iterator[Finding]:
    try:
        base, why = ray_base()
    except ConfigError as error:
        yield Finding(what="Ray's folder", state="problem", detail=str(error))
        base = None
    ours = [] if base is None else [Place(what="Ray's folder", path=base, variable="RAY_TMPDIR")]
    if short := [place for place in ours if _shortage(place) is not None]:
        yield from map(_of_place, short)
    elif base is not None:
        size = len(os.fsencode(base))
        detail = why or (
            f"{base / 'ray'}: can be written, {readable_size(_free(base))} free, of "
            f"{owner(nearest(base / 'ray'))}; {size} of at most {LONGEST_FOR_RAY} characters for "
            "its sockets (RAY_TMPDIR moves it)"
        )
        yield Finding(what="Ray's folder", state="note" if why else "ok", detail=detail)
    home = f"{token_folder()} for Ray's token"
    if lacks_token():
        detail = f"{home}: {obstacle(token_folder())}; the token is in the run's environment alone"
        yield Finding(what="home", state="note", detail=detail)
    else:
        yield Finding(what="home", state="ok", detail=f"{home} (HOME moves it)")
    shared = shutil.disk_usage(SHARED).total if SHARED.is_dir() else 0
    detail = f"{readable_size(shared)} of shared memory"
    if shared < LEAST_SHARED:
        detail += "; Ray's object store goes to its folder on disk (containers: --shm-size=2g)"
    state: State = "note" if shared < LEAST_SHARED else "ok"
    yield Finding(what=str(SHARED), state=state, detail=detail)


def _memory(config: PolicyConfig) -> Finding:
    """Judge the memory by what the processes of a run take with the smallest model."""
    kind = kind_of(config)
    engines = config.engine.num_engines if kind.generates else 0
    processes = engines + (config.learner.num_learners if kind.learns else 0)
    least, usual = (
        kind.host_bytes + processes * (PROCESS_BYTES["cpu"] + each) for each in BATCH_BYTES
    )
    there, limit = ram(), memory_limit()
    capped = limit is not None and limit.number <= there
    where = f", the limit of {limit.group}" if limit is not None and capped else ""
    detail = f"{in_gib(there)}{where}"
    if there < usual:
        detail += f": with the smallest model it takes {in_gib(least)} to {in_gib(usual)}"
    if there < least:
        return Finding(what="memory limit", state="problem", detail=f"{detail}; ask for more")
    return Finding(what="memory limit", state="note" if there < usual else "ok", detail=detail)


def _cores() -> Finding:
    quota, cores = core_limit(), len(os.sched_getaffinity(0))
    if quota is None or quota.number >= cores:
        return Finding(what="cores", state="ok", detail=f"{detect().cpus}")
    detail = (
        f"the time of {quota.number:g} of {cores}, the quota of {quota.group}: "
        f"{detect().cpus} counts"
    )
    return Finding(what="cores", state="note" if quota.number < 1 else "ok", detail=detail)


def _torch(config: PolicyConfig) -> Finding:
    build, gpus = version("torch"), detect().gpus
    if config.hardware.device != "cpu" and gpus and build.endswith("+cpu"):
        detail = (
            f"{build} is built for CPUs and cannot use {counted(gpus, 'GPU')} of this machine; "
            "install a CUDA build of torch, or set hardware=cpu"
        )
        return Finding(what="torch", state="problem", detail=detail)
    return Finding(what="torch", state="ok", detail=build)


def _proxies() -> Finding:
    # A run that needs the hub, an API or a service ends, or goes without, by its own message.
    try:
        check_proxies()
    except ProxyError as error:
        return Finding(what="proxies", state="note", detail=str(error))
    if silent := silent_proxies():
        detail = f"nothing answers at {', '.join(silent)}: mend the variable, or unset it"
        return Finding(what="proxies", state="note", detail=detail)
    return Finding(what="proxies", state="ok", detail="none, or all of them answer")


def _clock() -> Finding:
    # No file of an installation is from the future, but its time may be a fixed one of long ago.
    installed, now = Path(__file__).stat().st_mtime, time.time()
    shown = datetime.datetime.fromtimestamp(now).isoformat(" ", "seconds")
    if now < installed - datetime.timedelta(days=1).total_seconds():
        detail = (
            f"{shown}, before rlforge was installed: certificates count as invalid, and latest is "
            "not the newest run; set the clock"
        )
        return Finding(what="clock", state="note", detail=detail)
    return Finding(what="clock", state="ok", detail=shown)


def _locale() -> Finding:
    names = sys.getfilesystemencoding()
    if names.lower() not in ("utf-8", "utf8"):
        detail = f"file names are in {names}, and not all can be written; set LC_ALL=C.UTF-8"
        return Finding(what="locale", state="note", detail=detail)
    return Finding(what="locale", state="ok", detail=f"file names in {names}")
