"""Login with a one-time code, which the first login replaces by a password of the student's own.

argon2 hashes are in accounts.json. JupyterHub's native authenticator answers each login with an error under version 6,
and lets the first visitor who signs up take a name.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from jupyterhub.auth import Authenticator
from tornado.web import HTTPError

from hub import store

MAX_FAILURES = 5  # of one name; then one attempt per PAUSE_S
PAUSE_S = 30.0
DUMMY = store.Account("nobody", "", 0, store.HASHER.hash(store.new_code()))  # an unknown name takes as long

FORM = """
<form action="{{ authenticator_login_url | safe }}" method="post" style="max-width:24rem;margin:2rem auto">
  <input type="hidden" name="_xsrf" value="{{ xsrf }}">
  <h1>Log in · 로그인</h1>
  {% if login_error %}<p class="alert alert-warning" role="alert">{{ login_error | e }}</p>{% endif %}
  <label for="username_input">Name · 이름</label>
  <input class="form-control" id="username_input" name="username" value="{{ (username or '') | e }}" required autofocus
    autocapitalize="off" autocorrect="off" spellcheck="false" autocomplete="username">
  <label for="password_input">Password, or one-time code · 비밀번호 또는 일회용 code</label>
  <input class="form-control" id="password_input" name="password" type="password" required
    autocomplete="current-password">
  <fieldset>
    <legend style="font-size:1rem">First login, or to change it: new password, twice ·
      처음이거나 바꿀 때: 새 비밀번호 두 번</legend>
    <input class="form-control" id="new_input" name="new" type="password" aria-label="New password"
      autocomplete="new-password">
    <input class="form-control" id="again_input" name="again" type="password" aria-label="New password again"
      autocomplete="new-password">
  </fieldset>
  <input class="btn btn-jupyter form-control" type="submit" id="login_submit" value="Log in · 로그인">
</form>
"""


class CodeAuthenticator(Authenticator):  # type: ignore[misc]  # jupyterhub is not installed here
    """The accounts of `hub.store`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._failures: dict[str, tuple[int, float]] = {}  # name → attempts since the last success, time of the last

    def get_custom_html(self, base_url: str) -> str:
        """Return the login form."""
        return FORM

    async def authenticate(self, handler: Any, data: dict[str, str]) -> str | None:
        """Return the name for a password, or for a code with a new password; None otherwise.

        Raises HTTPError with a message for the form: the code needs a new password, or there were too many attempts.
        """
        name, secret = data.get("username", "").lower(), data.get("password", "")
        count, last = self._failures.get(name, (0, 0.0))
        if count >= MAX_FAILURES and time.monotonic() < last + PAUSE_S:
            raise HTTPError(403, f"Too many attempts; wait {PAUSE_S:.0f} s. 시도가 너무 많습니다. 잠시 기다리세요.")
        account = store.accounts().get(name)
        if not await asyncio.to_thread((account or DUMMY).matches, secret) or account is None:
            self._failures[name] = (count + 1, time.monotonic())
            return None
        if account.is_code or data.get("new"):
            if data.get("new", "") != data.get("again", "") or not data.get("new"):
                raise HTTPError(403, "Type your new password twice, equally. 새 비밀번호를 똑같이 두 번 입력하세요.")
            try:
                await asyncio.to_thread(store.set_password, account, data["new"])
            except ValueError as error:
                raise HTTPError(403, str(error)) from None
        self._failures.pop(name, None)
        return name
