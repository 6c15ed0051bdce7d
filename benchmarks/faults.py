"""What is served after each of 22 injected faults, over HTTP: it must be the version before.

    python benchmarks/faults.py

Thirteen adapters that must not be served, engine processes killed, a disk that is really full (a
small file system of its own: run as root), the service killed with SIGKILL in each phase of a
deployment, and files damaged before a restart. After each fault the service, started again where
it is dead, is asked for greedy answers; they must come from the version that was served before and
be those of its adapter alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import record
from safetensors.torch import load_file, save_file
from served import OVERRIDES, RANDOM_ADAPTERS, ServiceProcess, expected, make_adapter, prompts

from rlforge.config.compose import compose
from rlforge.continuous.config.serving import ServingConfig
from rlforge.continuous.serving.records import Deployment
from rlforge.continuous.serving.server import answer_requests, assembled, listen, url_of
from rlforge.continuous.serving.tokens import make_tokens
from rlforge.continuous.serving.validation import copy_files, fingerprint
from rlforge.engines.registry import make_engine

PHASES = ("validating", "checkpointing", "swapping", "verifying")
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


class Faults:
    """Injects faults one by one and writes down what was served afterwards."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.good = make_adapter(folder / "adapters", 1)
        self.next = make_adapter(folder / "adapters", 2)
        self.prompts = prompts(8)
        self.answers = [text for text, _ in expected([self.good], self.prompts)[0]]
        self.rows: list[dict[str, Any]] = []
        self.services: list[ServiceProcess] = []

    def check(self, fault: str, service: ServiceProcess, version: str, said: str) -> None:
        """Ask, and note whether ``version`` answers as the good adapter does."""
        answers = [service.ask(prompt) for prompt in self.prompts]
        right = [
            (status, uid, text) == (200, version, answer)
            for (status, uid, text), answer in zip(answers, self.answers, strict=True)
        ]
        said = re.sub(r"/\S*/", "", said)  # folders are those of the day
        self.rows.append({"fault": fault, "still_serving": all(right), "said": said})
        print(f"{'ok  ' if all(right) else 'FAIL'} {fault}: {said[:110]}", flush=True)
        if not all(right):
            print(answers, flush=True)

    # ------------------------------------------------------------ adapters

    def spoiled(self, name: str, spoil: Callable[[Path], None]) -> Path:
        """The good adapter without its manifest, changed."""
        path = self.folder / "spoiled" / name
        path.mkdir(parents=True)
        copy_files(self.next, fingerprint(self.next), path)
        spoil(path)
        return path

    def bad_adapters(self) -> dict[str, Path]:
        def weights(change: Callable[[dict[str, torch.Tensor]], None]) -> Callable[[Path], None]:
            def spoil(path: Path) -> None:
                held = load_file(path / WEIGHTS)
                change(held)
                save_file(held, path / WEIGHTS)

            return spoil

        def fill(value: float) -> Callable[[Path], None]:
            def spoil(held: dict[str, torch.Tensor]) -> None:
                held[min(held)].fill_(value)

            return weights(spoil)

        def layer(held: dict[str, torch.Tensor]) -> None:
            held[min(held).replace(".0.", ".9.")] = held[min(held)].clone()

        def widen(held: dict[str, torch.Tensor]) -> None:
            held[min(held)] = torch.zeros(32, 7)

        def lack(held: dict[str, torch.Tensor]) -> None:
            del held[min(held)]

        def described(key: str, value: Any) -> Callable[[Path], None]:
            def spoil(path: Path) -> None:
                config = json.loads((path / CONFIG).read_text())
                (path / CONFIG).write_text(json.dumps(config | {key: value}))

            return spoil

        def cut(path: Path) -> None:
            (path / WEIGHTS).write_bytes((path / WEIGHTS).read_bytes()[:-1000])

        whole_cut, altered = (make_adapter(self.folder / n, 3) for n in ("cut", "altered"))
        cut(whole_cut)
        content = bytearray((altered / WEIGHTS).read_bytes())
        content[-1] ^= 1
        (altered / WEIGHTS).write_bytes(content)
        return {
            "NaN weights": self.spoiled("nan", fill(float("nan"))),
            "infinite weights": self.spoiled("inf", fill(float("inf"))),
            "truncated checkpoint": whole_cut,
            "truncated adapter without a manifest": self.spoiled("plain", cut),
            "one altered bit": altered,
            "no weights": self.spoiled("empty", lambda path: (path / WEIGHTS).unlink()),
            "unreadable configuration": self.spoiled(
                "garbled", lambda path: (path / CONFIG).write_text("{") and None
            ),
            "adapter for another base model": self.spoiled(
                "base", described("base_model_name_or_path", "Qwen/Qwen3-0.6B")
            ),
            "adapter of another kind": self.spoiled("kind", described("peft_type", "IA3")),
            "weights for layers that do not exist": self.spoiled("layer", weights(layer)),
            "weights of another shape": self.spoiled("shape", weights(widen)),
            "a weight missing": self.spoiled("lacking", weights(lack)),
            "rank beyond the service's": make_adapter(self.folder / "rank", 4, rank=64),
        }

    # ------------------------------------------------------------ rlforge serve

    def against_rlforge_serve(self) -> None:
        """Adapters, engines, disk: one service that never stops."""
        state = self.folder / "disk" / "state"
        state.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(state)], check=True)
        service = ServiceProcess.rlforge_serve(state, *RANDOM_ADAPTERS)
        try:
            service.start()
            assert service.admin("deploy", {"adapter": str(self.good)})["phase"] == "live"
            for fault, path in self.bad_adapters().items():
                ended = service.admin("deploy", {"adapter": str(path)})
                assert ended["phase"] == "rejected", ended
                self.check(fault, service, "deploy-1", ended["reason"])
            self.check("engine killed", service, "deploy-1", _kill_engine(state))
            self.engine_killed_while_deploying(service, state)
            self.full_disk(service, state)
            assert service.stop() == 130
        finally:
            service.end()
            subprocess.run(["umount", "-l", str(state)], check=False)

    def engine_killed_while_deploying(self, service: ServiceProcess, state: Path) -> None:
        """The deployment survives it or is given up; either way a version answers rightly."""
        killer = threading.Timer(0.05, _kill_engine, (state,))
        killer.start()
        ended = service.admin("deploy", {"adapter": str(self.next)})
        killer.join()
        if ended["phase"] == "live":
            assert service.admin("rollback", {})["uid"] == "deploy-1"
        self.check(
            "engine killed while deploying",
            service,
            "deploy-1",
            f"{ended['phase']} {ended['reason']}",
        )

    def full_disk(self, service: ServiceProcess, state: Path) -> None:
        """The disk is full while the service runs."""
        filler = state / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 4096)
            except OSError as error:
                full = error.strerror
        ended = service.admin("deploy", {"adapter": str(self.next)})
        assert ended["phase"] == "failed", (ended, full)
        self.check("full disk", service, "deploy-1", ended["reason"])
        filler.unlink()
        assert service.admin("deploy", {"adapter": str(self.next)})["phase"] == "live"

    # ------------------------------------------------------------ the process itself

    def against_kill(self) -> None:
        """SIGKILL in each phase; the service that is started next dies in the phase after."""
        state = self.folder / "killed"
        state.mkdir()
        service = self.dying(state, None)
        service.start()
        assert service.admin("deploy", {"adapter": str(self.good)})["phase"] == "live"
        service.stop()
        for phase in PHASES:
            service = self.dying(state, phase)
            service.start()
            try:
                service.admin("deploy", {"adapter": str(self.next)})
            except Exception as error:  # the connection breaks with the process
                said = type(error).__name__
            assert service.wait() == -signal.SIGKILL
            service = self.dying(state, None)
            service.start()
            last = service.admin("deployments")["deployments"][-1]
            assert last["phase"] == "interrupted", last
            assert phase in last["reason"], last
            self.check(f"killed while {phase}", service, "deploy-1", f"{said}; {last['reason']}")
            service.signal(signal.SIGKILL)
        self.damaged(state)

    def damaged(self, state: Path) -> None:
        """A version's file, then the journal, truncated while nothing runs."""
        service = self.dying(state, None)
        service.start()
        new = service.admin("deploy", {"adapter": str(self.next)})
        assert new["phase"] == "live"
        service.signal(signal.SIGKILL)
        file = state / "versions" / new["uid"] / WEIGHTS
        file.write_bytes(file.read_bytes()[:-1])
        service.start()
        said = service.admin("deployments")["deployments"][-1]["reason"]
        self.check("served version truncated", service, "deploy-1", said)
        service.stop()
        journal = state / "state.sqlite"
        journal.write_bytes(journal.read_bytes()[:5000])
        service.start()
        aside = next(state.glob("state.sqlite.damaged-*"))
        self.check("journal truncated", service, "deploy-1", f"set aside as {aside.name}")
        service.stop()

    def dying(self, state: Path, phase: str | None) -> ServiceProcess:
        """The HTTP service over an engine in its own process, which dies in ``phase``."""
        command = [sys.executable, __file__, "--serve", str(state)]
        service = ServiceProcess(state, [*command, *(["--die-in", phase] if phase else [])])
        self.services.append(service)
        return service


