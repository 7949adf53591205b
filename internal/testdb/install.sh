#!/bin/sh
# Finds the servers that the tests start and the browser that opens the benchmark's page, and installs
# what is missing from the packages of Debian, Ubuntu or Homebrew. It needs no server to run and starts
# none. What cannot be had is no failure here: its tests skip, or fail by IDEM_TEST_REQUIRE. INSTALL=0
# looks only.
set -u

say() { printf 'servers: %s\n' "$*"; }

oldest_postgres=13
oldest_redis=7

# number VERSION: its leading digits, 0 when there are none.
number() {
	n=${1%%[!0-9]*}
	echo "${n:-0}"
}

# Each find function sets found to a line about the server, or to nothing.
find_postgres() {
	found='' newest=0
	for dir in "${IDEM_TEST_PG_BIN:-}" "$(dirname "$(command -v postgres || echo /nowhere/postgres)")" \
		/usr/lib/postgresql/*/bin /usr/pgsql-*/bin /opt/homebrew/opt/postgresql@*/bin \
		/usr/local/opt/postgresql@*/bin /home/linuxbrew/.linuxbrew/opt/postgresql@*/bin; do
		[ -x "$dir/initdb" ] && [ -x "$dir/postgres" ] || continue
		version=$("$dir/postgres" --version 2>/dev/null) || continue
		version=${version#*) }
		[ "$(number "$version")" -gt "$newest" ] || continue
		newest=$(number "$version")
		[ "$newest" -lt "$oldest_postgres" ] || found="PostgreSQL ${version%% *} in $dir"
	done
}

find_pgbouncer() {
	found='' path=$(command -v pgbouncer || echo /usr/sbin/pgbouncer)
	version=$("$path" --version 2>/dev/null | head -n 1) || return 0
	[ -z "$version" ] || found="$version at $path"
}

find_redis() {
	found='' path=$(command -v redis-server) || return 0
	version=$("$path" --version 2>/dev/null)
	version=${version#*v=}
	[ "$(number "$version")" -lt "$oldest_redis" ] || found="Redis ${version%% *} at $path"
}

find_chromium() {
	found=''
	for browser in chromium chromium-browser google-chrome google-chrome-stable \
		'/Applications/Chromium.app/Contents/MacOS/Chromium' \
		'/Applications/Google Chrome.app/Contents/MacOS/Google Chrome'; do
		path=$(command -v "$browser") || continue
		version=$("$path" --version 2>/dev/null) || continue
		found="${version%% built on *} at $path"
		return
	done
}

# look NAME...: reports what is there and sets missing to the names of what is not.
look() {
	missing=''
	for name; do
		"find_$name"
		if [ -n "$found" ]; then
			say "$found"
		else
			missing="$missing $name"
		fi
	done
}

# packages MANAGER: what the missing servers are called there.
packages() {
	for name in $missing; do
		case $1/$name in
		apt/postgres) echo postgresql ;;
		apt/redis) echo redis-server ;;
		brew/postgres) echo postgresql@17 ;;
		*) echo "$name" ;;
		esac
	done
}

# apt_install runs as root. Debian's packages start their servers when they are installed, unless a
# policy forbids it: the tests start their own.
apt_install() {
	policy=/usr/sbin/policy-rc.d
	if [ -e "$policy" ]; then
		policy=''
	else
		printf '#!/bin/sh\nexit 101\n' | $root tee "$policy" >/dev/null && $root chmod 755 "$policy"
		trap '$root rm -f "$policy"' EXIT
		trap 'exit 130' INT
		trap 'exit 143' TERM
	fi
	# shellcheck disable=SC2046 # one word for each package
	$root apt-get update -q && $root env DEBIAN_FRONTEND=noninteractive \
		apt-get install -q -y --no-install-recommends $(packages apt)
	status=$?
	[ -z "$policy" ] || $root rm -f "$policy"
	trap - EXIT INT TERM
	return $status
}

look postgres pgbouncer redis chromium
[ -n "$missing" ] || exit 0

if [ "${INSTALL:-1}" = 0 ]; then
	manager=none
elif command -v apt-get >/dev/null; then
	manager=apt how="apt-get install --no-install-recommends $(echo $(packages apt))"
	if [ "$(id -u)" -eq 0 ]; then
		root=''
	elif sudo -n true 2>/dev/null; then
		root='sudo -n'
	else
		manager=none how="sudo $how"
	fi
elif command -v brew >/dev/null; then
	manager=brew how="brew install $(echo $(packages brew))"
else
	manager=none
fi

if [ "$manager" != none ]; then
	say "missing:$missing; running: $how"
	log=$(mktemp)
	case $manager in
	apt) apt_install ;;
	brew) brew install $(packages brew) ;;
	esac >"$log" 2>&1 || { say "that failed:"; tail -n 20 "$log"; }
	rm -f "$log"
	look $missing
	[ -n "$missing" ] || exit 0
fi

for name in $missing; do
	case $name in
	postgres) what="PostgreSQL $oldest_postgres or later" ;;
	pgbouncer) what=PgBouncer ;;
	redis) what="Redis $oldest_redis or later" ;;
	chromium) what=Chromium ;;
	esac
	say "$what is missing: the tests that need it will be skipped"
done
say "to run them: ${how:-install the above with your package manager}, then make test"
