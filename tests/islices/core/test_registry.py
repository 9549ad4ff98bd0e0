"""Test how names and arrays select backends, and the errors that faulty plug-ins cause.

Plug-ins are real distributions: a module and a .dist-info folder with an entry point, on the path of a fresh
interpreter. The toy framework is a module with a special array type, so that most tests need no framework.
"""

from __future__ import annotations

import importlib.util
import textwrap
from pathlib import Path

import numpy as np
import pytest
from suite_runs import python, run_code, write_distribution

import islices

BUILTIN = ("numpy", "torch", "tensorflow", "jax", "mxnet")

#: A framework in one file, with arrays that wrap a NumPy array.
TOY = """
class ToyArray:
    def __init__(self, data):
        self.data = data
    shape = property(lambda self: self.data.shape)
    dtype = property(lambda self: self.data.dtype)
"""

#: The adapter of the toy framework: the host computes on views of the wrapped memory.
ADAPTER = """
import numpy as np
from islices.backend import Backend
import {module} as toy

class ToyBackend(Backend):
    name = {module!r}
    module = {module!r}
    def version(self): return "0"
    def is_array(self, x): return isinstance(x, toy.ToyArray)
    def dtype(self, x): return x.dtype.name
    def shape(self, x): return x.shape
    def host_view(self, x): return x.data
    def from_host(self, array, like): return toy.ToyArray(array)
    def asarray(self, array, like=None): return toy.ToyArray(np.array(array))
    def to_numpy(self, x): return x.data
    def reshape(self, x, shape): return toy.ToyArray(x.data.reshape([-1 if n is None else n for n in shape]))

backend = ToyBackend()
"""


class Site:
    """A folder of distributions on the path of a fresh interpreter."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def module(self, name: str, source: str) -> None:
        (self.folder / f"{name}.py").write_text(source)

    def plugin(self, distribution: str, name: str, value: str) -> None:
        write_distribution(self.folder, distribution, "islices.backends", **{name: value})

    def toy(self, module: str) -> None:
        """Write a toy framework, its adapter, and the adapter's entry point."""
        self.module(module, TOY)
        self.module(f"{module}_islices", ADAPTER.format(module=module))
        self.plugin(f"islices_{module}", module, f"{module}_islices:backend")

    def run(self, code: str) -> str:
        return run_code("import sys, islices, numpy as np\n" + textwrap.dedent(code), path=self.folder)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


#: Code for the subprocess: a function that returns the text of the error that a call raises.
ERROR = """
def error(kind, fn, *args):
    try:
        fn(*args)
    except kind as e:
        return str(e)
    raise AssertionError(f"no {kind.__name__}")
"""

#: Code that must work next to a broken plug-in.
NUMPY_WORKS = """
s = islices.IndexedSlices(np.ones((2, 1)), np.array([1, 1]), (3, 1))
assert islices.to_dense(s).tolist() == [[0.0], [2.0], [0.0]]
assert islices.get_backend(np.ones(2)).name == "numpy"
"""


# ---------------------------------------------------------------------- names and arrays
def test_a_name_an_array_slices_and_the_backend_itself_give_the_same_backend() -> None:
    backend = islices.get_backend("numpy")
    s = islices.IndexedSlices(np.ones((1, 2)), np.array([0]), (3, 2))
    assert all(islices.get_backend(x) is backend for x in (np.ones(2), np.float32(1), s, backend))
    assert (backend.name, backend.version()) == ("numpy", np.__version__)


@pytest.mark.parametrize("name", BUILTIN)
def test_list_backends_says_what_is_installed(name: str) -> None:
    assert (name in islices.list_backends()) == (importlib.util.find_spec(name) is not None)


@pytest.mark.parametrize("name", ["torch", "mxnet"])
def test_a_framework_that_is_not_installed_gives_the_line_that_installs_it(name: str, site: Site) -> None:
    out = site.run(
        f"""
        import importlib.abc

        class Hidden(importlib.abc.MetaPathFinder):
            def find_spec(self, fullname, path=None, target=None):
                if fullname.partition(".")[0] == {name!r}:
                    raise ModuleNotFoundError(f"No module named {{fullname!r}}", name=fullname)

        sys.meta_path.insert(0, Hidden())
        assert {name!r} not in islices.list_backends()
        try:
            islices.get_backend({name!r})
        except ModuleNotFoundError as error:
            print(error, error.name)
        """
        + textwrap.indent(NUMPY_WORKS, " " * 8)
    )
    assert out.strip() == f'backend {name!r} needs {name}: pip install "islices[{name}]" {name}'


# ---------------------------------------------------------------------- plug-ins
def test_a_plugin_works_like_a_built_in_backend(site: Site) -> None:
    site.toy("toyfw")
    site.run(
        """
        assert "toyfw" in islices.list_backends()
        assert "toyfw" not in sys.modules and "toyfw_islices" not in sys.modules
        import toyfw
        values, ids = toyfw.ToyArray(np.array([[3.0], [3.0], [8.0]])), toyfw.ToyArray(np.array([1, 1, 0]))
        assert "toyfw_islices" not in sys.modules, "loads when an array of it is seen"
        s = islices.IndexedSlices(values, ids, (4, 1))
        assert s.backend is islices.get_backend("toyfw") and "toyfw" in repr(s)
        assert islices.to_dense(s).data.tolist() == [[8.0], [6.0], [0.0], [0.0]]
        (clipped,), norm = islices.clip_by_global_norm([s], 5.0)
        assert norm.data == 10.0 and clipped.values.data.tolist() == [[1.5], [1.5], [4.0]]
        assert islices.convert(s, "numpy").backend.name == "numpy"
        assert islices.get_backend(np.ones(2)).name == "numpy"
        """
    )


