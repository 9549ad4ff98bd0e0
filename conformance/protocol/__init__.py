"""Define the line protocol between the suite and a program in any language. The suite and the program exchange JSON
lines over the program's standard input and output.

    wire.py     converts values to JSON with numbers as bits, and back
    client.py   runs the program: handshake, calls, time limit, restarts, stray output

This package does not depend on the operations or the expected results. docs/protocol.md is for authors of adapters.

May import: this folder.
"""

from __future__ import annotations

from islices.conformance.protocol.client import (
    PROTOCOL,
    AdapterError,
    Answer,
    CallError,
    Client,
    Hello,
    Ok,
    Refused,
    StartError,
    Unsupported,
)
from islices.conformance.protocol.wire import WireError

__all__ = [
    "PROTOCOL",
    "AdapterError",
    "Answer",
    "CallError",
    "Client",
    "Hello",
    "Ok",
    "Refused",
    "StartError",
    "Unsupported",
    "WireError",
]