def _kill_engine(state: Path) -> str:
    """SIGKILL to the newest engine process that the log names."""
    lines = (state / "logs" / "engine-0.log").read_text().splitlines()
    pid = int([line for line in lines if "started as process" in line][-1].split()[-1])
    os.kill(pid, signal.SIGKILL)
    return f"process {pid} got SIGKILL"


async def serve(state: Path, die_in: str | None) -> None:
    """What ``rlforge serve`` serves, with the engine in this process for a quick start."""
    overrides = [*OVERRIDES, *RANDOM_ADAPTERS]
    config = compose(overrides, root=ServingConfig).config
    assert isinstance(config, ServingConfig)
    engine = make_engine(config, device="cpu", threads=1)

    def die(deployment: Deployment) -> None:
        if deployment.phase == die_in:
            os.kill(os.getpid(), signal.SIGKILL)

    async with assembled(config, state, make_tokens(state), engine, on_phase=die) as (_, app):
        listener = listen("127.0.0.1", 0)
        (state / "service.json").write_text(json.dumps({"url": url_of(listener)}))
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        await answer_requests(app, listener, stop.wait(), drain_s=10)


def main() -> None:
    parser = argparse.ArgumentParser(description="What is served after a fault.")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--die-in", choices=PHASES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.serve is not None:
        asyncio.run(serve(arguments.serve, arguments.die_in))
        return
    started = time.perf_counter()
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    faults = Faults(folder)
    try:
        faults.against_rlforge_serve()
        faults.against_kill()
    finally:
        for service in faults.services:
            service.end()
        shutil.rmtree(folder, ignore_errors=True)
    good = sum(row["still_serving"] for row in faults.rows)
    print(f"previous version still serving: {good} of {len(faults.rows)}")
    record(
        "faults",
        {
            "model": "tiny",
            "still_serving": good,
            "of": len(faults.rows),
            "seconds": round(time.perf_counter() - started, 1),
            "faults": faults.rows,
        },
    )


if __name__ == "__main__":
    main()
