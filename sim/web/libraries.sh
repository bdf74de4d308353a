#!/usr/bin/env bash
# What the preset `web` links and includes, in build/web-libraries: zlib and zstd compiled for WebAssembly from Debian's
# sources, and the headers that hold for every processor. It takes what is there already.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$PWD/build/web-libraries
[ -e "$folder/complete" ] && exit
rm -rf "$folder"
mkdir -p "$folder"/{include,lib,share/cmake,apt/lists/partial,apt/cache,apt/sources}

for header in boost nlohmann; do ln -s "/usr/include/$header" "$folder/include/"; done
cp -r /usr/share/cmake/nlohmann_json "$folder/share/cmake/"

# Sources of the release that runs here, by lists of our own: the system's stay as they are.
cd "$folder/apt"
for list in /etc/apt/sources.list.d/{debian,ubuntu}.sources; do
  if [ -e "$list" ]; then sed 's/^Types:.*/Types: deb-src/' "$list" >"sources/${list##*/}"; fi
done
if [ -s /etc/apt/sources.list ]; then sed -n 's/^deb /deb-src /p' /etc/apt/sources.list >sources/own.list; fi
options=(-qq -o APT::Sandbox::User="$(id -un)" -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$PWD/sources" -o "Dir::State::lists=$PWD/lists" -o "Dir::Cache=$PWD/cache")
release=$(. /etc/os-release && echo "$VERSION_CODENAME")
apt-get "${options[@]}" update
apt-get "${options[@]}" source --download-only "zlib/$release" "libzstd/$release"

# library NAME FOLDER FILE...: an archive of the package's C files.
library() {
  local name=$1 source=$2 file
  mkdir "$name"
  tar --extract --strip-components=1 --directory "$name" --file "$source"*.orig.tar.*[2z]
  for file in $(cd "$name" && ls ${@:3}); do
    emcc -O2 -DZSTD_DISABLE_ASM -DHAVE_UNISTD_H -c "$name/$file" -o "$name/$(basename "$file" .c).o"
  done
  emar rc "$folder/lib/lib$name.a" "$name"/*.o
}
library z zlib_ {adler32,crc32,deflate,gzclose,gzlib,gzread,gzwrite,inffast,inflate,inftrees,trees,zutil}.c
library zstd libzstd_ 'lib/common/*.c' 'lib/compress/*.c' 'lib/decompress/*.c'
cp z/zlib.h z/zconf.h zstd/lib/zstd.h zstd/lib/zstd_errors.h "$folder/include/"
rm -rf "$folder/apt"
touch "$folder/complete"