#: label -> (source of the broken adapter, error when selected, words of its message)
BROKEN = {
    "error while it loads": ("1 / 0", "ImportError", ["'brokenfw'", "ZeroDivisionError"]),
    "no Backend": ("backend = {'name': 'brokenfw'}", "TypeError", ["'brokenfw'", "islices.backend.Backend", "dict"]),
    "newer protocol": (
        "import islices\nclass B(islices.backend.Backend):\n    name = module = 'brokenfw'\n"
        "    protocol = islices.backend.PROTOCOL + 1\nbackend = B()",
        "ImportError",
        ["'brokenfw'", "protocol", "upgrade islices"],
    ),
}


@pytest.mark.parametrize("label", BROKEN)
def test_a_broken_plugin_fails_when_selected_and_disturbs_nobody(label: str, site: Site) -> None:
    source, kind, words = BROKEN[label]
    site.toy("goodfw")
    site.module("brokenfw", TOY)
    site.module("brokenfw_islices", source)
    site.plugin("islices_brokenfw", "brokenfw", "brokenfw_islices:backend")
    site.run(
        ERROR
        + NUMPY_WORKS
        + f"assert 'brokenfw' in islices.list_backends()\nwords = {words!r}\n"
        + f"text = error({kind}, islices.get_backend, 'brokenfw')\n"
        + "assert all(word in text for word in words), text\n"
        + "import brokenfw, goodfw\n"  # now the registry uses this plug-in for unknown types
        + "text = error(TypeError, islices.get_backend, brokenfw.ToyArray(np.ones(2)))\n"
        + "assert 'no backend knows' in text and 'failed to load' in text and \"'brokenfw'\" in text, text\n"
        + "text = error(TypeError, islices.coalesce, brokenfw.ToyArray(np.ones(2)))\n"
        + "assert 'failed to load' in text, text\n"
        + NUMPY_WORKS
        + "assert islices.get_backend(goodfw.ToyArray(np.ones(2))).name == 'goodfw'\n"
        + f"assert error({kind}, islices.get_backend, 'brokenfw'), 'it fails again the second time'\n"
    )


@pytest.mark.parametrize(
    ("module", "missing", "pip"),
    [
        ("torch.optim", "torch", '"islices[torch]"'),
        ("mxnet.gluon", "mxnet", '"islices[mxnet]"'),
        ("keras", "keras", 'keras "islices[torch]"'),
    ],
)
def test_an_import_without_its_framework_says_what_installs_it(module: str, missing: str, pip: str) -> None:
    program = f"import sys\nsys.modules[{missing!r}] = None\nimport islices.backends.{module}"
    done = python("-c", program)
    assert done.stderr.splitlines()[-1].startswith("ModuleNotFoundError: ")
    assert f"needs {missing}: pip install {pip}" in done.stderr.splitlines()[-1]


def test_a_name_that_two_plugins_claim_is_refused(site: Site) -> None:
    site.toy("twicefw")
    site.module("another_adapter", ADAPTER.format(module="twicefw"))
    site.plugin("islices_another", "twicefw", "another_adapter:backend")
    site.run(
        ERROR
        + """
text = error(ValueError, islices.get_backend, "twicefw")
assert all(w in text for w in ("'twicefw'", "twicefw_islices:backend", "another_adapter:backend", "uninstall")), text
assert islices.list_backends().count("twicefw") == 1
import twicefw
assert "failed to load" in error(TypeError, islices.get_backend, twicefw.ToyArray(np.ones(1)))
"""
        + NUMPY_WORKS
    )


def test_a_plugin_may_not_take_a_built_in_name(site: Site) -> None:
    pytest.importorskip("torch")
    site.module("usurper", ADAPTER.format(module="torch"))
    site.plugin("islices_usurper", "torch", "usurper:backend")
    site.run(
        ERROR
        + """
text = error(ValueError, islices.get_backend, "torch")
assert all(w in text for w in ("'torch'", "built in", "usurper:backend")), text
assert "usurper" not in sys.modules
"""
        + NUMPY_WORKS
    )


# ---------------------------------------------------------------------- threads
def test_many_threads_get_one_backend_loaded_once(site: Site) -> None:
    site.toy("toyfw")
    with (site.folder / "toyfw_islices.py").open("a") as file:
        file.write("\nimport time, toyfw\ntime.sleep(0.05)\ntoyfw.loads = getattr(toyfw, 'loads', 0) + 1\n")
    site.run(
        """
        import threading
        import toyfw
        sys.setswitchinterval(1e-6)
        things = ["toyfw", toyfw.ToyArray(np.ones(2)), "numpy", np.ones(3)]
        start = threading.Barrier(32)
        found, errors = [], []

        def work(k):
            start.wait()
            try:
                for j in range(len(things)):
                    thing = things[(k + j) % len(things)]
                    found.append((type(thing).__name__, islices.get_backend(thing)))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(32)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert not errors, errors
        assert len(found) == 128
        assert len({id(b) for _, b in found}) == 2 and {b.name for _, b in found} == {"toyfw", "numpy"}
        assert {b.name for kind, b in found if kind == "ToyArray"} == {"toyfw"}
        assert {b.name for kind, b in found if kind == "ndarray"} == {"numpy"}
        assert toyfw.loads == 1, toyfw.loads
        """
    )
