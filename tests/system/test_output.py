"""Output that nobody reads does not end what writes it."""

import contextlib
import os
import re
import subprocess
import sys

import pytest

from rlforge.system.output import KEPT_BYTES, Output, kept, lossy

CODE = """
import sys
from rlforge.system.output import lossy
with lossy("stdout", "stderr"):
    for number in range(20_000):
        print("line", number)
        print("line", number, file=sys.stderr)
print("ended", file=open(sys.argv[1], "w"))
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("to", ["a reader that leaves", "a full disk", "a closed terminal"])
def test_writing_goes_on_when_nobody_reads(tmp_path, monkeypatch, to, unbuffered):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    if to == "a full disk":
        target = os.open("/dev/full", os.O_WRONLY)
    elif to == "a closed terminal":
        other, target = os.openpty()
        os.close(other)
    else:
        other, target = os.pipe()
        os.close(other)
    command = [sys.executable, "-c", CODE, str(tmp_path / "end")]
    done = subprocess.run(command, stdout=target, stderr=target, timeout=60)
    os.close(target)
    assert done.returncode == 0
    assert (tmp_path / "end").read_text() == "ended\n"


def test_what_can_be_written_is_written_in_order_and_streams_come_back():
    code = (
        "import sys; from rlforge.system.output import lossy\n"
        "print('grüße')\n"
        "with lossy('stdout'): print('two')\n"
        "print('three')"
    )
    environment = os.environ | {"PYTHONIOENCODING": "latin-1"}
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment)
    assert done.stdout.decode("latin-1") == "grüße\ntwo\nthree\n"


def test_a_stream_that_is_no_file_stays(capsys):
    before = sys.stdout
    with lossy("stdout", "stderr"):
        assert sys.stdout is before
        print("seen")
    assert capsys.readouterr().out == "seen\n"


def test_a_file_of_output_is_limited_and_has_the_newest_lines(tmp_path):
    path = tmp_path / "state.out"
    size, lines = 1000, 5 * KEPT_BYTES // 2000
    with contextlib.redirect_stdout(Output(path).text()):
        for number in range(lines):
            print(f"{number:{size - 1}}")
    first, *after = path.read_text().splitlines()
    assert first == "[what was printed before is in state.out.1, older lines are gone]"
    before = (tmp_path / "state.out.1").read_text().splitlines()[1:]
    newest = [int(line) for line in [*before, *after]]
    assert newest == list(range(newest[0], lines))
    assert len(newest) * size >= KEPT_BYTES
    assert all(file.stat().st_size <= KEPT_BYTES for file in tmp_path.iterdir())
    assert len(list(tmp_path.iterdir())) == 2


def test_one_text_larger_than_a_file_is_cut_with_a_line_that_says_so(tmp_path):
    path = tmp_path / "state.out"
    with contextlib.redirect_stdout(Output(path).text()):
        print("x" * 3 * KEPT_BYTES, "the end")
    first, text = path.read_text().splitlines()
    assert re.fullmatch(r"\[\d+ bytes are cut here\]", first)
    assert text.endswith("the end")
    assert len(text) < KEPT_BYTES


def test_output_that_the_disk_does_not_take_is_counted(tmp_path):
    """A child with a limit on the size of files stands for the full disk."""
    code = """
import resource, signal, sys
from pathlib import Path
from rlforge.system.output import keep
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
keep(Path("state.out"))
print("before")
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
print("lost")
print("lost", file=sys.stderr)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print("after")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert (tmp_path / "state.out").read_text() == (
        "before\n[10 bytes are lost: the disk was full]\nafter\n"
    )


def test_native_code_and_children_print_to_the_file_which_stays_limited(tmp_path):
    code = """
import os, subprocess, sys
from pathlib import Path
from rlforge.system.output import KEPT_BYTES, keep
output = keep(Path("state.out"))
os.write(2, b"native\\n")
subprocess.run(["echo", "a child"], check=True)
subprocess.run(["echo", "a given stream"], stdout=sys.stdout, check=True)
os.write(1, bytes(KEPT_BYTES))
output.look()
os.write(2, b"native again\\n")
subprocess.run(["echo", "a child again"], check=True)
print("unterminated", end="", flush=True)
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    first = (tmp_path / "state.out.1").read_bytes()
    assert first.startswith(b"native\na child\na given stream\n")
    _, *last = (tmp_path / "state.out").read_text().splitlines()
    assert last == ["native again", "a child again", "unterminated"]


COMMAND = """
import sys
from pathlib import Path
from rlforge.system.output import kept, lossy
with lossy("stderr"):
    screen = sys.stderr
    with kept(Path("run.out")):
        print("of an observer")
        print("of an observer, too", file=sys.stderr)
        print("of the display", file=screen)
    print("the result")
"""


def test_what_a_command_prints_itself_stays_on_the_screen(tmp_path):
    command = [sys.executable, "-c", COMMAND]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("the result\n", "of the display\n")
    assert (tmp_path / "run.out").read_text() == "of an observer\nof an observer, too\n"


def test_streams_of_a_program_that_is_no_command_stay(tmp_path, capsys):
    with kept(tmp_path / "run.out"):
        print("in a notebook")
    assert capsys.readouterr().out == "in a notebook\n"
    assert not (tmp_path / "run.out").exists()
