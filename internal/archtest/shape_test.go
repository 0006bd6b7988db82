package archtest

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Budgets, in lines and fields. A package that outgrows its budget is two; a
// file or a struct that does has more than one subject.
const (
	packageLines = 1500
	fileLines    = 600
	structFields = 20
	fileBytes    = 1 << 20 // a clone stays quick, and nothing built is committed
)

// over lists what may exceed a budget, and why. The value is the new limit, so
// that an exception does not grow in silence.
var over = map[string]struct {
	limit  int
	reason string
}{}

func budget(t *testing.T, what string, have, limit int) {
	t.Helper()
	if have <= limit {
		if _, ok := over[what]; ok {
			t.Errorf("%s has %d, within its budget of %d: take it out of the exceptions", what, have, limit)
		}
		return
	}
	if have > over[what].limit {
		t.Errorf("%s has %d, the budget is %d", what, have, max(limit, over[what].limit))
	}
}

func TestBudgets(t *testing.T) {
	for _, p := range own(t, "linux") {
		if isTool(p.short()) {
			continue
		}
		total := 0
		for _, name := range p.sources() {
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			lines := bytes.Count(b, []byte("\n"))
			total += lines
			budget(t, p.short()+"/"+filepath.Base(name)+" lines", lines, fileLines)

			f, err := parser.ParseFile(token.NewFileSet(), name, b, parser.SkipObjectResolution)
			if err != nil {
				t.Error(err)
				continue
			}
			ast.Inspect(f, func(n ast.Node) bool {
				spec, ok := n.(*ast.TypeSpec)
				if !ok {
					return true
				}
				if s, ok := spec.Type.(*ast.StructType); ok {
					budget(t, p.short()+"."+spec.Name.Name+" fields", s.Fields.NumFields(), structFields)
				}
				return true
			})
		}
		budget(t, p.short()+" lines", total, packageLines)
	}
	for what, e := range over {
		if e.reason == "" {
			t.Errorf("exception for %s has no reason", what)
		}
	}
}

// TestPackageComments wants exactly one comment that introduces each package.
func TestPackageComments(t *testing.T) {
	for _, p := range own(t, "linux") {
		var docs []string
		for _, name := range p.sources() {
			f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.PackageClauseOnly)
			if err != nil {
				t.Error(err)
				continue
			}
			if f.Doc != nil {
				docs = append(docs, f.Doc.Text())
			}
		}
		want := "Package " + p.Name + " "
		if p.Name == "main" {
			want = "Command " + filepath.Base(p.Dir) + " "
		}
		switch {
		case len(docs) != 1:
			t.Errorf("%s has %d package comments, want 1", p.ImportPath, len(docs))
		case !strings.HasPrefix(docs[0], want):
			t.Errorf("%s: the package comment does not start with %q", p.ImportPath, want)
		}
	}
}

// badNames are package names that say nothing.
var badNames = regexp.MustCompile(`^(util|utils|common|helper|helpers|types|http|path|io|log|misc|base)$`)

func TestPackageNames(t *testing.T) {
	for _, p := range own(t, "linux") {
		if badNames.MatchString(p.Name) {
			t.Errorf("%s: a package called %s says nothing, or hides one of the standard library", p.ImportPath, p.Name)
		}
	}
}

func TestFilesAreSmall(t *testing.T) {
	for _, name := range tracked(t) {
		info, err := os.Stat(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() > fileBytes {
			t.Errorf("%s has %d bytes, at most %d", name, info.Size(), fileBytes)
		}
	}
}

// unfinished finds notes to oneself; the words are put together here so that
// this file passes.
var unfinished = regexp.MustCompile(`\b(` + "TO" + `DO|` + "FIX" + `ME|` + "X" + `XX)\b`)

// TestNothingOfThisMachine looks in every text for the path of this checkout or
// of the home directory, which mean nothing elsewhere, and for unfinished work.
func TestNothingOfThisMachine(t *testing.T) {
	checkout, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	if strings.Count(checkout, "/") > 1 {
		paths = append(paths, checkout)
	}
	if home, err := os.UserHomeDir(); err == nil && strings.Count(home, "/") > 1 {
		paths = append(paths, home+"/")
	}
	for _, name := range tracked(t) {
		b, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.IndexByte(b, 0) >= 0 || name == "LICENSE" {
			continue
		}
		for i, line := range strings.Split(string(b), "\n") {
			for _, p := range paths {
				if strings.Contains(line, p) {
					t.Errorf("%s:%d names %s, a path of this machine", name, i+1, p)
				}
			}
			if m := unfinished.FindString(line); m != "" {
				t.Errorf("%s:%d says %s: finish it or leave it out", name, i+1, m)
			}
		}
	}
}
