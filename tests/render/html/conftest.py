"""One Chromium, shared by all tests of pages in a browser."""

from collections.abc import Iterator

import pytest

from tests.helpers.browser import Browser, chromium


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("chromium")) as started:
        yield started
