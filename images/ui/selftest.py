"""The smoke test of the pages' environment; images/common/selftest.py runs it."""

from __future__ import annotations

from images.common.selftest import expect

MODULES = ("PIL", "fastapi", "jinja2", "python_multipart", "pyarrow", "h5py", "av", "uvicorn", "tyro", "msgpack")


def check_page() -> str:
    """Check that the pages answer without a policy and without the internet."""
    from fastapi.testclient import TestClient

    from services.ui.app import create_app
    from services.ui.ask.link import PolicyLink

    link = PolicyLink("http://127.0.0.1:9")  # no policy listens there
    client = TestClient(create_app(link))
    ready, overview, page = (client.get(path) for path in ("/readyz", "/", "/ask/"))
    link.close()
    expect(ready.status_code == 200, f"/readyz answers {ready.status_code}: {ready.text[:200]}")
    expect(overview.status_code == 200 and "/ask/" in overview.text, f"the overview answers {overview.status_code}")
    expect(page.status_code == 200 and 'id="ask"' in page.text, f"the page answers {page.status_code}")
    return f"a page of {len(page.content) / 1e3:.0f} kB; {ready.json()['policy'][:60]}"


SERVICES = {"page": check_page}
