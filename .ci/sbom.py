#!/usr/bin/env python3
"""What a release is made of, as SPDX 2.3 JSON: sbom.py BUILD_FOLDER [--out FILE].

Installs the build into a folder of its own and lists each file with its SHA-256, the Debian packages whose shared libraries
the program and its modules load, those whose headers were compiled in, the compiler, and the locked set that wheels are built
with. Everything comes from this machine: CMake's cache, ninja's record of headers, dpkg and the lock. The same build gives the
same bytes: the date is that of the last commit, or SOURCE_DATE_EPOCH."""
import argparse
import datetime
import hashlib
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
LOCK = ROOT / "sim/python/wheel.lock"


def output_of(*command):
    return subprocess.run([str(word) for word in command], check=True, text=True, capture_output=True).stdout


def owners_of(paths):
    """The Debian package that each file came with: None for a file of no package. Where /lib is a link to /usr/lib, dpkg may know
    either name."""
    names = {path: [name for real in (path, os.path.realpath(path)) for name in (real, real.removeprefix("/usr"))] for path in paths}
    wanted = sorted({name for each in names.values() for name in each})
    found = subprocess.run(["dpkg-query", "--search", *wanted], text=True, capture_output=True) if wanted else None
    known = dict(reversed(line.split(": ", 1)) for line in found.stdout.splitlines()) if found else {}
    owners = {path: next((known[name] for name in each if name in known), None) for path, each in names.items()}
    return {path: owner and owner.split(",")[0].split(":")[0] for path, owner in owners.items()}


def debian_package(name):
    version, source, architecture = output_of(
        "dpkg-query", "--show", "--showformat=${Version}\t${source:Package}\t${Architecture}\n", name).splitlines()[0].split("\t")
    copyright_file = pathlib.Path("/usr/share/doc", name, "copyright")
    found = re.findall(r"^License: *(\S.*)$", copyright_file.read_text(errors="replace"), re.M) if copyright_file.exists() else []
    vendor = platform.freedesktop_os_release()["ID"]  # debian, ubuntu
    return package(f"deb-{name}", name, version, purl=f"pkg:deb/{vendor}/{source}@{version}?arch={architecture}",
                   comment="Licences of its files, as Debian names them: " + (", ".join(sorted(set(found))) or "see its copyright file"))


def package(identity, name, version, purl=None, comment=None, licence="NOASSERTION"):
    made = {"SPDXID": "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", identity), "name": name, "versionInfo": version,
            "downloadLocation": "NOASSERTION", "filesAnalyzed": False, "licenseConcluded": licence,
            "licenseDeclared": licence, "copyrightText": "NOASSERTION"}
    if purl:
        made["externalRefs"] = [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}]
    if comment:
        made["comment"] = comment
    return made


def stray_library(path):
    """A library that came with no Debian package (CUDA's may), by its file: its name on disk says its version."""
    file = pathlib.Path(os.path.realpath(path))
    made = package(f"library-{pathlib.Path(path).name}", pathlib.Path(path).name.split(".so")[0], file.name.split(".so.")[-1],
                   comment="No Debian package holds it; not part of the release")
    return {**made, "checksums": [{"algorithm": "SHA256", "checksumValue": hashlib.sha256(file.read_bytes()).hexdigest()}]}


def loaded_libraries(binaries):
    """Paths of the shared libraries that the dynamic linker finds for the binaries."""
    lines = "".join(output_of("ldd", binary) for binary in binaries).splitlines()
    return sorted({found.group(1) for line in lines if (found := re.search(r"=> (/\S+)", line))})


def compiled_headers(build):
    """System headers that any object of the product was made from (ninja records them)."""
    headers, ours = set(), False
    for line in output_of("ninja", "-C", build, "-t", "deps").splitlines():
        if not line.startswith(" "):
            ours = line.endswith("(VALID)") and not line.startswith("tests/")
        elif ours and re.search("usr/(include|lib)/", line):  # ccache may make paths relative
            headers.add(os.path.normpath(build / line.strip()))
    return sorted(headers)


