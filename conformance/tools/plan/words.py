"""Quantities as people write and read them: 10Gbit, 30us, 4.5 MB."""

from __future__ import annotations

import argparse
import math
import re

__all__ = ["bandwidth", "count", "exponent", "latency", "of_bytes", "of_seconds", "ranks", "seed", "three_figures"]

PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
#: Both signs that keyboards have for micro.
SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "\u00b5s": 1e-6, "\u03bcs": 1e-6, "ns": 1e-9}
#: The most ranks that are looked at.
MOST = 1 << 20
#: The largest whole number.
LARGEST = 2**63 - 1
#: The least bandwidth and the longest latency: what is slower is a slip, and would end in infinite times.
SLOWEST, LATEST = 1.0, 3600.0


# ---------------------------------------------------------------------- read
def count(text: str) -> int:
    """ "1e10", "1_000_000", "1,000,000": a whole number of at least 1."""
    return _whole(text, 1)


def seed(text: str) -> int:
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    number = _number(text.replace(",", ""))
    if not (least <= number <= LARGEST and number == int(number)):
        raise argparse.ArgumentTypeError(f"got {text}; accepted is a whole number of at least {least}, such as 1e6")
    return int(number)


def ranks(text: str) -> list[int]:
    """ "2,4,8": ascending, each once."""
    found = sorted({int(n) if (n := _number(part)) == n // 1 and 2 <= n <= MOST else 0 for part in text.split(",")})
    if not found[0]:
        raise argparse.ArgumentTypeError(f"got {text}; accepted are numbers from 2 to {MOST:,}, such as 2,4,8")
    return found


def bandwidth(text: str) -> float:
    """ "1.25e9", "1.25GB/s", "10Gbit", "10Gbps": bytes a second."""
    found = re.fullmatch(r"\s*([^a-zA-Z]*?(?:[eE][+-]?\d+)?)\s*(?:([kMGT]?)(?:(B|bit)(?:/s)?|(bps)))?\s*", text)
    number = _number(found[1]) if found else math.nan
    if found is not None:
        number *= PREFIXES[found[2] or ""] / (8 if found[3] == "bit" or found[4] else 1)
    if not SLOWEST <= number < math.inf:
        raise argparse.ArgumentTypeError(
            f"got {text}; accepted are bytes a second, 1 at least: 1.25e9, 1.25GB/s, 10Gbit/s"
        )
    return number


def latency(text: str) -> float:
    """ "3e-5", "30us", "0.03 ms": seconds."""
    found = re.fullmatch(r"\s*(.*?)\s*(s|ms|us|\u00b5s|\u03bcs|ns|)\s*", text)
    number = _number(found[1]) if found else math.nan
    number *= SECONDS[found[2]] if found else 1
    if not 0 <= number <= LATEST:
        raise argparse.ArgumentTypeError(f"got {text}; accepted are seconds from 0 to {LATEST:g}: 3e-5, 30us, 0.03ms")
    return number


def exponent(text: str) -> float:
    number = _number(text)
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"got {text}; accepted is a number of at least 0 (0: all rows alike)")
    return number


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


# ---------------------------------------------------------------------- written
def of_bytes(x: float) -> str:
    """ "4.48 MB": three figures; powers of 1000."""
    return _figures(x, ("B", "kB", "MB", "GB", "TB", "PB", "EB")) if x < 999.5e18 else f"{x:.0e} B"


def of_seconds(x: float) -> str:
    """ "4.54 ms": three figures; minutes and hours beyond."""
    if x >= 3.6e9:
        return f"{x:.0e} s"
    if x >= 36_000:
        return f"{x / 3600:,.0f} h"
    if x >= 600:
        return f"{x / 60:,.0f} min"
    return f"{three_figures(x)} s" if x >= 0.9995 else _figures(x * 1e9, ("ns", "us", "ms"))


def three_figures(x: float) -> str:
    """ "4.50", "45.0", "4,500"."""
    return f"{x:,.0f}" if x >= 99.95 else f"{x:#.3g}"


def _figures(x: float, units: tuple[str, ...]) -> str:
    for unit in units[:-1]:
        if x < 999.5:
            return f"{three_figures(x)} {unit}"
        x /= 1000
    return f"{three_figures(x)} {units[-1]}"
