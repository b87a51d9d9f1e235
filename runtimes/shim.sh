# The functions that usher runs beside those of a shell module.

# usher_file is a path of the script that differs from $0. So a script that compares its path with
# $0, to run its main function only as a command, does not run it here.
usher_file=${0%/*}/./${0##*/}

# usher_is succeeds if the shell reports a name as a function. With LC_ALL=C, the report is in
# English. usher_is fails for commands that run their arguments, because some shells prefer them to
# a function of the same name.
usher_is() {
	case $1 in builtin | command | eval | exec) return 1 ;; esac
	case $(LC_ALL=C; command -V "$1" 2>/dev/null) in
	"$1 is a function"* | "$1 is a shell function"*) return 0 ;;
	esac
	return 1
}

# usher_list prints those of its arguments that are functions.
usher_list() {
	for usher_name do
		if usher_is "$usher_name"; then command echo "$usher_name"; fi
	done
}

# usher_found prints what usher_list found, unless the script ended.
usher_found() {
	case $usher_found in *usher_list*) command echo "$usher_found" && return ;; esac
	command echo 'it ends itself: move its commands below if [ "${BASH_SOURCE[0]}" = "$0" ]' >&2
	exit 1
}

# usher_call calls a function with arguments. The quotes around $@ keep the shell from reading the
# name as a reserved word or an alias.
usher_call() {
	if usher_is "$1"; then
		"$@"
	else
		command echo "the script defines no function $1" >&2
		exit 127
	fi
}
