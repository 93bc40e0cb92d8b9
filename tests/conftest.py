"""What all tests share: one thread, a seed of their own, and shapes in types checked while they run (:mod:`shapes`)."""

import gc
import os
import shutil
import signal
import stat
import sys

import jaxtyping
import pytest
import torch
from hypothesis import settings
from interpreter import prepare_once
from shapes import check_shapes

# Kernels run in Triton's interpreter. Triton reads this when it is first imported, which PyTorch Geometric does too.
os.environ.setdefault("TRITON_INTERPRET", "1")

SHAPES_CHECKED = check_shapes()  # before anything imports posattn
import posattn.cli  # noqa: E402
from posattn.encodings import ENCODINGS  # noqa: E402
from posattn.network import configuration  # noqa: E402
from posattn.tasks import TASKS  # noqa: E402

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as for what a shell runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)
os.fsync = lambda file: None  # what a test writes need not outlast a loss of power
settings.register_profile("posattn", deadline=None, max_examples=40, derandomize=True, database=None)
settings.load_profile("posattn")


def pytest_report_header():
    return None if SHAPES_CHECKED else "Shapes in types are not checked: beartype is not installed."


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items):
    """Tests that share what their module makes run in one process, where two run tests: else each would make its own."""
    for item in items:
        made = {fixtures[-1].scope for fixtures in item._fixtureinfo.name2fixturedefs.values()}
        if "module" in made and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
    yield
    # pytest-xdist 3.8 writes the group where pytest 9.2 does not look (its issue 1386), and all groups are torn apart.
    for item in items:
        grouped = getattr(item, "_nodeid", item.nodeid)
        if grouped != item.nodeid:
            item._id = type(item._id).parse(grouped)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Modules and tests stay to the end. The collector of garbage need not look through them: half a second each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure():
    """What is never looked through would count as leaked when the process ends."""
    gc.unfreeze()


def pytest_collection_finish():
    """When all kernels to test are imported, and with them the interpreter."""
    prepare_once()


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture
def tables():
    """A function that takes back what a file of one's own added to the package's tables."""
    before = [(table, dict(table)) for table in (TASKS, ENCODINGS)]

    def restore():
        for table, rows in before:
            table.clear()
            table.update(rows)

    yield restore
    restore()


@pytest.fixture
def unchecked():
    """Switches the checks off, as a user has it: for arguments of the wrong type and for torch.compile."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def null(tmp_path):
    """A device of our own that takes everything, like /dev/null."""
    node = tmp_path / "null"
    try:
        os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        node.write_bytes(b"")
    except PermissionError:
        pytest.skip("making devices is not permitted here")
    return node


@pytest.fixture
def posattn_command(monkeypatch, capfd, tmp_path):
    """Calls the command within this process, in an empty folder: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["posattn", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            posattn.cli.main()
        return left.value.code or 0, *capfd.readouterr()

    return call


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The folder of a finished run: two networks for the minimum of three numbers."""
    folder = tmp_path_factory.mktemp("runs") / "pair"
    config = posattn.ModelConfig(3, embed=8, width=8)
    posattn.train("min", config, members=2, samples=40, epochs=3, batch=15, device="cpu", out=folder)
    return folder


@pytest.fixture
def lively():
    """A function that builds a model as if trained: attention far from uniform, no bias at zero, activations of order one.

    At initialisation attention is nearly uniform, activations shrink from layer to layer and the gradients of queries
    and keys are lost in rounding, so that comparing them would compare noise.
    """

    def build(dtype=torch.float64, **config):
        model = configuration(**config).build().to(dtype)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith(("W_Q.weight", "W_K.weight")):
                    parameter *= 5
                elif name.endswith(("W_1.weight", "W_2.weight")):
                    parameter *= 2
                elif name.endswith("bias"):
                    parameter.uniform_(-0.5, 0.5)
        return model

    return build


# Not for the session: while Playwright is open it holds the event loop that other tests' libraries want.
@pytest.fixture(scope="module")
def browser():
    """A Chromium."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("there is no Chromium; `make test` installs it where apt-get can: apt-get install chromium")
    driver = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed, which opens the page")
    with driver.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()
