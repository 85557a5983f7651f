"""How a program ends when files, text, a pipe or the keyboard end it: with one sentence and an exit code.

What is no such thing is a mistake of the code's own and keeps its traceback. Only the standard library is needed: the
host tool imports this module.
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
# Faults of the machine: whatever a library makes of one of these, it is told as what it is.
OF_THE_MACHINE = (*FULL, *DENIED, errno.EROFS, errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
VOLUME = "VLALAB_VOLUME"
# C0 and C1 controls, DEL, what turns the direction of writing, and halves of characters
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
COMMAND = re.compile(r"`[^`]+`|\./lab (?:(?![;:,.)] | \().)+")  # up to what ends a part of a sentence
DRAWING = ("rich", "tqdm", "tyro")  # libraries whose own colours and progress lines reach the terminal


class Ending(NamedTuple):
    """What is said to the person (nothing, if empty), and to the shell."""

    text: str
    code: int


def run(
    main: Callable[..., object],
    *arguments: object,
    known: tuple[type[Exception], ...] = (ValueError,),
    prefix: str = "error: ",
) -> NoReturn:
    """Runs a program's `main` and exits with its code. `known` are errors whose own text is the sentence.

    After such a sentence it exits with 1, after Ctrl-C with 130, and silently with 141 where nobody reads its output.
    """
    speak_utf8()
    code = _outcome(main, arguments, known, prefix)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:  # what was printed may only now turn out not to fit, or to have no reader
            code = tell(ending(error) or Ending(in_words(error), 1), prefix)
            _silence(stream)
    sys.exit(code)


def _outcome(main: Callable[..., object], arguments: tuple, known: tuple[type[Exception], ...], prefix: str) -> object:
    try:
        return main(*arguments)
    except SystemExit as asked:  # rich makes one of a pipe that nobody reads, and has silenced it
        return CLOSED_PIPE if isinstance(asked.__context__, BrokenPipeError) else asked.code
    except BaseException as error:
        if (found := ending(error, known)) is None:
            raise
        return tell(found, prefix)


def tell(found: Ending, prefix: str) -> int:
    """Says an ending's sentence, if there is one and somebody to hear it; returns its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if _has_no_reader(stream):
            _silence(stream)
    if found.text:
        print(f"{prefix}{found.text}", file=sys.stderr, flush=True)
    return found.code


def ending(error: BaseException, known: tuple[type[Exception], ...] = ()) -> Ending | None:
    """Returns how a program ends with this error, None for one that is a mistake of its own."""
    if _is_interrupt(error):
        return Ending("stopped; the same command begins again, or goes on where it can", INTERRUPTED)
    if isinstance(error, BrokenPipeError) and any(map(_has_no_reader, (sys.stdout, sys.stderr))):
        return Ending("", CLOSED_PIPE)
    if isinstance(error, UnicodeError):
        return Ending(_of_text(error), 1)
    if isinstance(error, OSError):
        return Ending(in_words(error), 1)
    if isinstance(error, known) and str(error):
        return Ending(str(error), 1)
    if fault := next(_faults_behind(error), None):
        return Ending(in_words(fault), 1)
    if isinstance(error, MemoryError):
        return Ending(str(error) or "there is not enough memory; end what else runs here", 1)
    return None


def _is_interrupt(error: BaseException | None) -> bool:
    """Returns whether it is Ctrl-C, or what a compiled module makes of one while it is imported."""
    while isinstance(error, ImportError):
        error = error.__cause__
    return isinstance(error, KeyboardInterrupt)


def is_full_disk(error: Exception) -> bool:
    """Returns whether an error comes from a full disk, whatever a library made of it."""
    return any(fault.errno in FULL for fault in _faults_behind(error))


