"""Pages opened in a real browser. One Chromium serves a file of tests; all of them run in one process."""

import pytest

import posattn
from posattn.explorer import document, of_package
from posattn.explorer.content import Content


@pytest.fixture(scope="session")
def package():
    """What the page shows without any run of the user's."""
    return of_package()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two members of each of two tasks in one folder."""
    folder = tmp_path_factory.mktemp("runs") / "two"
    config = posattn.ModelConfig(n=3, layers=1, embed=4, width=4, heads=1)
    posattn.train(["sum", "min", "sum", "min"], config, members=4, samples=20, epochs=1, batch=10, out=folder)
    return folder


@pytest.fixture(scope="module")
def visit(browser, tmp_path_factory):
    """Opens a page from content or from its HTML. Whatever goes wrong in it, or is asked of the network, fails the test."""
    contexts, wrong = [], []

    def open_page(content: Content | str, results=(), width=1280, height=800, scheme="light"):
        html = content if isinstance(content, str) else document(content, list(results), "a test")
        path = tmp_path_factory.mktemp("page") / "explorer.html"
        path.write_text(html, encoding="utf-8")
        contexts.append(browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme))
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: wrong.append(request.url) if request.url != path.as_uri() else None)
        page.on("dialog", lambda dialog: (wrong.append(dialog.message), dialog.dismiss()))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []
