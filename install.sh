#!/bin/sh
# Installs usher from a release: downloads the program for this system, checks its SHA-256
# and puts it into ~/.local/bin, or into the folder $USHER_BIN.
set -eu
url=${RELEASE_URL:-} # the folder of the release's files; ./release writes its address here

die() { echo "install.sh: $*" >&2; exit 1; }

# fetch downloads the file $1 of the release into the folder $tmp.
fetch() {
	if command -v curl > /dev/null; then curl -fsL -o "$tmp/$1" "$url/$1"; else wget -qO "$tmp/$1" "$url/$1"; fi \
		2> /dev/null || die "can't download $url/$1 with curl or wget"
}

# In a function, so that sh runs nothing of an incomplete script.
main() {
	[ -n "$url" ] || die "set RELEASE_URL to the address of a release: the folder that contains SHA256SUMS"
	case $(uname -s) in Linux) os=linux ;; Darwin) os=darwin ;; *) os=$(uname -s) ;; esac
	case $(uname -m) in x86_64) arch=amd64 ;; aarch64) arch=arm64 ;; *) arch=$(uname -m) ;; esac
	bin=${USHER_BIN:-$HOME/.local/bin}
	{ mkdir -p "$bin" && tmp=$(mktemp -d "$bin/.usher.XXXXXX"); } 2> /dev/null ||
		die "can't write to $bin: set USHER_BIN to another folder"
	trap 'rm -rf "$tmp"' EXIT
	trap 'exit 1' INT TERM
	fetch SHA256SUMS
	name=$(sed -n "s/^[0-9a-f]*  \(usher-[0-9.]*-$os-$arch\)\$/\1/p" "$tmp/SHA256SUMS")
	[ -n "$name" ] || die "this release has no program for $os/$arch: see SHA256SUMS, or build usher from source"
	fetch "$name"
	sum=sha256sum
	command -v sha256sum > /dev/null || sum='shasum -a 256'
	(cd "$tmp" && grep "  $name\$" SHA256SUMS | $sum -c) > /dev/null 2>&1 ||
		die "the SHA-256 of $url/$name is not the one in SHA256SUMS: installed nothing"
	[ ! -d "$bin/usher" ] || die "$bin/usher is a folder: remove it, or set USHER_BIN to another folder"
	chmod 755 "$tmp/$name"
	mv -f "$tmp/$name" "$bin/usher"
	echo "Installed $name as $bin/usher"
	case ":$PATH:" in *":$bin:"*) ;; *) echo "To find it, add this to ~/.profile: export PATH=\"$bin:\$PATH\"" ;; esac
}
main
