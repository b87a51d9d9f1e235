#!/usr/bin/env bash
# Runs the official conformance suite against an usher that hosts fixture/: both
# versions of the protocol against one daemon, one after the other and at the same time,
# then all of it again through a claim. $USHER names an existing usher; without it, the
# script builds one. The suite's records stay in out/.
set -euo pipefail

# want REVISION prints how many of the scenarios that the suite scores must pass, and how
# many of their checks.
want() {
  case $1 in
  2026-07-28) echo 37 121 ;;
  2025-11-25) echo 30 70 ;;
  esac
}
unscored="server-session-lifecycle:2025-11-25
json-schema-2020-12:2025-11-25
json-schema-2020-12:2026-07-28
http-header-validation:2026-07-28
http-custom-header-server-validation:2026-07-28"
modules=8 # in fixture/

usher=${USHER:+$(realpath "$USHER")}
cd "$(dirname "$0")"
tmp=$(cd "$(mktemp -d)" && pwd -P)
daemons=() failed=0
finish() {
  for pid in "${daemons[@]}"; do kill "$pid" 2>/dev/null && wait "$pid" || true; done
  daemons=()
}
trap 'finish; rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM

[ -n "$usher" ] || { usher=$tmp/usher && go build -C .. -o "$usher" .; }
[ -x node_modules/node/bin/node ] && [ node_modules/.package-lock.json -nt package-lock.json ] ||
  npm ci --silent --no-audit --no-fund
export PATH=$PWD/node_modules/node/bin:$PATH # also for the fixture
suite=(node node_modules/@modelcontextprotocol/conformance/dist/index.js server)
cp -R fixture "$tmp/fixture"
mkdir "$tmp/fixture/empty"
export FIXTURE=$tmp/fixture # appears in the command line of all its processes
rm -rf out

say() { printf '%-42s %s\n' "$1" "$2"; }
fail() { failed=1 && say "$1" "FAILED${2:+: $2}"; }

# serve NAME FLAG… starts a daemon, waits until all modules are ready, and sets url.
serve() {
  local log=$tmp/$1 && shift
  "$usher" serve -addr 127.0.0.1:0 -base "$log.base" "$@" "$FIXTURE" >"$log.out" 2>"$log.log" &
  daemons+=($!)
  for ((i = 0; i < 600; i++)); do
    kill -0 $! 2>/dev/null || { cat "$log.log" && exit 1; }
    ! grep -q 'modules are ready' "$log.log" || break
    sleep 0.1
  done
  url=$(sed -n 's/.* msg=listening .* url=\([^ ]*\).*/\1/p' "$log.log")
  [ "$(grep -c 'msg="module added"' "$log.log")" = $modules ] ||
    { fail modules && grep 'msg="module failed"' "$log.log" || true; }
}

# required LABEL URL REVISION runs a requirement set. It ignores the suite's exit status,
# because the suite counts scenarios that did not begin as passed.
required() {
  local out="out/$1" start=$SECONDS
  mkdir -p out && "${suite[@]}" --url "$2" --requirements "$3" -o "$out" >"$out.txt" 2>&1 || true
  read -r scenarios checks warnings < <(node tally.mjs "$out" "$3" 2>"$out.bad") || true
  read -r all_scenarios all_checks < <(want "$3")
  say "$1" "scenarios ${scenarios:=0}/$all_scenarios  checks ${checks:=0}/$all_checks  warnings ${warnings:-?}  $((SECONDS - start)) s"
  head -n 8 "$out.bad"
  (($(wc -l <"$out.bad") <= 8)) || echo "    and more, in $out.bad"
  # A client with a claim has no roots, which two scenarios need: nothing else may be missing.
  local roots=0
  if [[ $1 = claim-*2026-07-28 ]] && ! grep -qv 'lacks the capability roots' "$out.bad"; then
    roots=2
  fi
  ((scenarios >= all_scenarios - roots && checks >= all_checks - 2 * roots))
}

# all NAME URL makes every run of the suite against one daemon.
all() {
  required "$1-2026-07-28" "$2" 2026-07-28 || failed=1
  required "$1-2025-11-25" "$2" 2025-11-25 || failed=1
  required "$1-both-2026-07-28" "$2" 2026-07-28 >out/both & local both=$!
  required "$1-both-2025-11-25" "$2" 2025-11-25 || failed=1
  wait $both || failed=1
  cat out/both
  for one in $unscored; do
    # Two scenarios drop the query of their URL, and with it the claim code.
    [[ $1 != claim || $one != http-* ]] || continue
    local name=${one%:*} version=${one#*:}
    local out="out/$1-$name-$version"
    "${suite[@]}" --url "$2" --scenario "$name" --spec-version "$version" -o "$out" >"$out.txt" 2>&1 || true
    local passed=$(sed -n 's/^Passed: //p' "$out.txt")
    say "$1-$name" "$version  ${passed:=did not end}"
    [[ $passed =~ ^([1-9][0-9]*)/([0-9]+),\ 0\ failed,\ 0\ warnings$ && ${BASH_REMATCH[1]} = "${BASH_REMATCH[2]}" ]] || failed=1
  done
}

serve open
all open "$url"

serve claimed -require-claim
claim() {
  "$usher" claim -base "$tmp/claimed.base" -scope "$1" -json 2>"$tmp/claim.log" |
    node -p 'JSON.parse(fs.readFileSync(0)).code' || cat "$tmp/claim.log" >&2
}
all claim "$url?claim=$(claim "$FIXTURE")"
hidden=$(node hidden.mjs "$url?claim=$(claim "$FIXTURE/empty")" 2>"$tmp/hidden") &&
  say claim-for-nothing "checks $hidden/$hidden" || fail claim-for-nothing "$(grep -m1 Error "$tmp/hidden")"

finish
for ((i = 0; i < 50; i++)); do
  left=$(pgrep -fl "$FIXTURE" || true)
  [ -n "$left" ] || break
  sleep 0.1
done
[ -z "$left" ] && say "processes left" 0 || fail "processes left" "$left"
exit $failed
