"""Find sources of randomness in a module's text: imports, names, attributes, and detours."""

from __future__ import annotations

import ast

# Every import of these modules counts; opendp's samplers are wrapped by the noise sampler.
MODULES = ("random", "secrets", "opendp", "numpy.random", "scipy.stats", "sklearn.utils.random")
# Functions elsewhere, by full name and by last name: `x.urandom`, for any x.
FUNCTIONS = {"os.urandom", "os.getrandom", "uuid.uuid1", "uuid.uuid4", "ssl.RAND_bytes"}
FUNCTIONS |= {"random.SystemRandom", "sklearn.utils.check_random_state"}
LAST_NAMES = {name.rpartition(".")[2] for name in FUNCTIONS} | {"default_rng", "getrandbits", "random_raw"}
LAST_NAMES |= {"random_sample", "RandomState", "rvs", "token_bytes", "token_hex", "token_urlsafe"}
DEVICES = ("/dev/random", "/dev/urandom", "/dev/hwrng")
# Here a name or code is a string: each use needs a manual check.
INDIRECT = {"__import__", "eval", "exec", "compile", "importlib.reload", "sys.modules"}
IMPORTERS = ("import_module", "find_spec")
# Types that annotations may name, without drawing from them.
TYPES = {"numpy.random.Generator"}


def randomness_in(source: str) -> set[str]:
    """Return every source of randomness that a module imports, names or could hide."""
    tree = ast.parse(source)
    search = _Search(tree)
    search.visit(tree)
    return search.found


def _forbidden(name: str) -> bool:
    return name in FUNCTIONS or any(name == m or name.startswith(f"{m}.") for m in MODULES)


class _Search(ast.NodeVisitor):
    def __init__(self, tree: ast.AST) -> None:
        self.found: set[str] = set()
        self.names: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for a in node.names:
                    first = a.name.partition(".")[0]
                    self.names[a.asname or first] = a.name if a.asname else first
            elif isinstance(node, ast.ImportFrom) and not node.level:
                self.names |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}

    def visit_Import(self, node: ast.Import) -> None:
        self.found |= {a.name for a in node.names if _forbidden(a.name)}

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.level:
            return
        module = node.module or ""
        for name in (f"{module}.{a.name}" for a in node.names):
            if (_forbidden(module) or _forbidden(name)) and name not in TYPES:
                self.found.add(name)
            # A star import of numpy, scipy or os includes their forbidden names.
            if name.endswith(".*") and any(m.startswith(f"{module}.") for m in (*MODULES, *FUNCTIONS)):
                self.found.add(name)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        name = self._full_name(node)
        if name in TYPES:
            return
        if _forbidden(name) or node.attr in LAST_NAMES or name in INDIRECT:
            self.found.add(name)
            # The prefix of the same chain, numpy.random, does not count again.
            if not name.startswith("?"):
                return
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        name = self.names.get(node.id, node.id)
        if name in INDIRECT or (_forbidden(name) and node.id in self.names and name not in TYPES):
            self.found.add(name)

    def visit_Call(self, node: ast.Call) -> None:
        name = self._full_name(node.func)
        constant = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
        if name in TYPES:
            self.found.add(f"{name}()")
        known = isinstance(constant, str) and not _forbidden(constant)
        if name.rpartition(".")[2] in IMPORTERS and not known:
            self.found.add(f"{name}({constant!r})")
        if name in {"getattr", "operator.attrgetter"}:
            asked = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            roots = {self._full_name(a) for a in node.args[:1]}
            full = {f"{root}.{a}": a for root in roots for a in asked}
            self.found |= {name for name, a in full.items() if a in LAST_NAMES or _forbidden(name)}
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and node.value.startswith(DEVICES):
            self.found.add(node.value)

    def _full_name(self, node: ast.expr) -> str:
        if isinstance(node, ast.Attribute):
            return f"{self._full_name(node.value)}.{node.attr}"
        return self.names.get(node.id, node.id) if isinstance(node, ast.Name) else "?"


SAMPLERS = {"noise_sampler", "replace_noise_sampler", "NoiseSampler", "_sampler"}


def names_in(source: str) -> set[str]:
    """Return every name that a module uses, imports or takes as an attribute."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom):
            found |= {a.name for a in node.names}
    return found
