package benchcmd

import (
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/goidem/idem/bench/strategy"
)

// hidden stands where a secret was.
const hidden = "xxxxx"

// secretLength is the length from which a password is looked for by itself: replacing a
// shorter one would garble words and hide nothing that is worth it.
const secretLength = 4

// inURL finds the password in anything like a URL.
var inURL = regexp.MustCompile(`(://[^/@\s:]*):[^/\s]*@`) // lint:const a pattern

// inQuery finds the password in a parameter.
var inQuery = regexp.MustCompile(`(?i)(password=)[^&\s]*`) // lint:const a pattern

// redactor takes secrets out of what other packages say.
type redactor []string

func newRedactor(urls map[strategy.Server]string) redactor {
	secrets := redactor{os.Getenv("PGPASSWORD")}
	for _, text := range urls {
		u, err := url.Parse(text)
		if err != nil {
			continue
		}
		password, _ := u.User.Password()
		_, raw, _ := strings.Cut(u.User.String(), ":")
		secrets = append(secrets, password, raw, u.Query().Get("password"), u.Query().Get("sslpassword"))
	}
	return slices.DeleteFunc(secrets, func(s string) bool { return len(s) < secretLength })
}

// line returns the text on one line, without secrets.
func (r redactor) line(text string) string {
	for _, secret := range r {
		text = strings.ReplaceAll(text, secret, hidden)
	}
	text = inURL.ReplaceAllString(text, "$1:"+hidden+"@")
	text = inQuery.ReplaceAllString(text, "${1}"+hidden)
	return strings.Join(strings.Fields(text), " ")
}

// shown is a URL as it may be shown: without password and parameters.
func shown(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "the URL"
	}
	show := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}
	if name := u.User.Username(); name != "" {
		show.User = url.User(name)
	}
	return show.String()
}

// checkURL refuses what cannot be the URL of such a server. Its error does not repeat the
// text, in which a password may be in any place.
func checkURL(server strategy.Server, text string) error {
	want := map[strategy.Server]struct {
		schemes []string
		like    string
	}{
		strategy.Postgres:  {[]string{"postgres", "postgresql"}, "postgres://USER@HOST:5432/DATABASE"},
		strategy.Cockroach: {[]string{"postgres", "postgresql", "cockroach", "cockroachdb"}, "postgres://USER@HOST:26257/DATABASE"},
		strategy.Redis:     {[]string{"redis", "rediss"}, "redis://HOST:6379/0"},
	}[server]
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return usage("bench: --%s is no URL; one is like %s", server, want.like)
	case !slices.Contains(want.schemes, u.Scheme):
		return usage("bench: --%s has a URL of the scheme %q; it must be like %s", server, u.Scheme, want.like)
	case u.Hostname() == "" && u.Query().Get("host") == "":
		return usage("bench: --%s has a URL without a host; it must be like %s", server, want.like)
	}
	return nil
}