def _faults_behind(error: BaseException | None) -> Iterator[OSError]:
    """Yields the machine's faults that led to an error: those it was raised from, and those that it only quotes."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in OF_THE_MACHINE:
            yield error
        for number in re.findall(r"\bos error (\d+)\b", str(error)):  # as Rust's libraries (safetensors) spell them
            if int(number) in OF_THE_MACHINE:
                yield OSError(int(number), os.strerror(int(number)))
        error = error.__cause__ or error.__context__


# --- words --------------------------------------------------------------------------------------------------


def in_words(error: OSError) -> str:
    """Returns what an error of the system means, and what to do; one that explains itself is left as it is."""
    if error.errno is None or error.strerror != os.strerror(error.errno):
        return str(error.strerror or error)
    path = _path_of(error)
    if error.errno in FULL:
        return f"no space left{_where(path)}: free some, and give the same command again"
    if error.errno in (*DENIED, errno.EROFS) and path:
        return f"{path} cannot be used ({error.strerror}){_whose(path)}{_other_volume(path)}"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return f"too many files are open ({error.strerror}); allow more: ulimit -n 4096"
    return f"{path}: {error.strerror}{_other_volume(path)}" if path else error.strerror


def _path_of(error: OSError) -> Path | None:
    name = error.filename if error.filename2 is None else error.filename2
    return Path(os.fsdecode(name)).absolute() if isinstance(name, (str, bytes, os.PathLike)) else None


def _where(path: Path | None) -> str:
    """Returns which place is full: the one that an error names, else those of the lab that are."""
    known = [path.parent] if path else [_volume(), Path(tempfile.gettempdir()), Path.home(), Path.cwd()]
    full = [place for place in known if path or (place and place.exists() and _free(place) < NEARLY_FULL)]
    return f" at {', '.join(map(str, dict.fromkeys(full)))}" if full else ""


def _free(place: Path) -> int:
    return shutil.disk_usage(place).free


def _whose(path: Path) -> str:
    """Returns who could, where the nearest place that can be seen is somebody else's."""
    for place in (path, *path.parents):
        try:
            uid = os.lstat(place).st_uid
        except OSError:
            continue
        return "" if uid == os.geteuid() else f": {place} belongs to {_user(uid)}, and you are {_user(os.geteuid())}"
    return ""


def _user(uid: int) -> str:
    try:
        return f"user {uid} ({pwd.getpwuid(uid).pw_name})"
    except KeyError:
        return f"user {uid}"


def _volume() -> Path | None:
    named = os.environ.get(VOLUME)
    return Path(named).expanduser().absolute() if named else None


def _other_volume(path: Path) -> str:
    """Returns the way out for a path on the volume."""
    volume = _volume()
    return f"; set {VOLUME} to a folder you can use" if volume and path.is_relative_to(volume) else ""


def _of_text(error: UnicodeError) -> str:
    """Returns what is wrong and where, and nothing of the text itself, which may hold a token."""
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start + 1} is not text in {error.encoding}; save the file, or name things, in UTF-8"
    if isinstance(error, UnicodeEncodeError):
        character = error.object[error.start]
        kind = unicodedata.name(character, "no printable character")
        return (
            f"character {error.start + 1}, U+{ord(character):04X} ({kind}), cannot be written in {error.encoding}; "
            "name things in UTF-8, and give tokens, keys and addresses in ASCII"
        )
    return f"text that cannot be read ({type(error).__name__})"


# --- output -------------------------------------------------------------------------------------------------


def speak_utf8() -> None:
    """Has this program print any text, whatever the locale says: what would steer a terminal is escaped."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
        if stream is not None and not isinstance(stream, PlainStream):
            setattr(sys, name, PlainStream(stream, folds=name == "stderr"))


def plain(text: object) -> str:
    """Returns a text in which only line ends and tabs do anything; other control characters are shown, as in \\x1b."""
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


def one_line(text: object) -> str:
    """Returns a text from outside that is one part of a line of ours."""
    return " ".join(plain(text).split())


def folded(text: str, stream: TextIO) -> str:
    """Returns a text for a stream: on a terminal lines that are too long end between words, not at its edge.

    Indented lines stay whole, and so do commands, to be copied.
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
            joined = COMMAND.sub(lambda found: found[0].replace(" ", "\0"), line)
            parts = textwrap.wrap(joined, columns - 1, break_long_words=False, break_on_hyphens=False)
            lines[at] = "\n".join(parts).replace("\0", " ")
    return "\n".join(lines)


class PlainStream:
    """A text stream that shows control characters instead of sending them to a terminal.

    Text of a data set, a checkpoint or a service can then steer no terminal, whoever prints it. Libraries that draw
    write as they are; what `console` draws is plain too. `folds`: messages, whose lines end between words (`folded`).
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
    """Returns the stream for a program's own control sequences."""
    return stream.unfiltered if isinstance(stream, PlainStream) else stream


def console(**options: Any) -> Any:
    """Returns rich's Console for tables and progress: it shows control characters of the text that it draws."""
    from rich.console import Console  # here, for only few programs draw

    class PlainConsole(Console):
        def render(self, *arguments: Any, **named: Any) -> Iterator[Any]:
            for segment in super().render(*arguments, **named):
                yield segment if segment.control else segment._replace(text=plain(segment.text))

    return PlainConsole(**options)


def _has_no_reader(stream: object) -> bool:
    """Returns whether a stream leads into a pipe whose other end is closed."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLOUT)
        return any(event & select.POLLERR for _, event in poll.poll(0))
    except (OSError, ValueError, AttributeError):  # none at all, closed, or a test's
        return False


def _silence(stream: object) -> None:
    """Leads a stream into nothing, so that what it still holds is no error at the very end."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, stream.fileno())
    os.close(nothing)
