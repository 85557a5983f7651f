"""Login with a one-time code, which the first login replaces by a password of the student's own.

JupyterHub's native authenticator fails under version 6, and lets the first visitor who signs up take a name.
"""

import asyncio
import time
from typing import Any, ClassVar

from jupyterhub.auth import Authenticator
from tornado.web import HTTPError

from hub import store

MAX_FAILURES = 5  # of one name; then one attempt per PAUSE_S
PAUSE_S = 30.0
DUMMY = store.Account("nobody", "", 0, store.HASHER.hash("nobody"))  # an unknown name takes as long


class CodeAuthenticator(Authenticator):  # type: ignore[misc]  # jupyterhub is not installed here
    """The accounts of `hub.store`."""

    _failures: ClassVar[dict[str, tuple[int, float]]] = {}  # name → attempts since the last success, time of the last

    async def authenticate(self, handler: Any, data: dict[str, str]) -> str | None:
        """Return the name for a password, or for a code with a new password; else None, or HTTPError for the form."""
        name, new = data.get("username", "").lower(), data.get("new", "")
        count, last = self._failures.get(name, (0, 0.0))
        if count >= MAX_FAILURES and time.monotonic() < last + PAUSE_S:
            raise HTTPError(403, f"Too many attempts; wait {PAUSE_S:.0f} s. 시도가 너무 많습니다. 잠시 기다리세요.")
        account = store.accounts().get(name)
        if not await asyncio.to_thread((account or DUMMY).matches, data.get("password", "")) or account is None:
            self._failures[name] = (count + 1, time.monotonic())
            return None
        if account.is_code or new:
            if not new or new != data.get("again"):
                raise HTTPError(403, "Type your new password twice, equally. 새 비밀번호를 똑같이 두 번 입력하세요.")
            try:
                await asyncio.to_thread(store.set_password, account, new)
            except ValueError as error:
                raise HTTPError(403, str(error)) from None
        self._failures.pop(name, None)
        return name
