"""Run a program's main: expected errors become one line and an exit code, and output is safe for terminals.

Expected are errors of files, text, pipes and the keyboard; any other error is a bug and keeps its traceback. Imports
the standard library only: the host tool imports this module.
"""

import errno
import os
import pwd
import re
import select
import shutil
import signal
import sys
import tempfile
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TextIO

INTERRUPTED = 128 + signal.SIGINT  # exit codes as a shell has them
CLOSED_PIPE = 128 + signal.SIGPIPE
NEARLY_FULL = 16 * 2**20  # bytes
FULL = (errno.ENOSPC, errno.EDQUOT)
DENIED = (errno.EACCES, errno.EPERM)
# Faults of the machine, reported as such whatever a library turns them into.
OF_THE_MACHINE = (*FULL, *DENIED, errno.EROFS, errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
VOLUME = "VLALAB_VOLUME"
# C0 and C1 controls, DEL, what turns the direction of writing, and halves of characters
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
COMMAND = re.compile(r"`[^`]+`|\./lab (?:(?![;:,.)] | \().)+")  # up to what ends a part of a sentence
DRAWING = ("rich", "tqdm", "tyro")  # libraries whose own colours and progress lines reach the terminal


class ExitStatus(NamedTuple):
    """The message for the user (none if empty) and the exit code."""

    text: str
    code: int


def run(
    main: Callable[..., object],
    *arguments: object,
    expected: tuple[type[Exception], ...] = (ValueError,),
    prefix: str = "error: ",
) -> NoReturn:
    """Run a program's `main` and exit with its code. expected: errors whose own text is the message.

    Exits with 1 after such an error, with 130 after Ctrl-C, and silently with 141 when its output is a closed pipe.
    """
    speak_utf8()
    code: object
    try:
        code = main(*arguments)
    except SystemExit as exit_request:  # rich makes one of a pipe that nobody reads, and has silenced it
        code = CLOSED_PIPE if isinstance(exit_request.__context__, BrokenPipeError) else exit_request.code
    except BaseException as error:
        if (status := exit_status(error, expected)) is None:
            raise
        code = report_error(status, prefix)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:  # a full disk or a closed pipe may show only now
            code = report_error(exit_status(error) or ExitStatus(describe_os_error(error), 1), prefix)
            _silence(stream)
    sys.exit(code)


def report_error(status: ExitStatus, prefix: str) -> int:
    """Print an exit status's message, if it has one and stderr has a reader; return its code."""
    for stream in (sys.stdout, sys.stderr):
        if _has_no_reader(stream):
            _silence(stream)
    if status.text:
        print(f"{prefix}{status.text}", file=sys.stderr, flush=True)
    return status.code


def exit_status(error: BaseException, expected: tuple[type[Exception], ...] = ()) -> ExitStatus | None:
    """Return the message and exit code of an error, None for a bug in the program."""
    cause: BaseException | None = error
    while isinstance(cause, ImportError):  # Ctrl-C during the import of a compiled module
        cause = cause.__cause__
    if isinstance(cause, KeyboardInterrupt):
        return ExitStatus("stopped; run the same command again to restart or resume", INTERRUPTED)
    if isinstance(error, BrokenPipeError) and any(map(_has_no_reader, (sys.stdout, sys.stderr))):
        return ExitStatus("", CLOSED_PIPE)
    if isinstance(error, UnicodeError):
        # Its position, without the text itself: that may contain a token.
        text = f"text that cannot be read ({type(error).__name__})"
        if isinstance(error, UnicodeDecodeError):
            text = f"byte {error.start + 1} is not text in {error.encoding}; use UTF-8 for files and names"
        if isinstance(error, UnicodeEncodeError):
            character = error.object[error.start]
            kind = unicodedata.name(character, "not printable")
            text = (
                f"character {error.start + 1}, U+{ord(character):04X} ({kind}), cannot be written in {error.encoding}"
            )
            text += "; use UTF-8 for names, and ASCII for tokens, keys and addresses"
        return ExitStatus(text, 1)
    if isinstance(error, OSError):
        return ExitStatus(describe_os_error(error), 1)
    if isinstance(error, expected) and str(error):
        return ExitStatus(str(error), 1)
    if fault := next(_faults_behind(error), None):
        return ExitStatus(describe_os_error(fault), 1)
    if isinstance(error, MemoryError):
        return ExitStatus(str(error) or "out of memory; stop other programs on this machine", 1)
    return None


def is_full_disk(error: Exception) -> bool:
    """Return whether an error was caused by a full disk."""
    return any(fault.errno in FULL for fault in _faults_behind(error))


def _faults_behind(error: BaseException | None) -> Iterator[OSError]:
    """Yield the machine's faults that caused an error, or that its text quotes."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in OF_THE_MACHINE:
            yield error
        for number in re.findall(r"\bos error (\d+)\b", str(error)):  # as Rust's libraries (safetensors) spell them
            if int(number) in OF_THE_MACHINE:
                yield OSError(int(number), os.strerror(int(number)))
        error = error.__cause__ or error.__context__


# --- messages -----------------------------------------------------------------------------------------------


def describe_os_error(error: OSError) -> str:
    """Return a system error's message with the next step; an error with its own text keeps it."""
    if error.errno is None or error.strerror != os.strerror(error.errno):
        return str(error.strerror or error)
    name = error.filename if error.filename2 is None else error.filename2
    path = Path(os.fsdecode(name)).absolute() if isinstance(name, (str, bytes, os.PathLike)) else None
    if error.errno in FULL:
        named = os.environ.get(VOLUME)
        places = [Path(named).expanduser()] if named else []
        places += [Path(tempfile.gettempdir()), Path.home(), Path.cwd()]
        full = [place for place in places if place.exists() and shutil.disk_usage(place).free < NEARLY_FULL]
        full = [path.parent] if path else full
        at = f" at {', '.join(map(str, dict.fromkeys(full)))}" if full else ""
        return f"no space left{at}: free some space and run the same command again"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return f"too many files are open ({error.strerror}); allow more: ulimit -n 4096"
    if path is None:
        return error.strerror
    volume = Path(os.environ.get(VOLUME) or "/dev/null").expanduser().absolute()
    hint = f"; set {VOLUME} to a directory you can use" if path.is_relative_to(volume) else ""
    if error.errno not in (*DENIED, errno.EROFS):
        return f"{path}: {error.strerror}{hint}"
    return f"{path} cannot be used ({error.strerror}){_describe_owner(path)}{hint}"


def _describe_owner(path: Path) -> str:
    """Return the owner of the nearest visible ancestor; empty if that is this user."""

    def user(uid: int) -> str:
        try:
            return f"user {uid} ({pwd.getpwuid(uid).pw_name})"
        except KeyError:
            return f"user {uid}"

    for ancestor in (path, *path.parents):
        try:
            uid = os.lstat(ancestor).st_uid
        except OSError:
            continue
        return "" if uid == os.geteuid() else f": {ancestor} belongs to {user(uid)}, and you are {user(os.geteuid())}"
    return ""


# --- output -------------------------------------------------------------------------------------------------


def speak_utf8() -> None:
    """Let this program print any text in any locale; control characters are escaped."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
        if stream is not None and not isinstance(stream, PlainStream):
            setattr(sys, name, PlainStream(stream, folds=name == "stderr"))


def plain(text: object) -> str:
    """Return a text with its control characters escaped (\\x1b), except line ends and tabs."""
    return CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), str(text))


def single_line(text: object) -> str:
    """Return a text as part of one line: white space collapsed, control characters escaped."""
    return " ".join(plain(text).split())


def folded(text: str, stream: TextIO) -> str:
    """Return a text wrapped between words at a terminal's width; unchanged for other streams.

    Indented lines and commands are not wrapped, so that they can be copied.
    """
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError, AttributeError):  # no terminal, closed, or a test's
        return text
    if not columns:
        return text
    lines = text.split("\n")
    for at, line in enumerate(lines):
        if len(line) >= columns and not line.startswith((" ", "\t")):
            joined = COMMAND.sub(lambda match: match[0].replace(" ", "\0"), line)
            parts = textwrap.wrap(joined, columns - 1, break_long_words=False, break_on_hyphens=False)
            lines[at] = "\n".join(parts).replace("\0", " ")
    return "\n".join(lines)


class PlainStream:
    """A text stream that escapes control characters.

    Text of a data set, a checkpoint or a service cannot control the terminal. Libraries that draw write unchanged;
    `console` escapes for them. folds: wrap lines between words (`folded`).
    """

    def __init__(self, stream: TextIO, folds: bool = False) -> None:
        self.unfiltered = stream
        self.folds = folds

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unfiltered, name)

    def write(self, text: str) -> int:
        caller = sys._getframe().f_back
        module = caller.f_globals.get("__name__", "") if caller else ""
        if module.partition(".")[0] not in DRAWING:
            plain_text = plain(text)
            self.unfiltered.write(folded(plain_text, self.unfiltered) if self.folds else plain_text)
        else:
            self.unfiltered.write(text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)


def unfiltered(stream: TextIO) -> TextIO:
    """Return the underlying stream, for a program's own control sequences."""
    return stream.unfiltered if isinstance(stream, PlainStream) else stream


def console(**options: Any) -> Any:
    """Return a rich Console for tables and progress that escapes control characters in its text."""
    from rich.console import Console  # not at the top: few programs draw

    class PlainConsole(Console):
        def render(self, *arguments: Any, **named: Any) -> Iterator[Any]:
            for segment in super().render(*arguments, **named):
                yield segment if segment.control else segment._replace(text=plain(segment.text))

    return PlainConsole(**options)


def _has_no_reader(stream: object) -> bool:
    """Return whether a stream is a pipe whose other end is closed."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLOUT)
        return any(event & select.POLLERR for _, event in poll.poll(0))
    except (OSError, ValueError, AttributeError):  # no stream, a closed one, or one of a test
        return False


def _silence(stream: object) -> None:
    """Redirect a stream to /dev/null, so that flushing it at exit cannot fail."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, stream.fileno())
    os.close(nothing)
