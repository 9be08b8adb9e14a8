#!/usr/bin/env bash
# free_threaded.sh FOLDER: makes FOLDER/bin/python3, a Python without the GIL, and then FOLDER/made. It is python3.14t of the
# machine or, without one, 3.13 built from Debian's source in 2 to 5 minutes.
set -euo pipefail
folder=$1
rm -rf "$folder"
if found=$(command -v python3.14t); then
  mkdir -p "$folder/bin"
  ln -s "$(readlink -f "$found")" "$folder/bin/python3"
  touch "$folder/made"
  exit
fi

key=/usr/share/keyrings/debian-archive-keyring.gpg
if [ ! -e $key ] || ! command -v apt-get >/dev/null; then
  echo "Python 3.13 is built from Debian's source, which needs apt-get and $key." \
    "Install a python3.14t instead, as with: uv python install 3.14t" >&2
  exit 1
fi
headers="bzlib.h:libbz2-dev ffi.h:libffi-dev lzma.h:liblzma-dev openssl/ssl.h:libssl-dev sqlite3.h:libsqlite3-dev zlib.h:zlib1g-dev"
packages=
command -v dpkg-source >/dev/null || packages=dpkg-dev
command -v cc >/dev/null || packages="$packages gcc"
for each in $headers; do
  echo "#include <${each%:*}>" | cc -E - >/dev/null 2>&1 || packages="$packages ${each#*:}"
done
if [ -n "$packages" ] && ! { [ "$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq $packages >/dev/null; }; then
  echo "missing to build Python: $packages. Install with: sudo apt-get install -y $packages" >&2
  exit 1
fi

# Lists of its own: those of the system stay as they are.
mkdir -p "$folder.source/lists/partial" "$folder.source/cache/archives/partial"
cd "$folder.source"
mirror=$(apt-get indextargets --format '$(REPO_URI) $(ORIGIN) $(LABEL)' 'Created-By: Packages' |
  awk '$2 == "Debian" && $3 == "Debian" && !found { found = 1; print $1 }')
echo "deb-src [signed-by=$key] ${mirror:-http://deb.debian.org/debian} trixie main" >sources.list
apt() {
  apt-get -qq -o Dir::Etc::sourcelist="$PWD/sources.list" -o Dir::Etc::sourceparts=/dev/null -o Dir::State::lists="$PWD/lists" \
    -o Dir::Cache="$PWD/cache" -o APT::Sandbox::User= "$@"
}
rm -rf python3.13_* Python-3.13.*
if ! { apt update && apt source --download-only python3.13; }; then
  echo "cannot get the source of Python 3.13 from Debian trixie with apt-get. Install a python3.14t instead, as with:" \
    "uv python install 3.14t" >&2
  exit 1
fi
tar xf python3.13_3.13.*.orig.tar.xz
cd Python-3.13.*/
# A lock that is held yields the core 40 times before it waits, and each file that is closed waits for one: 9 files a second
# beside two busy processes. Python 3.14 does not.
if ! grep -q 'MAX_SPIN_COUNT = 40;' Python/lock.c; then
  echo "Python/lock.c of $PWD has no MAX_SPIN_COUNT = 40 to change; see scripts/free_threaded.sh" >&2
  exit 1
fi
sed -i 's/MAX_SPIN_COUNT = 40;/MAX_SPIN_COUNT = 0;/' Python/lock.c
{
  ./configure --quiet --prefix="$folder" --disable-gil --disable-test-modules --with-ensurepip=install &&
    make -j"$(nproc)" && make install
} >../build.log 2>&1 || { tail -20 ../build.log >&2; exit 1; }
touch "$folder/made"
rm -rf "$folder.source"