def cached(build, key):
    found = re.search(rf"^{key}:[A-Z]+=(.*)$", (build / "CMakeCache.txt").read_text(), re.M)
    return found.group(1) if found else ""


def locked_packages():
    text = LOCK.read_text()
    return [package(f"wheel-{name}", name, version, purl=f"pkg:pypi/{name}@{version}",
                    comment="Builds the wheel; its archive has one of the SHA-256 in sim/python/wheel.lock")
            for name, version in re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.M)]


def release_date():
    seconds = os.environ.get("SOURCE_DATE_EPOCH") or output_of("git", "-C", ROOT, "log", "-1", "--format=%ct").strip()
    return datetime.datetime.fromtimestamp(int(seconds), datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def bill(build, prefix):
    version = re.search(r"project\(equipoise VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
    files = sorted(file for file in prefix.rglob("*") if file.is_file())
    binaries = [file for file in files if file.parent.name == "bin" or ".so" in file.suffixes]
    release = package("release", "equipoise", version, licence="Apache-2.0")
    release["filesAnalyzed"] = True
    listed, sums = [], []
    for file in files:
        content = file.read_bytes()
        name = "./" + file.relative_to(prefix).as_posix()
        sums.append(hashlib.sha1(content).hexdigest())
        listed.append({"SPDXID": f"SPDXRef-file-{len(listed)}", "fileName": name, "licenseConcluded": "Apache-2.0",
                       "copyrightText": "NOASSERTION",
                       "checksums": [{"algorithm": "SHA1", "checksumValue": sums[-1]},
                                     {"algorithm": "SHA256", "checksumValue": hashlib.sha256(content).hexdigest()}]})
    release["packageVerificationCode"] = {"packageVerificationCodeValue": hashlib.sha1("".join(sorted(sums)).encode()).hexdigest()}
    release["hasFiles"] = [file["SPDXID"] for file in listed]
    libraries = owners_of(loaded_libraries(binaries))
    strays = [path for path, owner in libraries.items() if owner is None]
    runtime = sorted(set(libraries.values()) - {None})
    headers = sorted(set(owners_of(compiled_headers(build)).values()) - {None, *runtime})
    compiler = owners_of([os.path.realpath(cached(build, "CMAKE_CXX_COMPILER"))]).popitem()[1]
    packages, related = [release], [("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-release")]
    seen = set()
    for names, relation in ((runtime, "DEPENDS_ON"), (headers, "STATIC_LINK"), ([compiler] if compiler else [], "BUILD_TOOL_OF")):
        for name in names:
            made = debian_package(name)
            ends = (made["SPDXID"], "SPDXRef-release") if relation == "BUILD_TOOL_OF" else ("SPDXRef-release", made["SPDXID"])
            related.append((ends[0], relation, ends[1]))
            if name not in seen:
                packages.append(made)
            seen.add(name)
    for path in strays:
        packages.append(stray_library(path))
        related.append(("SPDXRef-release", "DEPENDS_ON", packages[-1]["SPDXID"]))
    for made in locked_packages():
        packages.append(made)
        related.append((made["SPDXID"], "BUILD_TOOL_OF", "SPDXRef-release"))
    document = {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"equipoise-{version}",
                "creationInfo": {"created": release_date(), "creators": ["Tool: equipoise-sbom"]},
                "packages": packages, "files": listed,
                "relationships": [{"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}
                                  for one, kind, other in related]}
    identity = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:32]
    return {**document, "documentNamespace": f"urn:equipoise:{version}:{identity}"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    if not (options.build / "CMakeCache.txt").exists():
        sys.exit(f"sbom.py: {options.build}: expected a folder that CMake has built, found no CMakeCache.txt")
    with tempfile.TemporaryDirectory() as folder:
        output_of("cmake", "--install", options.build, "--prefix", folder)
        text = json.dumps(bill(options.build.resolve(), pathlib.Path(folder)), indent=1) + "\n"
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
