"""Everything that depends on what a run is, is asked of its kind."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name

import pytest

import rlforge
from rlforge import launch
from rlforge.config.compose import Composed
from rlforge.config.plugins import RUN_KINDS
from rlforge.config.rules import Group
from rlforge.config.schema import HardwareConfig, PolicyConfig, RunConfig
from rlforge.continuous.serving import setup
from rlforge.errors import ConfigError
from rlforge.kinds import RunKind, kind_of
from rlforge.record.recorded import Recorded
from rlforge.specs import ActorSpec

SOURCE = Path(rlforge.__file__).parent


@dataclasses.dataclass
class NapConfig(PolicyConfig):
    """A kind of run of another package."""

    kind = "tests.test_kinds:NAP"
    primary = "config"
    command = "nap"
    about = "a nap"


class Nap(RunKind[NapConfig]):
    root = NapConfig

    def check(self, composed: Composed[NapConfig], *, keys: bool = True) -> None:
        """Nothing can be wrong."""

    def nodes(self, config: NapConfig, hardware: HardwareConfig) -> tuple[ActorSpec, ...]:
        return (ActorSpec(name="bed", actor=None),)


NAP = Nap()


def configurations() -> set[str]:
    """Names of the classes of configurations, of whatever depth."""

    def below(cls: type) -> Iterator[str]:
        yield cls.__name__
        for each in cls.__subclasses__():
            yield from below(each)

    return {*below(Group)}


@pytest.mark.parametrize("name", RUN_KINDS.names())
def test_a_configuration_finds_its_kind_and_what_shows_it(name: str) -> None:
    kind = RUN_KINDS.find(name)
    assert kind.root.kind == name
    assert kind_of(kind.root()) is kind
    shown = [kind.report, kind.results, *filter(None, [kind.progress])]
    assert all(callable(resolve_name(each)) for each in shown)


def test_the_kinds_that_can_be_verified_say_what_reads_their_records() -> None:
    readers = {name: RUN_KINDS.find(name).recorded for name in RUN_KINDS.names()}
    assert {name for name, reader in readers.items() if reader} == {"games", "continuous"}
    assert all(issubclass(resolve_name(each), Recorded) for each in filter(None, readers.values()))


def test_another_package_can_add_a_kind() -> None:
    found = kind_of(NapConfig())
    assert found is NAP
    assert [node.name for node in found.nodes(NapConfig(), HardwareConfig())] == ["bed"]
    with pytest.raises(ConfigError, match="--more: a nap cannot be made longer"):
        found.longer(NapConfig(), 3)


def test_values_of_another_packages_kind_are_checked_as_all_others() -> None:
    config = NapConfig(seed=-5, hardware=HardwareConfig(threads=-3))
    with pytest.raises(
        ConfigError, match=r"seed=-5 .*must be 0 or more\n(.*\n)?hardware.threads=-3"
    ):
        launch.check(Composed(config=config))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("kind=games", "is a run that plays games: start it with rlforge train"),
        ("kind=gmaes", "kind of run 'gmaes'"),
        ("kind=games,sft", "one kind of run"),
        ("kind=null", "one kind of run"),
    ],
)
def test_a_service_is_of_no_other_kind(line: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        setup.compose_service([line, "model=tiny"])


def test_a_configuration_takes_no_further_fields_and_loses_none() -> None:
    config = RunConfig()
    with pytest.raises(TypeError, match="does not change"):
        config.learner.total_update = 5  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="does not change"):
        del config.seed


def test_a_value_without_the_methods_of_a_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"is not a rlforge.kinds.RunKind \(it has no root"):
        RUN_KINDS.find("rlforge.errors:ConfigError")


def test_no_module_outside_of_config_asks_what_a_configuration_is() -> None:
    known, asking = configurations(), []
    assert RunConfig.__name__ in known
    for path in SOURCE.rglob("*.py"):
        if path.is_relative_to(SOURCE / "config"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
                names = {part.id for part in ast.walk(node.args[1]) if isinstance(part, ast.Name)}
                if names & known:
                    asking.append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert asking == []
