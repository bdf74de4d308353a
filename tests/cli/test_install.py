#!/usr/bin/env python3
"""`cmake --install`: the program runs from its new place, and a data loader links the policies."""
import os
import pathlib
import subprocess
import tempfile
import unittest

BUILD = os.environ["EQUIPOISE_BUILD"]

CONSUMER = """cmake_minimum_required(VERSION 3.25)
project(loader LANGUAGES CXX)
find_package(equipoise 0.1 REQUIRED)
add_executable(loader loader.cpp)
target_link_libraries(loader PRIVATE equipoise::policies)
"""
# 10 tokens a pack, first fit of descending lengths: 7 | 6 4 | 5 4 1.
LOADER = """#include <iostream>

#include "policies/packing/pack_length.h"

int main() {
  const std::vector<std::int64_t> lengths = {4, 5, 6, 4, 1, 7};
  std::cout << equipoise::pack_ffd(lengths, 10).size() << '\\n';
}
"""


def output_of(*command, cwd=None):
    done = subprocess.run([str(word) for word in command], cwd=cwd, text=True, capture_output=True)
    assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = pathlib.Path(cls.folder.name)
        cls.prefix = cls.root / "prefix"
        output_of("cmake", "--install", BUILD, "--prefix", cls.prefix)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_the_program_finds_what_it_came_with(self):
        program = self.prefix / "bin/equipoise"
        share = self.prefix / "share/equipoise"
        # Where the sources are elsewhere, too: the installed files come first.
        marked = share / "traces/recorded/only-here.json"
        marked.write_text('{"trace": "only-here.txt", "documents": 3, "tokens": 9, "longest": 4}')
        self.assertIn("only-here.txt", output_of(program, "list", "traces", cwd=self.root))
        table = output_of(program, "study", share / "traces/studies/7b-128k.json", "--set", "batch.steps=2", cwd=self.root)
        self.assertIn("wlb-llm", table)
        self.assertTrue((self.prefix / "share/man/man1/equipoise.1").read_text().startswith(".TH EQUIPOISE 1"))

    def test_a_data_loader_links_the_policies(self):
        source = self.root / "consumer"
        source.mkdir()
        (source / "CMakeLists.txt").write_text(CONSUMER)
        (source / "loader.cpp").write_text(LOADER)
        output_of("cmake", "-G", "Ninja", "-S", source, "-B", source / "build", f"-DCMAKE_PREFIX_PATH={self.prefix}")
        output_of("cmake", "--build", source / "build")
        self.assertEqual(output_of(source / "build/loader"), "3\n")


if __name__ == "__main__":
    unittest.main()
