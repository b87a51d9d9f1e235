# Says it.
# @param {string} text what
say() { printf 'said %s' "$1"; }

# Tests it. The name is also a command's.
# @param {string} text what
test() { printf 'tested %s' "$1"; }

# Prints it.
# @param {string} text what
echo() { printf 'printed %s' "$1"; }

# Runs it.
# @param {string} text what
builtin() { printf '%s' "$1"; }

# Is defined in some calls only.
# @param {string} text what
touch() { printf 'touched %s' "$1"; }
read line
case $line in *gone*) unset -f touch ;; esac

cat <<X
# Makes a folder.
# @param {string} text which
mkdir() {
X
