"""Checks that the code is written in the field's words: python tests/wording.py [--show FILE...].

It counts unclear phrases that read like a riddle (see `RIDDLES`), names that say nothing about their value
(`found`, `each`) and functions with a one-word name, in each room, and fails above the limits. `--show` lists the places.
"""

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Names of variables and parameters that say nothing about their value.
VAGUE_NAMES = frozenset(
    re.findall(r"\w+", "found some given known each told how whole held those others other end begin go look what them both")
)
RIDDLES = re.compile(
    r"\b(so many|of which|of whom|at which|in which|by which|(?:is|are) none\b|is no\b"
    r"|what (?:it|they|he|is|are|was|were|has|have|had|a|an|the|else|comes?|came)\b|says? that|said that|is told"
    r"|such (?:a|an|rows?|labels?)|whoever|whatever|as it (?:is|was)|goes on|go on|at hand)\b",
    re.IGNORECASE,
)
INLINE_CODE = re.compile(r"`[^`]*`")
MAX_RIDDLES = 6.0  # per 1,000 lines of docstrings, comments or pages; well-known libraries have 1 to 6
MAX_VAGUE_NAMES = 4.0  # per 1,000 lines of code
MAX_VAGUE_NAMES_IN_TESTS = 8.0
MAX_ONE_WORD_NAMES = 0.26  # of the package's functions
#: Number of folders that make up the name of a room.
ROOM_DEPTHS = {"streamsvm": 2, "connectors": 2}
PACKAGES = ("streamsvm", "connectors")
BLANK_TOKENS = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


@dataclass(frozen=True)
class Place:
    """A line of a file with a riddle or a vague name."""

    file: str
    line: int
    problem: str


def find_docstrings(nodes):
    """Return the string nodes that are docstrings, those below attributes included."""
    bodies = (node.body for node in nodes if isinstance(getattr(node, "body", None), list))
    statements = (statement for body in bodies for statement in body if isinstance(statement, ast.Expr))
    return [s.value for s in statements if isinstance(s.value, ast.Constant) and isinstance(s.value.value, str)]


def find_riddles(file, lines):
    """Yield a `Place` for each riddle in a mapping of line numbers to prose."""
    for number, text in lines.items():
        for match in RIDDLES.finditer(text):
            yield Place(file, number, f"riddle: {match.group()!r}")


def find_vague_names(file, nodes):
    """Yield a `Place` for each assigned variable and each parameter with a vague name."""
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in VAGUE_NAMES:
            yield Place(file, node.lineno, f"vague name: {node.id}")
        elif isinstance(node, ast.arg) and node.arg in VAGUE_NAMES:
            yield Place(file, node.lineno, f"vague name: {node.arg}")


def measure_code(file, text):
    """Return the counts of a Python file, and the places of its riddles and vague names."""
    nodes, lines = list(ast.walk(ast.parse(text))), text.splitlines()
    prose = {
        number: lines[number - 1]
        for docstring in find_docstrings(nodes)
        for number in range(docstring.lineno, docstring.end_lineno + 1)
    }
    code = set()
    n_comments = 0
    comments = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments[token.start[0]] = token.string
            n_comments += 1
        elif token.type not in BLANK_TOKENS:
            code.update(range(token.start[0], token.end[0] + 1))
    functions = [
        node.name
        for node in nodes
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("__")
    ]
    riddles = [*find_riddles(file, prose), *find_riddles(file, comments)]
    vague = list(find_vague_names(file, nodes))
    counts = Counter(
        code=len(code - set(prose)),
        prose=len(prose) + n_comments,
        functions=len(functions),
        one_word=sum("_" not in name.strip("_") for name in functions),
        riddles=len(riddles),
        vague=len(vague),
    )
    return counts, riddles + vague


def measure_page(file, text):
    """Return the counts of a Markdown page, and the places of its riddles; code and inline code do not count."""
    prose, in_code = {}, False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif line.strip() and not in_code:
            prose[number] = INLINE_CODE.sub("", line)
    riddles = list(find_riddles(file, prose))
    return Counter(prose=len(prose), riddles=len(riddles)), riddles


def measure_file(file):
    """Return the counts of a file, and the places of its riddles and vague names."""
    measure = measure_code if file.endswith(".py") else measure_page
    return measure(file, (ROOT / file).read_text())


def find_room(file):
    """Return the room that a file belongs to: ``pages`` for Markdown, otherwise its topmost folders."""
    if file.endswith(".md"):
        return "pages"
    folders = Path(file).parts[:-1]
    return "/".join(folders[: ROOM_DEPTHS.get(folders[0], 1)]) if folders else "."


def check_room(room, counts):
    """Return a message for each limit that a room exceeds."""
    riddles = 1000 * counts["riddles"] / max(counts["prose"], 1)
    vague = 1000 * counts["vague"] / max(counts["code"], 1)
    one_word = counts["one_word"] / max(counts["functions"], 1)
    max_vague = MAX_VAGUE_NAMES_IN_TESTS if room == "tests" else MAX_VAGUE_NAMES
    print(f"{room:30} {counts['code']:6} {counts['prose']:6} {riddles:8.1f} {vague:6.1f} {one_word:9.0%}")
    problems = []
    if riddles > MAX_RIDDLES:
        problems.append(f"{room}: {riddles:.1f} riddles in 1,000 lines of prose exceed {MAX_RIDDLES:g}")
    if vague > max_vague:
        problems.append(f"{room}: {vague:.1f} vague names in 1,000 lines of code exceed {max_vague:g}")
    if room == "product" and one_word > MAX_ONE_WORD_NAMES:
        problems.append(f"{room}: {one_word:.0%} of functions with a one-word name exceed {MAX_ONE_WORD_NAMES:.0%}")
    return problems


def main():
    """Print the counts of all rooms, or the places in some files; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--show", nargs="+", metavar="FILE", help="list the riddles and vague names of these files")
    arguments = parser.parse_args()
    if arguments.show:
        for file in arguments.show:
            for place in measure_file(file)[1]:
                print(f"{place.file}:{place.line}: {place.problem}")
        return 0
    command = ["git", "ls-files", "*.py", "*.md"]
    files = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    rooms = defaultdict(Counter)
    for file in files:
        counts = measure_file(file)[0]
        rooms[find_room(file)].update(counts)
        if file.startswith(PACKAGES) and file.endswith(".py"):
            rooms["product"].update(counts)
    print(f"{'room':30} {'code':>6} {'prose':>6} {'riddles':>8} {'vague':>6} {'one word':>9}")
    problems = [problem for room in sorted(rooms) for problem in check_room(room, rooms[room])]
    print("\n".join(problems))
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
