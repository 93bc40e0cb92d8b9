"""A real browser, and pages opened in it. One Chromium serves a file of tests; all of them run in one process."""

import shutil

import pytest
from playwright.sync_api import sync_playwright

from posattn.explorer import document, of_package
from posattn.explorer.content import Content

NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def package():
    """What the page shows without any run of the user's."""
    return of_package()


# Not for the session: while Playwright is open it holds the event loop that other tests' libraries want.
@pytest.fixture(scope="module")
def browser():
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("there is no Chromium; `make test` installs it where apt-get can: apt-get install chromium")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


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
