# Uses one.
one() { echo "hi $1"; }

# Uses all.
all() {
	printf '%s' "$@"
}

# Uses a part.
part() {
	echo ${2:-x}
}

# Documents it.
# @param {string} a
documented() { echo "$1"; }

# Uses none.
none() {
	awk '{
		print $1
	}' # $1
	echo "\$1" $# $$
}

# Uses none either.
single() { :; }

helper() { echo "$1"; }
