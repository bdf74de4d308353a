#!/usr/bin/env bash
# Records the shipped traces (traces/recorded/) again: fetches the Debian packages below, unpacks them under build/, and
# tokenises their text with traces/record.py. Needs Debian 12 with apt sources and pip; 6 GB of disk; about ten minutes on
# two cores. The lengths change when Debian updates a package: the sidecars say which versions were recorded.
set -euo pipefail
cd "$(dirname "$0")/.."

work=build/record
venv=$work/venv
out=${1:-traces/recorded}
jobs=${JOBS:-$(nproc)}

linux=(linux-source-6.1)
code=(golang-1.19-src rust-src libboost1.81-dev erlang-src fpc-source-3.2.2)
docs=(anarchism apache2-doc bible-kjv-text binutils-doc cmake-doc debian-handbook debian-policy debian-reference-en
  developers-reference dict-gcide erlang-doc fp-docs-3.2.2 freebsd-manpages ghc-doc gimp-help-en gnuplot-doc harden-doc
  libreoffice-help-en-us llvm-14-doc maint-guide manpages manpages-de manpages-dev manpages-fr maxima-doc nodejs-doc
  octave-doc openjdk-17-doc perl-doc postgresql-doc-15 python-pandas-doc python3.11-doc qtbase5-doc-html r-doc-html
  rust-doc sqlite3-doc vim-runtime)

mkdir -p "$work/debs" "$work/text" "$out"
if [ ! -x "$venv/bin/python" ]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet tiktoken==0.14.0 zstandard==0.25.0
  "$venv/bin/pip" install --quiet --no-deps llama-models==0.3.0  # only its tokenizer file is used
fi

unpack() { # package: its files below $work/text/package
  local package=$1 target=$work/text/$1
  [ -e "$target/.version" ] && return
  rm -rf "$target" "$work/debs/${package}"_*.deb
  (cd "$work/debs" && apt-get download --quiet "$package" 2>/dev/null)
  mkdir -p "$target"
  dpkg-deb -x "$work/debs/${package}"_*.deb "$target"
  find "$target" -name 'linux-source-*.tar.xz' -execdir tar xf {} \; -delete
  dpkg-deb -f "$work/debs/${package}"_*.deb Version > "$target/.version"
}

sources() { # packages: LABEL=PATH arguments, labelled with the version
  local package
  for package in "$@"; do
    unpack "$package" >&2
    echo "$package $(cat "$work/text/$package/.version")=$work/text/$package"
  done
}

record() { # name, options..., then sources on stdin
  local name=$1
  shift
  mapfile -t inputs
  "$venv/bin/python" traces/record.py "${inputs[@]}" --out "$out/$name.txt.zst" --jobs "$jobs" "$@"
}

sources "${linux[@]}" | record linux-source --exclude '*/usr/share/*' --exclude '*/.version'
sources "${code[@]}" | record debian-code --exclude '*/usr/share/doc/*' --exclude '*/usr/share/lintian/*' --exclude '*/.version'
sources "${docs[@]}" | record debian-docs --html --include '*.html' --include '*.htm' --include '*.txt' --include '*.md' \
  --include '*.pod' --include '*.rst' --include '*.gz' --include '*.dz' --exclude '*/_sources/*'

# What the studies use: equal thirds of the tokens until the documentation runs out. Documents above 1M tokens (register
# headers, dictionaries, changelogs) are excluded, as corpora exclude files above a size.
if [ -x build/release/bin/equipoise ]; then
  (cd "$out" && "$OLDPWD/build/release/bin/equipoise" trace convert linux-source.txt.zst debian-code.txt.zst \
    debian-docs.txt.zst --weights 1,1,1 --longest 1M --seed 0 --out mixed.txt.zst)
fi
