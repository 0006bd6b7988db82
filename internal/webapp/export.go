package webapp

import (
	"errors"
	"fmt"
	"html"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ErrNotBuilt says that this program holds no page.
var ErrNotBuilt = errors.New("this program was built without the page")

// ErrNotEmpty says that an export would mix with what is in a directory.
var ErrNotEmpty = errors.New("the directory is not empty and holds no earlier export")

// headersName is the file that says what a host should send; it marks an export
// as well.
const headersName = "_headers"

// Export writes the page into dir, made where it is missing, for any host of
// static files: with its policy in a meta element, narrowed to relays (URLs
// without a path; none means every https address), and a file `_headers` that
// some hosts read and the others can be set up from. An earlier export in dir is
// replaced; a directory that holds anything else is refused with ErrNotEmpty.
// The digest that the page shows stays: it is over the files as they were built.
func Export(dir string, relays []string) (written []string, err error) {
	if !Built() {
		return nil, ErrNotBuilt
	}
	policy, err := exportPolicy(relays)
	if err != nil {
		return nil, err
	}
	if err := prepare(dir); err != nil {
		return nil, fmt.Errorf("export to %s: %w", dir, err)
	}
	for name, f := range files {
		body := f.plain
		if name == index {
			meta := `<meta http-equiv="Content-Security-Policy" content="` + html.EscapeString(policy) + `" />`
			body = []byte(strings.Replace(string(body), `<meta charset="utf-8" />`, `<meta charset="utf-8" />`+"\n    "+meta, 1))
		} else if f.brotli != nil {
			if err := write(dir, name+compressed, f.brotli); err != nil {
				return written, err
			}
		}
		if err := write(dir, name, body); err != nil {
			return written, err
		}
		written = append(written, name)
	}
	headers := "/*\n  Content-Security-Policy: " + policy + "; frame-ancestors 'none'\n" +
		"  X-Content-Type-Options: nosniff\n  Referrer-Policy: no-referrer\n  Cross-Origin-Opener-Policy: same-origin\n  Cache-Control: no-cache\n" +
		"/" + assets + "*\n  Cache-Control: public, max-age=" + aYear + ", immutable\n"
	if err := write(dir, headersName, []byte(headers)); err != nil {
		return written, err
	}
	slices.Sort(written)
	return written, nil
}

// exportPolicy is the page's policy with what it may connect to.
func exportPolicy(relays []string) (string, error) {
	if len(relays) == 0 {
		return Policy("'self' https: wss:"), nil
	}
	// The page's own origin stays: the service worker fetches the page's files, and
	// on a host that sends the headers this is its policy too.
	connect := []string{"'self'"}
	for _, r := range relays {
		u, err := url.Parse(r)
		if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.ContainsAny(u.Host, "*;, '\"") {
			return "", fmt.Errorf("relay %q: want https://host", r)
		}
		socket := strings.Replace(u.Scheme, "http", "ws", 1)
		connect = append(connect, u.Scheme+"://"+u.Host, socket+"://"+u.Host)
	}
	return Policy(strings.Join(connect, " ")), nil
}

// prepare makes dir, or empties an earlier export's assets out of it.
func prepare(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if len(entries) == 0 {
		return nil
	}
	if _, err := os.Stat(filepath.Join(dir, headersName)); err != nil {
		return ErrNotEmpty
	}
	return os.RemoveAll(filepath.Join(dir, filepath.FromSlash(strings.TrimSuffix(assets, "/"))))
}

func write(dir, name string, body []byte) error {
	target := filepath.Join(dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return fmt.Errorf("export %s: %w", name, err)
	}
	if err := os.WriteFile(target, body, 0o644); err != nil {
		return fmt.Errorf("export %s: %w", name, err)
	}
	return nil
}
