#!/usr/bin/env python3
"""The module's types: the stub of its C++ side says what is there, every public function says what it takes and gives,
and a type checker sees a wrong argument."""

import ast
import importlib.util
import inspect
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import equipoise
from equipoise import _core

PACKAGE = Path(equipoise.__file__).parent


def public(names):
    return {name for name in names if not name.startswith("_")}


class Types(unittest.TestCase):
    def test_the_stub_declares_what_the_c_side_has(self):
        self.assertTrue((PACKAGE / "py.typed").exists())
        tree = ast.parse((PACKAGE / "_core.pyi").read_text(encoding="utf-8"))
        declared = {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        values = {name.id for node in tree.body if isinstance(node, (ast.AnnAssign, ast.Assign))
                  for name in ([node.target] if isinstance(node, ast.AnnAssign) else node.targets) if isinstance(name, ast.Name)}
        self.assertEqual(public(declared) | public(values), public(dir(_core)))
        for name, node in declared.items():
            if isinstance(node, ast.ClassDef):
                members = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
                self.assertEqual(public(members), public(vars(getattr(_core, name))), name)
                for part in node.body:
                    if isinstance(part, ast.FunctionDef) and part.name in vars(getattr(_core, name)):
                        self.assert_same_arguments(part, getattr(getattr(_core, name), part.name))
            else:
                self.assert_same_arguments(node, getattr(_core, name))
        untyped = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
                   and any(a.annotation is None for a in node.args.args if a.arg not in ("self", "arg", "cls"))]
        self.assertEqual(untyped, [])

    def assert_same_arguments(self, declared, function):
        """The stub's arguments and defaults are those of the signature that the function itself prints."""
        if not hasattr(function, "__nb_signature__"):
            return  # a property
        (signature, _, defaults), = function.__nb_signature__
        signature = re.sub(r"ndarray\[[^\]]*\]", "ndarray", signature)
        own = ast.parse(re.sub(r"\\\d+", "...", signature) + ": ...").body[0]
        self.assertEqual([a.arg for a in declared.args.args], [a.arg for a in own.args.args], declared.name)
        self.assertEqual(len(declared.args.defaults), len(own.args.defaults), declared.name)
        self.assertEqual([ast.literal_eval(value) for value in declared.args.defaults], list(defaults or ()), declared.name)

    def test_public_functions_say_what_they_take(self):
        for name in equipoise.__all__:
            thing = getattr(equipoise, name)
            functions = [thing] if inspect.isfunction(thing) else []
            if inspect.isclass(thing):
                functions = [f for part, f in vars(thing).items() if inspect.isfunction(f) and not part.startswith("_")]
            for f in functions:
                signature = inspect.signature(f)
                bare = [p.name for p in signature.parameters.values() if p.annotation is p.empty and p.name != "self"]
                self.assertEqual(bare, [], f"{name}.{f.__name__}")
                self.assertIsNot(signature.return_annotation, inspect.Signature.empty, f"{name}.{f.__name__}")

    @unittest.skipUnless(importlib.util.find_spec("mypy"), "no mypy here (pip install mypy)")
    def test_a_type_checker_sees_a_wrong_argument(self):
        lines = [
            "import equipoise",
            "result = equipoise.study('study.json', jobs=2)",
            "rate: float = result.frame()['mfu'].max()",
            "best = equipoise.tune('study.json', max_delay=0.5).best",
            "sampler = equipoise.BatchSampler([1, 2], 'wlb', lanes=1)",
            "equipoise.study('study.json', jobs='two')  # wrong",
            "equipoise.study('study.json', no_such=1)  # wrong",
            "equipoise.BatchSampler([1, 2], equipoise.policy(lambda lengths, options: []))",
            "equipoise.pack([1, 2], lambda lengths, options: [])",
            "equipoise.BatchSampler([1, 2], 3)  # wrong",
            "equipoise.pack([1, 2], 3)  # wrong",
            "equipoise.tune('study.json', max_delay=(0.5, 20))",
            "equipoise.tune('study.json', max_delay='20')  # wrong",
            *(["from torch.utils.data import DataLoader", "DataLoader(equipoise.packed.PackedDataset([]), batch_sampler=sampler)"]
              if importlib.util.find_spec("torch") else []),
        ]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "user.py"
            file.write_text("\n".join(lines) + "\n", encoding="utf-8")
            done = subprocess.run([sys.executable, "-m", "mypy", "--ignore-missing-imports", "--no-error-summary", str(file)],
                                  capture_output=True, text=True, cwd=folder)
        found = {int(line.split(":")[1]) for line in done.stdout.splitlines() if line.startswith("user.py:") and ": error:" in line}
        self.assertEqual(found, {n for n, line in enumerate(lines, 1) if "# wrong" in line}, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
