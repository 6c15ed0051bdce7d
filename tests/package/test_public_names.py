"""What ``rlforge.__all__`` lists is documented, typed, shown by example and stable."""

from __future__ import annotations

import doctest
import inspect
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import rlforge

NAMES = runpy.run_path(str(Path(__file__).with_name("public_names.py")))
CHANGELOG = NAMES["CHANGELOG"].read_text()
WITH_RUN = ("Policy", "Run", "load_run", "resume", "sft", "train")  # tests/test_api.py runs theirs


def test_public_names_have_a_docstring_and_an_example():
    for name in rlforge.__all__:
        summary, _, example = NAMES["docstring"](name).partition("Example:")
        assert summary.strip(), name
        assert ">>> " in example, name
        assert ("+SKIP" in example) == (name in WITH_RUN), name


def test_the_examples_of_public_names_run():
    for name in sorted(set(rlforge.__all__) - set(WITH_RUN)):
        module = NAMES["home"](name)
        test = doctest.DocTestParser().get_doctest(
            NAMES["docstring"](name), dict(vars(module)), name, module.__file__, 0
        )
        assert test.examples, name
        result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test)
        assert result.failed == 0, name


def test_public_names_have_types():
    for name in rlforge.__all__:
        found, home = getattr(rlforge, name), NAMES["home"](name)
        members = list(vars(found).values()) if inspect.isclass(found) else [found]
        for member in members:
            function = getattr(member, "fget", None) or getattr(member, "__func__", member)
            ours = inspect.isfunction(function) and function.__module__.startswith("rlforge.")
            if not ours or function.__code__.co_filename != home.__file__:
                continue  # dataclass and Protocol add methods
            shown = inspect.signature(function)
            assert shown.return_annotation is not shown.empty, function
            for parameter in list(shown.parameters.values())[inspect.isclass(found) :]:
                assert parameter.annotation is not parameter.empty, (function, parameter)


def test_public_names_are_as_recorded_or_in_the_changelog():
    missing = NAMES["unnamed"](NAMES["RECORDED"].read_text(), NAMES["render"](), CHANGELOG)
    assert missing == [], (
        f"public names changed: {', '.join(missing)}. Name each in backticks in the section "
        "Unreleased of CHANGELOG.md, then run `python tests/package/public_names.py`"
    )


RECORD = """class Grpo(PolicyGradient)
    loss(self, inputs: LossInputs) -> LossOutput
class Old
    x: int
train(*overrides: str) -> Run
"""
NOW = """class Grpo(PolicyGradient)
    loss(self, inputs: LossInputs, scale: float) -> LossOutput
class New
    x: int
train(*overrides: str) -> Run
"""


def test_changes_of_public_names_are_found_and_must_be_named_in_the_unreleased_section():
    assert NAMES["changed"](RECORD, NOW) == ["Grpo", "New", "Old"]
    assert NAMES["changed"](NOW, NOW) == []
    log = "# Changelog\n\n## [Unreleased]\n\n- `Grpo` and `New`.\n\n## [0.1.0]\n\n- `Old`.\n"
    assert NAMES["unnamed"](RECORD, NOW, log) == ["Old"]


def test_the_record_is_written_only_with_a_changelog(monkeypatch, tmp_path):
    record, log = tmp_path / "names.txt", tmp_path / "CHANGELOG.md"
    record.write_text(NAMES["render"]().replace("class Run\n", "class Run(Old)\n"))
    main = NAMES["main"]
    monkeypatch.setitem(main.__globals__, "RECORDED", record)
    monkeypatch.setitem(main.__globals__, "CHANGELOG", log)
    log.write_text("## [Unreleased]\n")
    with pytest.raises(SystemExit, match="does not name: Run"):
        main()
    log.write_text("## [Unreleased]\n\n- `Run` has no base.\n")
    main()
    assert record.read_text() == NAMES["render"]()


def test_public_names_are_imported_when_they_are_used():
    heavy = {"torch", "ray", "pandas", "transformers", "hydra", "pyarrow"}
    code = f"import sys, rlforge; print(sorted({heavy} & set(sys.modules)), rlforge.__version__)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == f"[] {rlforge.__version__}"


def test_an_unknown_public_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'rlforge' has no attribute 'nosuch'"):
        _ = rlforge.nosuch
    assert set(rlforge.__all__) <= set(dir(rlforge))
