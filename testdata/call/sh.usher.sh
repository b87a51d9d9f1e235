# Fails.
f() {
	echo printed >&2
	return 3
}
