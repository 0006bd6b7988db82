package archtest

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// permissive are the licences that a linked module may have: they ask for
// their notice to be kept and nothing of the program that links them.
var permissive = []string{"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "Unlicense", "Zlib"}

// linkedModules lists the third-party modules in the binary, "path version",
// over all systems.
func linkedModules(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, system := range systems {
		for _, p := range list(t, system, "-deps", "./cmd/holdfast") {
			if p.Module == nil || p.Module.Main {
				continue
			}
			if m := p.Module.Path + " " + p.Module.Version; !slices.Contains(out, m) {
				out = append(out, m)
			}
		}
	}
	slices.Sort(out)
	return out
}

// directModules lists what go.mod asks for itself.
func directModules(t *testing.T) []string {
	t.Helper()
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	if err := json.Unmarshal(command(t, nil, "go", "mod", "edit", "-json"), &mod); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, r := range mod.Require {
		if !r.Indirect {
			out = append(out, r.Path)
		}
	}
	return out
}

// packageFiles are the package.json files of the repository.
func packageFiles(t *testing.T) []string {
	t.Helper()
	var out []string
	for name := range strings.FieldsSeq(string(command(t, nil, "git", "ls-files", "*package.json"))) {
		out = append(out, name)
	}
	if len(out) == 0 {
		t.Fatal("git lists no package.json")
	}
	return out
}

// directPackages lists what package.json files ask npm for.
func directPackages(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, name := range packageFiles(t) {
		var p struct {
			Dependencies, DevDependencies, PeerDependencies, OptionalDependencies map[string]string
		}
		if err := json.Unmarshal([]byte(read(t, name)), &p); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, asks := range []map[string]string{p.Dependencies, p.DevDependencies, p.PeerDependencies, p.OptionalDependencies} {
			for m := range asks {
				if !slices.Contains(out, m) {
					out = append(out, m)
				}
			}
		}
	}
	return out
}

// otherTerms are packages of npm whose licences ask for more than their notice.
// They build or are tested, and are in nothing that is shipped.
var otherTerms = map[string]string{
	"axe-core":                  "MPL-2.0: runs in tests",
	"lightningcss":              "MPL-2.0: Vite's reader of style sheets, runs in builds",
	"@anthropic-ai/claude-code": "its owner's terms: the tool that tests answer",
}

func TestLicencesOfPackages(t *testing.T) {
	seen := map[string]bool{}
	for _, name := range packageFiles(t) {
		lock := strings.TrimSuffix(name, ".json") + "-lock.json"
		var l struct {
			Packages map[string]struct{ License, Resolved string }
		}
		if err := json.Unmarshal([]byte(read(t, lock)), &l); err != nil {
			t.Fatalf("%s: %v", lock, err)
		}
		for at, p := range l.Packages {
			_, m, ok := strings.Cut(at, "node_modules/")
			if !ok {
				continue // the package itself
			}
			if i := strings.LastIndex(m, "node_modules/"); i >= 0 {
				m = m[i+len("node_modules/"):]
			}
			if p.Resolved != "" {
				t.Errorf("%s: %s names where it came from; set omit-lockfile-registry-resolved", lock, m)
			}
			free := slices.ContainsFunc(strings.Split(strings.Trim(p.License, "()"), " OR "), func(s string) bool { return slices.Contains(permissive, s) })
			other := ""
			for base := range otherTerms {
				// Each has a package for every system, named after it.
				if m == base || strings.HasPrefix(m, base+"-") {
					other, seen[base] = base, true
				}
			}
			if !free && other == "" {
				t.Errorf("%s: the licence of %s is %q, which is not one of %v", lock, m, p.License, permissive)
			}
		}
	}
	for base := range otherTerms {
		if !seen[base] {
			t.Errorf("otherTerms names %s, which nothing uses", base)
		}
	}
}

func TestDepsFile(t *testing.T) {
	linked := linkedModules(t)
	var listed []string
	for i, line := range strings.Split(read(t, "deps.txt"), "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) != 3 {
			t.Errorf("deps.txt:%d: want module, version and licence: %q", i+1, line)
			continue
		}
		if !slices.Contains(permissive, fields[2]) {
			t.Errorf("deps.txt:%d: %s is not one of %v", i+1, fields[2], permissive)
		}
		listed = append(listed, fields[0]+" "+fields[1])
	}
	if !slices.IsSorted(listed) {
		t.Error("deps.txt is not sorted")
	}
	for _, m := range linked {
		if !slices.Contains(listed, m) {
			t.Errorf("the binary links %s, which deps.txt does not list: add it with its licence", m)
		}
	}
	for _, m := range listed {
		if !slices.Contains(linked, m) {
			t.Errorf("deps.txt lists %s, which the binary does not link", m)
		}
	}
}

// TestDependenciesAreExplained wants a row for each module in
// docs/dependencies.md, and no row for one that is gone.
func TestDependenciesAreExplained(t *testing.T) {
	explained := map[string]bool{}
	for line := range strings.SplitSeq(read(t, "docs/dependencies.md"), "\n") {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if len(cells) < 2 || len(strings.Fields(cells[1])) < 4 {
			t.Errorf("docs/dependencies.md: a row without a sentence: %s", line)
			continue
		}
		explained[strings.Trim(cells[0], "`")] = true
	}
	// What go.mod asks for itself is explained even where only tests use it.
	var want []string
	for _, m := range linkedModules(t) {
		name, _, _ := strings.Cut(m, " ")
		want = append(want, name)
	}
	direct := append(directModules(t), directPackages(t)...)
	for _, m := range append(want, direct...) {
		if !explained[m] {
			t.Errorf("docs/dependencies.md does not say what %s is for", m)
		}
	}
	for m := range explained {
		if !slices.Contains(want, m) && !slices.Contains(direct, m) {
			t.Errorf("docs/dependencies.md explains %s, which nothing uses", m)
		}
	}
}
