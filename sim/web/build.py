#!/usr/bin/env python3
"""Makes the page: build.py BUILD_FOLDER OUT. OUT/equipoise.html has the WebAssembly, the shipped profiles, presets, traces and
studies, packed as one gzip, and the scripts. It asks nothing of a network. OUT/equipoise is the same page for a server, with the
WebAssembly and the shipped files next to it, which a browser compiles while they arrive and keeps."""

import base64
import gzip
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MOST_BYTES = 2_500_000  # of the page as a server sends it, gzipped

# Where the program looks for what is shipped: as `cmake --install` places it, below /; traces and studies where a
# checkout has them, so that a study's paths hold in both.
FOLDERS = {
    "profiler/profiles": "/share/equipoise/profiles",
    "sim/framework/presets": "/share/equipoise/frameworks",
    "traces/recorded": "/traces/recorded",
    "traces/studies": "/traces/studies",
}
FILES = {
    "sim/framework/published_errors.json": "/share/equipoise/framework/published_errors.json",
    "sim/python/equipoise/importing/tables/linear_layers.json": "/share/equipoise/importing/tables/linear_layers.json",
}


def shipped():
    for folder, place in FOLDERS.items():
        for path in sorted((ROOT / folder).glob("*.*")):
            yield f"{place}/{path.name}", path.read_bytes()
    for file, place in FILES.items():
        yield place, (ROOT / file).read_bytes()


def archive(files):
    """The length of the index, the index, and the files, as simulator.js unpacks them."""
    files = list(files)
    index = json.dumps([[name, len(data)] for name, data in files]).encode()
    return b"".join([len(index).to_bytes(4, "little"), index, *(data for _, data in files)])


def gzipped(data):
    return gzip.compress(data, 9, mtime=0)


def page(build, packed, server):
    """The page, with what is shipped inside it, or the policy that lets it ask its own server for that."""
    text = lambda path: path.read_text(encoding="utf-8")
    worker = "\n".join([text(build / "sim/web/equipoise_web.js"), text(HERE / "simulator.js"), text(HERE / "worker.js")])
    report = ROOT / "sim/report/html"
    places = {
        "style": text(report / "page.css") + text(HERE / "page.css"),
        "archive": base64.b64encode(packed).decode(),
        "server": server,
        "worker": json.dumps(worker).replace("<", "\\u003c"),
        "scripts": "\n".join([text(report / "base.js"), text(HERE / "simulator.js"), text(HERE / "inputs.js"), text(HERE / "page.js")]),
    }
    parts = text(HERE / "page.html").split("{{")
    return (parts[0] + "".join(places[name] + rest for name, rest in (part.split("}}", 1) for part in parts[1:]))).encode()


def main():
    build, out = map(pathlib.Path, sys.argv[1:])
    wasm = (build / "sim/web/equipoise_web.wasm").read_bytes()
    made = page(build, gzipped(archive([("simulator.wasm", wasm), *shipped()])), "")
    size = len(gzipped(made))
    if size > MOST_BYTES:
        sys.exit(f"{out}: expected at most {MOST_BYTES:,} bytes gzipped, found {size:,}")
    folder = out / "equipoise"
    folder.mkdir(parents=True, exist_ok=True)
    (out / "equipoise.html").write_bytes(made)
    (folder / "index.html").write_bytes(page(build, b"", "; connect-src 'self'"))
    (folder / "simulator.wasm").write_bytes(wasm)
    (folder / "shipped.bin").write_bytes(gzipped(archive(shipped())))
    print(f"written: {out}/equipoise.html, {len(made):,} bytes, {size:,} gzipped; {folder}, for a server", file=sys.stderr)


if __name__ == "__main__":
    main()
