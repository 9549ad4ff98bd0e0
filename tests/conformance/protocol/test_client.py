"""Test the client with faulty programs. The client reports each fault in one line, does not block, and can make the
next call."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from islices.conformance.data import Array
from islices.conformance.protocol import CallError, Client, Ok, Refused, StartError, Unsupported

pytestmark = pytest.mark.outside

HELLO = 'print(json.dumps({"hello": "odd", "version": "1", "protocol": 1}), flush=True)'
#: A program whose behaviour in a call depends on the name of the operation.
ECHO = f"""
import json, os, sys, time
def say(call, **answer):
    print(json.dumps({{"call": call, **answer}}), flush=True)
for text in sys.stdin:
    line = json.loads(text)
    if "hello" in line:
        {HELLO}
        continue
    op, call = line["op"], line["call"]
    if op == "echo":
        say(call, ok=line["args"][0])
    elif op == "unsupported":
        say(call, unsupported="no such thing")
    elif op == "error":
        say(call, error="IndexError", message="indices: got -1")
    elif op == "die":
        sys.exit("Traceback: some error")
    elif op == "kill":
        os.abort()
    elif op == "sleep":
        time.sleep(60)
    elif op == "flood":
        while True:
            print("x" * 1000)
    elif op == "deaf":
        os.close(0); time.sleep(60)
    elif op == "stray":
        print("a greeting"); print("[1, 2]"); print(json.dumps({{"call": 10**9, "ok": None}}))
        sys.stderr.write("a warning\\n"); say(call, ok=True)
    elif op == "both":
        say(call, ok=None, error="ValueError", message="x")
    elif op == "nothing":
        say(call)
    elif op == "no value":
        say(call, ok={{"array": "float32", "shape": [1], "bits": "00"}})
    elif op == "bytes":
        sys.stdout.buffer.write(b"\\xff\\xfe\\n"); sys.stdout.flush(); say(call, ok=None)
    elif op == "deep":
        print('{{"call": %d, "ok": %s1%s}}' % (call, "[" * 100000, "]" * 100000), flush=True)
"""


def command(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with Client(command(ECHO), limit=10.0) as client:
        yield client


def test_answers_of_every_kind(client: Client) -> None:
    assert client.hello.name == "odd"
    assert client.hello.ops is None
    large = Array("float64", (200_000,), [0.1] * 200_000)  # more bytes than a pipe stores
    assert client.call("echo", [large]) == Ok(large)
    assert client.call("echo", [{"a": (1.5, None)}]) == Ok({"a": (1.5, None)})
    assert client.call("unsupported") == Unsupported("no such thing")
    assert client.call("error") == Refused("IndexError", "indices: got -1")


@pytest.mark.parametrize(
    ("op", "says"),
    [
        ("die", "ended with exit code 1 in this call: Traceback: some error"),
        ("kill", "ended by signal"),
        ("both", "its answer holds ok and error; accepted is"),
        ("nothing", "its answer holds nothing; accepted is"),
        ("no value", "its answer is no value: ok.bits: got 1 bytes"),
    ],
)
def test_what_breaks_is_told_and_the_next_call_goes_on(client: Client, op: str, says: str) -> None:
    with pytest.raises(CallError, match=says):
        client.call(op)
    assert client.call("echo", [2.5]) == Ok(2.5)


def test_what_is_late_is_stopped() -> None:
    with Client(command(ECHO), limit=10.0) as client:
        client.limit = 0.7
        for op, says in (
            ("sleep", "no answer in this call within 0.7 s"),
            ("flood", "no answer in this call within 0.7 s; it printed .* other lines, the first 'xxx"),
            ("deep", "no answer in this call within 0.7 s"),
        ):
            started = time.monotonic()
            with pytest.raises(CallError, match=says):
                client.call(op, [Array("float64", (100_000,), [0.0] * 100_000)])
            assert time.monotonic() - started < 5
            client.limit = 10.0
            assert client.call("echo", [True]) == Ok(True)
            client.limit = 0.7
        assert client.restarts == 3


def test_stray_lines_are_kept_and_no_answer() -> None:
    with Client(command(ECHO)) as client:
        assert client.call("stray") == Ok(True)
        assert client.call("bytes") == Ok(None)
        assert client.strays == 4
        assert client.stray == ["a greeting", "[1, 2]", '{"call": 1000000000, "ok": null}']
        assert client.restarts == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["/no/such/program"], "cannot start /no/such/program: No such file"),
        ([str(Path(__file__).parent)], "cannot start .*: Permission denied"),
        (
            command("import sys; sys.exit('ImportError: no kernels')"),
            "exit code 1 before its handshake: ImportError: no",
        ),
        (
            command("print('hello, world')"),
            "exit code 0 before its handshake; it printed 1 other line, the first 'hello",
        ),
        (command("import time; time.sleep(60)"), "no answer to the handshake within 1 s; does it flush"),
        (command("import json; print(json.dumps({'hello': 'x', 'protocol': 2}))"), "speaks protocol 2; accepted is 1"),
        (command("import json; print(json.dumps({'hello': 'x'}))"), "speaks protocol None; accepted is 1"),
        (command("import json; print(json.dumps({'hello': 3, 'protocol': 1}))"), "its hello: got"),
        (command("import json; print(json.dumps({'hello': 'x', 'protocol': 1, 'ops': 'y'}))"), "its hello: got"),
    ],
)
def test_a_bad_command_is_one_line(words: list[str], says: str) -> None:
    with pytest.raises(StartError, match=says) as caught:
        Client(words, limit=1.0 if "sleep" in words[-1] else 10.0)
    assert "\n" not in str(caught.value)
