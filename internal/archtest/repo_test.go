package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// module is the path of this repository's main module.
const module = "holdfast"

// root is the repository, seen from this package's directory.
const root = "../.."

// command runs a tool in the repository and returns what it printed.
func command(t *testing.T, env []string, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, stderr.Bytes())
	}
	return out
}

// listed is what `go list -json` tells of a package.
type listed struct {
	ImportPath string
	Name       string
	Dir        string
	Standard   bool
	Module     *struct {
		Path, Version string
		Main          bool
	}
	GoFiles, CgoFiles         []string
	IgnoredGoFiles            []string
	TestGoFiles, XTestGoFiles []string
	Imports, Deps             []string
}

// short is the import path within the module: internal/wire.
func (p listed) short() string { return strings.TrimPrefix(p.ImportPath, module+"/") }

// sources are the files that are not tests, those of other systems included.
func (p listed) sources() []string {
	var out []string
	for _, group := range [][]string{p.GoFiles, p.CgoFiles, p.IgnoredGoFiles} {
		for _, f := range group {
			if !strings.HasSuffix(f, "_test.go") {
				out = append(out, filepath.Join(p.Dir, f))
			}
		}
	}
	return out
}

// systems are the targets whose build lists are looked at: what is linked on
// one of them only must be known too.
var systems = []string{"linux", "darwin"}

// list asks go list about patterns for one system.
func list(t *testing.T, system string, args ...string) []listed {
	t.Helper()
	out := command(t, []string{"GOOS=" + system, "CGO_ENABLED=0"}, "go", append([]string{"list", "-json"}, args...)...)
	dec := json.NewDecoder(bytes.NewReader(out))
	var all []listed
	for {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatalf("go list: %v", err)
		}
		all = append(all, p)
	}
}

var (
	ownMu sync.Mutex
	// ownCache holds the answers of own, by system.
	ownCache = map[string][]listed{}
)

// own lists the packages of the main module as one system sees them.
func own(t *testing.T, system string) []listed {
	t.Helper()
	ownMu.Lock()
	defer ownMu.Unlock()
	if ownCache[system] == nil {
		ownCache[system] = list(t, system, "./...")
	}
	return ownCache[system]
}

// tracked lists the files of the repository: those git knows or would add.
func tracked(t *testing.T) []string {
	t.Helper()
	var files []string
	if _, err := os.Stat(filepath.Join(root, ".git")); err == nil {
		out := command(t, nil, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
		for f := range strings.SplitSeq(string(out), "\x00") {
			if f == "" {
				continue
			}
			if info, err := os.Lstat(filepath.Join(root, f)); err == nil && info.Mode().IsRegular() {
				files = append(files, f)
			}
		}
		return files
	}
	// An unpacked archive has no git directory.
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "bin" || d.Name() == "dist" || d.Name() == "node_modules") {
			return filepath.SkipDir
		}
		if d.Type().IsRegular() {
			rel, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			files = append(files, rel)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// read returns a file of the repository.
func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
